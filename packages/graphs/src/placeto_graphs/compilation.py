"""How loops that NumPy cannot express are compiled by Numba, and where the code is kept on disk."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# What a few branches or worktrees need, and one who goes back and forth between them.
NUM_VERSIONS_KEPT = 8


def compiled(
    function: Callable[Parameters, Result],
    *,
    name: str | None = None,
    constants: Mapping[str, object] | None = None,
    called_by_python: bool = True,
) -> Callable[Parameters, Result]:
    """Compile a function with Numba on its first call, and keep the code on disk.

    The compiled code runs without the interpreter lock. Numba takes half a second to import, so
    that modules with compiled functions are best imported by the functions that need them.

    The code of a function in a package is kept in ``placeto/compiled`` in the user's cache folder
    (``$XDG_CACHE_HOME`` or ``~/.cache``), or in ``$NUMBA_CACHE_DIR``. It is compiled anew after any
    change to a source file of the package or of `placeto_graphs`. A function may call compiled
    functions of these two packages only. A function outside a package is compiled in each process,
    and so is every function if that folder cannot be used.

    Parameters
    ----------
    function
        The function to compile; arrays, numbers and named tuples of them go in, and a number out:
        to return a tuple calls Python, where Ctrl-C would be a segmentation fault. It makes no
        arrays and lists, and has no variables of functions around it.
    name
        Name of this variant of the function, of which its module may have several.
    constants
        Values of global names in this variant, in place of those in the function's module: numbers
        and compiled functions.
    called_by_python
        Whether anything but compiled code calls it, which takes time to compile, too.

    Examples
    --------
    >>> import numpy as np
    >>> @compiled
    ... def total(values):
    ...     result = 0.0
    ...     for value in values:
    ...         result += value
    ...     return result
    >>> total(np.ones(3))
    3.0
    """
    import numba  # noqa: PLC0415

    variant = cast(FunctionType, function)
    if name is not None:
        values = {**variant.__globals__, **(constants or {})}
        defaults = variant.__defaults__
        variant = FunctionType(variant.__code__, values, name, defaults, variant.__closure__)
        variant.__qualname__ = f"{name}_{_digest(constants or {})}"
    options: Any = {
        "nogil": True,
        "_nrt": False,  # without counts of references it compiles in two thirds of the time
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": not called_by_python,
    }
    dispatcher: Any = numba.njit(**options)(variant)
    with suppress(OSError, RuntimeError):  # no access, no home
        folder = _folder((function.__module__ or "").partition(".")[0])
        if folder is not None:
            dispatcher._cache = _kept_code()(variant, folder)
    return cast(Callable[Parameters, Result], dispatcher)


def called_by_compiled(
    function: Callable[Parameters, Result],
    *,
    name: str | None = None,
    constants: Mapping[str, object] | None = None,
) -> Callable[Parameters, Result]:
    """Compile a function that compiled code alone calls, in less time than `compiled`.

    Parameters
    ----------
    function, name, constants
        As of `compiled`.
    """
    return compiled(function, name=name, constants=constants, called_by_python=False)


def _digest(constants: Mapping[str, object]) -> str:
    """Name the values of a variant, that no other one takes its code."""
    values = {key: getattr(value, "__qualname__", repr(value)) for key, value in constants.items()}
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:16]


@cache
def _folder(package: str) -> Path | None:
    """Return the folder of a package's code, named by the contents of all that is compiled.

    Numba alone would not compile a function anew if another file changes that it calls into.
    """
    import numba  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    if not hasattr(sys.modules.get(package), "__path__"):
        return None
    hashed = hashlib.sha256(repr((sys.version, numba.__version__, np.__version__)).encode())
    for package_name in (package, "placeto_graphs"):
        for root in sys.modules[package_name].__path__:
            for path in sorted(Path(root).rglob("*.py")):
                hashed.update(f"{path.relative_to(root)} ".encode())
                hashed.update(hashlib.sha256(path.read_bytes()).digest())
    config: Any = numba.config
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "placeto")
    folder = Path(config.CACHE_DIR or of_user, "compiled", f"{package}-{hashed.hexdigest()[:16]}")
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)  # the last used are kept
    versions = sorted(folder.parent.glob(f"{package}-*"), key=lambda path: path.stat().st_mtime)
    for version in versions[:-NUM_VERSIONS_KEPT]:
        shutil.rmtree(version, ignore_errors=True)
    return folder


@cache
def _kept_code() -> Any:
    """Return the class of what a dispatcher of Numba calls its cache."""
    from numba.core import caching  # noqa: PLC0415

    class KeptCode(caching.FunctionCache):
        """Code in a given folder; what cannot be read or kept there costs a compilation."""

        def __init__(self, function: FunctionType, folder: Path) -> None:
            class InFolder(caching._CacheLocator):
                _py_file = function.__code__.co_filename  # which a warning names
                get_cache_path = staticmethod(lambda: str(folder))
                get_source_stamp = staticmethod(lambda: folder.name)
                get_disambiguator = staticmethod(lambda: str(function.__code__.co_firstlineno))
                from_function = classmethod(lambda cls, _function, _file: cls())

            class Code(caching.CompileResultCacheImpl):
                _locator_classes: Any = [InFolder]  # noqa: RUF012

            self._impl_class = Code
            super().__init__(function)  # type: ignore[no-untyped-call]

        def load_overload(self, signature: Any, context: Any) -> Any:
            try:
                # Numba's own refreshes the context first: it imports what compiling needs.
                code = self._load_overload(signature, context)  # type: ignore[no-untyped-call]
                # Two processes that keep code at the same time may have given it the same number.
                if code is None or code.signature.args == tuple(signature):
                    return code
            except Exception:  # noqa: S110 (there is no telling what pickle raises)
                pass
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

        def save_overload(self, *arguments: Any) -> None:
            with suppress(OSError):
                super().save_overload(*arguments)  # type: ignore[no-untyped-call]

    return KeptCode
