"""How loops that NumPy cannot express are compiled, and where the code is kept on disk.

Numba keeps the code of a function by its source file. It compiles the function anew if that file
changes, but not if another file changes whose functions are compiled into it. Therefore the sources
of a package are copied into a folder named by a hash of their contents, and Numba is told that each
function lies there. Compiled code is then found from any folder with the same sources, and by no
others. Code that cannot be read or kept there costs a compilation, and nothing else.
"""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from time import time
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from placeto_graphs.errors import GraphError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Of what may be compiled nothing is read before this: the package imports it before all others.
IMPORT_BEGAN = time()  # seconds since the epoch, as the times of files
# Compiled functions may call those of their own package and of this one, but of no other.
SHARED_PACKAGE = "placeto_graphs"
# What a few branches or worktrees need, and one who goes back and forth between them.
NUM_VERSIONS_KEPT = 8


def compiled(
    function: Callable[Parameters, Result],
    *,
    name: str | None = None,
    constants: Mapping[str, object] | None = None,
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
        The function to compile; arrays, numbers and named tuples of them go in and out. It has no
        variables of functions around it.
    name
        Name of this variant of the function, of which its module may have several.
    constants
        Values of global names in this variant, in place of those in the function's module: numbers
        and compiled functions.

    Raises
    ------
    GraphError
        If the function has variables of functions around it.

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

    given = cast(FunctionType, function)
    if given.__closure__:
        around = ", ".join(given.__code__.co_freevars)
        raise GraphError(
            f"compiled: {given.__qualname__} has variables of functions around it: {around}; "
            f"give them as arguments or as constants"
        )
    variant = given
    if name is not None:
        variant = FunctionType(
            given.__code__, {**given.__globals__, **(constants or {})}, name, given.__defaults__
        )
        variant.__qualname__ = f"{name}_{_digest(constants)}" if constants else name
    config: Any = numba.config
    source = None if config.DISABLE_JIT else _kept_source(variant)
    dispatcher: Any = numba.njit(nogil=True)(variant)
    if source is not None:
        with suppress(OSError, RuntimeError):  # where Numba cannot write
            kept = _kept_code()(variant, source)
            if Path(kept.cache_path).parent == source.parent:
                dispatcher._cache = kept
    return cast(Callable[Parameters, Result], dispatcher)


def _digest(constants: Mapping[str, object]) -> str:
    """Name the values of a variant, that no other one takes its code."""
    values = {key: getattr(value, "__qualname__", repr(value)) for key, value in constants.items()}
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:16]


def _kept_source(function: FunctionType) -> Path | None:
    """Return the copy of a function's source file beside which its code is kept, if it can be.

    It cannot when a source was edited since this process began to read them: it may have read some
    before that, and some after.
    """
    if os.name != "posix":  # there is no telling who may write to a folder
        return None
    package = (function.__module__ or "").partition(".")[0]
    file = os.path.abspath(function.__code__.co_filename)
    with suppress(OSError, RuntimeError):  # no access, no home
        sources = dict(_sources(package))
        statuses = map(os.stat, [*sources, *dict(_sources(SHARED_PACKAGE))])
        if file in sources and all(
            max(status.st_mtime, status.st_ctime) <= IMPORT_BEGAN for status in statuses
        ):
            copy = _folder(package) / sources[file]
            if _is_private(_root()) and _is_private(_folder(package)):
                return copy
    return None


def _sources(package: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each source file of a package, and the path within the package."""
    for root in getattr(sys.modules.get(package), "__path__", ()):
        for folder, _, names in sorted(os.walk(os.path.abspath(root), followlinks=True)):
            paths = [os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")]
            yield from ((path, os.path.relpath(path, root)) for path in paths)


def _root() -> Path:
    import numba  # noqa: PLC0415

    config: Any = numba.config
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "placeto")
    return Path(config.CACHE_DIR or of_user, "compiled")


@cache
def _folder(package: str) -> Path:
    """Return the folder with a copy of a package's sources, named by all that is compiled."""
    import numba  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    contents = {within: Path(file).read_bytes() for file, within in _sources(package)}
    shared = [Path(file).read_bytes() for file, _ in _sources(SHARED_PACKAGE)]
    hashed = hashlib.sha256(repr((sys.version, numba.__version__, np.__version__)).encode())
    for content in [*contents.values(), *shared, repr(list(contents)).encode()]:
        hashed.update(hashlib.sha256(content).digest())
    folder = _root() / f"{package}-{hashed.hexdigest()[:16]}"
    if not all((folder / within).exists() for within in contents):
        shutil.rmtree(folder, ignore_errors=True)  # what a cleaner of old files left of it
        folder.parent.mkdir(parents=True, exist_ok=True)
        # It makes a folder that only this user may enter.
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as made:
            for within, content in contents.items():
                Path(made, within).parent.mkdir(parents=True, exist_ok=True)
                Path(made, within).write_bytes(content)
            with suppress(OSError):  # another process was faster
                os.rename(made, folder)
        versions = sorted(folder.parent.glob(f"{package}-*"), key=lambda path: path.stat().st_mtime)
        for version in versions[:-NUM_VERSIONS_KEPT]:
            shutil.rmtree(version, ignore_errors=True)
    os.utime(folder)  # the last used are kept
    return folder


def _is_private(folder: Path) -> bool:
    """Return whether only this user and the superuser can write to a folder, and this one does.

    Numba unpickles and runs the files there.
    """
    status = folder.stat()
    is_own = status.st_uid in {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
    return is_own and os.access(folder, os.W_OK)


@cache
def _kept_code() -> Any:
    """Return the class of what a dispatcher of Numba calls its cache."""
    import numba  # noqa: PLC0415
    from numba.core.caching import FunctionCache  # noqa: PLC0415

    class KeptCode(FunctionCache):
        """Code that lies beside the copy of its source; what is broken of it is removed."""

        def __init__(self, function: FunctionType, source: Path) -> None:
            config: Any = numba.config
            # Numba would keep it beside the folder of copies, where others may write.
            chosen, config.CACHE_DIR = config.CACHE_DIR, ""
            own = function.__code__
            function.__code__ = own.replace(co_filename=str(source))
            try:
                super().__init__(function)  # type: ignore[no-untyped-call]
            finally:
                config.CACHE_DIR = chosen
                function.__code__ = own  # messages name the file that the user knows

        def load_overload(self, *arguments: Any) -> Any:
            try:
                return super().load_overload(*arguments)  # type: ignore[no-untyped-call]
            except Exception:  # there is no telling what pickle raises of a broken file
                with suppress(OSError), _alone_in(self.cache_path):
                    self._remove()
                return None

        def save_overload(self, *arguments: Any) -> None:
            with suppress(OSError), _alone_in(self.cache_path):
                try:
                    super().save_overload(*arguments)  # type: ignore[no-untyped-call]
                except OSError:  # such as a full disk, when the index has what is not there
                    self._remove()

        def _remove(self) -> None:
            """Remove the index of the function's code with the code, which it numbers."""
            for file in Path(self.cache_path).iterdir():
                if file.name.startswith(f"{self._impl.filename_base}."):
                    file.unlink(missing_ok=True)

    return KeptCode


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Hold the lock of a folder.

    Numba numbers the code of a function's signatures. Two processes that save code of one function
    at the same time could take the same number.
    """
    import fcntl  # noqa: PLC0415

    with Path(folder, ".lock").open("ab") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
