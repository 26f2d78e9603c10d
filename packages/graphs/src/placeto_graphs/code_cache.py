"""Where compiled code is kept: on disk, for as long as no source that it was made of changes.

Numba keeps code per file: it compiles a function anew when the file of the function changes, but
not when that of a function that it calls does, although the code of both is in what it keeps. Here
code is kept per version of a whole package, in a folder that does not depend on where the sources
lie, so that processes share it which see them in different folders.
"""

import hashlib
import os
import pickle
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba.core.caching
import numba.core.dispatcher
import numpy as np

from placeto_graphs.compilation import IMPORT_BEGAN
from placeto_graphs.files.storage import write_atomically

core: Any = numba.core  # it has few types
dumps = core.serialize.dumps
# Compiled functions may call those of their own package and of this one, but of no other.
SHARED_PACKAGE = "placeto_graphs"
# What a few branches or worktrees need, and one who goes back and forth between them.
NUM_VERSIONS_KEPT = 8


def code_cache(function: Callable[..., Any], fastmath: set[str]) -> Any:
    """Return where the code of a function is looked for and kept.

    Parameters
    ----------
    function
        What is compiled.
    fastmath
        What LLVM may do to its arithmetic.

    Returns
    -------
    Any
        What a dispatcher of Numba calls its cache. It keeps nothing when the function is not in
        the source file of a package: then nothing tells which sources its code depends on. Nor
        does it when one was edited since this process began to read them: it may have read some
        before that, and some after.
    """
    package = (function.__module__ or "").partition(".")[0]
    file = os.path.abspath(function.__code__.co_filename)
    with suppress(OSError):
        if file in map(os.path.abspath, _sources(package)) and not _is_edited(package):
            return CodeCache(function, fastmath, package)
    return core.caching.NullCache()


class CodeCache:
    """The compiled code of one function: a file per signature and kind of processor.

    Attributes
    ----------
    cache_path
        The folder of this version of the package.
    """

    def __init__(self, function: Callable[..., Any], fastmath: set[str], package: str) -> None:
        self.cache_path = str(_folder(package))
        self._package = package
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._function_key = (self._name, function.__code__.co_firstlineno, sorted(fastmath))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the code for a signature; None when it was not kept, or cannot be read."""
        target_context.refresh()
        key = self._key(signature, target_context.codegen())
        with suppress(Exception):  # there is no telling what pickle raises of a broken file
            *kept_for, code = pickle.loads(_read_own(self._file(key)))  # noqa: S301 (our own)
            if kept_for == [signature, key]:
                parts = pickle.loads(code)  # noqa: S301
                return core.compiler.CompileResult._rebuild(target_context, *parts)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep the code for a signature, unless it has addresses in it or cannot be written."""
        if result.lifted or result.library.has_dynamic_globals:
            return
        key = self._key(signature, result.library.codegen)
        with suppress(OSError):
            # What the function calls may be of sources that were edited after its own was read.
            if self.cache_path.endswith(digest(self._package)):
                _make(Path(self.cache_path), self._package)
                content = (signature, key, dumps(result._reduce()))
                write_atomically(self._file(key), dumps(content))

    def flush(self) -> None:
        """Forget nothing: code that was kept is that of these sources."""

    def _key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*self._function_key, str(signature), codegen.magic_tuple())

    def _file(self, key: tuple[Any, ...]) -> Path:
        name = self._name.replace("<", "").replace(">", "")[-150:]
        hashed = hashlib.sha256(repr(key).encode()).hexdigest()
        return Path(self.cache_path, f"{name}-{hashed[:16]}.code")


def _read_own(file: Path) -> bytes:
    """Return a file that nobody but this user and the superuser can have written.

    What is read is unpickled, and then run. A cache may lie where others can write.
    """
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid not in {0, os.geteuid()} or status.st_mode & stat.S_IWOTH:
            raise PermissionError(file)
        return opened.read()


def name_closure(function: Callable[..., Any]) -> None:
    """Let the name of a function tell what it has from the functions around it.

    Two processes may give the code of one inner function the same symbol, also when they compiled
    it with different values of the variables around it. A third, which calls both, then links one
    of them twice.

    Parameters
    ----------
    function
        What is compiled; one that is not an inner function keeps its name.
    """
    if function.__closure__:
        around = dumps([_told(cell) for cell in function.__closure__])
        function.__qualname__ += f"[{hashlib.sha256(around).hexdigest()[:16]}]"


def _told(cell: Any) -> Any:
    try:
        content = cell.cell_contents
    except ValueError:  # what is defined after the function, such as itself
        return None
    is_compiled = isinstance(content, core.dispatcher.Dispatcher)
    return (content.__module__, content.__qualname__) if is_compiled else content


def digest(package: str) -> str:
    """Return what names this version of a package: its sources, and all that compiles them.

    Parameters
    ----------
    package
        The name of a package that is imported.

    Examples
    --------
    >>> len(digest("placeto_graphs"))
    16
    """
    hashed = hashlib.sha256(repr((sys.version, numba.__version__, np.__version__)).encode())
    for file in _sources_of_code(package):
        hashed.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return hashed.hexdigest()[:16]


@cache
def _is_edited(package: str) -> bool:
    status = map(os.stat, _sources_of_code(package))
    return any(max(file.st_mtime, file.st_ctime) > IMPORT_BEGAN for file in status)


def _sources_of_code(package: str) -> Iterator[str]:
    for name in sorted({package, SHARED_PACKAGE}):
        yield from sorted(_sources(name))


def _sources(package: str) -> Iterator[str]:
    for root in getattr(sys.modules.get(package), "__path__", ()):
        for folder, _, names in os.walk(root, followlinks=True):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))


@cache
def _folder(package: str) -> Path:
    of_user = core.caching.AppDirs("placeto", appauthor=False).user_cache_dir
    folder = Path(core.config.CACHE_DIR or of_user, "compiled", f"{package}-{digest(package)}")
    with suppress(OSError):
        os.utime(folder)  # the last used are kept
    return folder


def _make(folder: Path, package: str) -> None:
    """Make the folder of a version; the first time, remove those of versions long not used."""
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    versions = list(folder.parent.glob(f"{package}-*"))
    versions.sort(key=lambda version: version.stat().st_mtime, reverse=True)
    for version in versions[NUM_VERSIONS_KEPT:]:
        # A process that is using it compiles again.
        shutil.rmtree(version, ignore_errors=True)
