"""Finished trials by their content: the key of a trial is the hash of all that decides its result.

That is its task with all settings, the problems that it places (graph, cluster, times, groups), and
the keys of the trials that it needs. It is also the files of our packages that run it, the versions
of others, and for measured trials the machine. Trials with equal keys are equal, so that no options
have to be compared. Seconds are in records, not in keys.
"""

import ast
import hashlib
import importlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from placeto.errors import reading, writing
from placeto.json_files import decode_json
from placeto.trials.records import Record
from placeto.trials.trials import Graph, Trial, measuring_name
from placeto_graphs import write_atomically

# Packages that decide the results of trials, and those that also decide measured ones. Capture has
# the cost models, by which CPU only is placed on a CPU that the problem lacks.
RUN_BY = (
    "placeto",
    "placeto_baselines",
    "placeto_capture",
    "placeto_graphs",
    "placeto_policy",
    "placeto_simulator",
)
MEASURED_BY = (*RUN_BY, "placeto_execution", "placeto_workloads")
LIBRARIES = ("networkx", "numba", "numpy", "pymetis", "pyscotch", "scipy", "torch")


def content_digest(value: object, problems: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 of a value: equal digests are equal values, in every process.

    Examples
    --------
    >>> content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})
    True
    >>> content_digest(np.zeros(2)) == content_digest(np.zeros(2, np.int64))
    False
    """
    hashed = hashlib.sha256()
    for part in _parts(value, problems or {}):
        hashed.update(b"%d:%b" % (len(part), part))
    return hashed.hexdigest()


def trial_keys(trials: Sequence[Trial], problems: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each trial by its name, of digests of the problems by name.

    Trials come in an order in which each comes after what it needs.
    """
    keys: dict[str, str] = {}
    known = dict(problems)
    libraries = {name: _version(name) for name in LIBRARIES}
    for trial in trials:
        packages = {*(MEASURED_BY if trial.measured else RUN_BY), *_packages(trial.task)}
        own = getattr(trial.task, "modules", ())
        decisive = (
            libraries,
            {name: files_digest(name) for name in packages},
            {name: imports_digest(name) for name in own},
            trial.task,
            [keys[name] for name in trial.needs],
            machine() if trial.measured else None,
        )
        keys[trial.name] = content_digest(decisive, known)
        if trial.name.startswith(measuring_name("")):
            known[trial.name] = keys[trial.name]
    return keys


@cache
def files_digest(package: str) -> str:
    """Return the SHA-256 of the files of a package or a module: sources, and policies beside them.

    Its version would not tell the sources of one day from those of the next.
    """
    # Built-in modules and namespaces have no file.
    source = Path(getattr(importlib.import_module(package), "__file__", None) or "")
    folder = source.parent
    found = folder.rglob("*") if source.name == "__init__.py" else [source]
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return content_digest(
        {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }
    )


@cache
def imports_digest(module: str) -> str:
    """Return the SHA-256 of what a module of a user's own imports from beside it, and that imports.

    Files are read, and nothing is imported. An installed module has only libraries beside it.
    """
    source = Path(getattr(importlib.import_module(module), "__file__", None) or "")
    depth = module.count(".") + (source.name == "__init__.py")
    if source.suffix != ".py" or {"site-packages", "dist-packages"} & {*source.parts}:
        return content_digest({})
    root = source.parents[depth]
    found: dict[str, str] = {}
    left = [source]
    while left:
        path = left.pop()
        name = path.relative_to(root).as_posix()
        if name not in found:
            content = path.read_bytes()
            found[name] = hashlib.sha256(content).hexdigest()
            files = [root / file for one in _imported(content, name) for file in _files_of(one)]
            left += [file for file in files if file.is_file()]
    return content_digest(found)


def _imported(content: bytes, name: str) -> Iterator[str]:
    """Yield the modules that a file may import, of its content and its name such as ``a/b.py``."""
    package = name.split("/")[:-1]
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            yield start
            yield from (f"{start}.{alias.name}".removeprefix(".") for alias in node.names)


def _files_of(module: str) -> Iterator[str]:
    """Yield the files that a module and the packages around it may be."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        yield from (f"{path}.py", f"{path}/__init__.py")


def machine() -> str:
    """Return a text that differs between machines."""
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a finished trial."""

    key: str
    name: str  # its name in the experiment
    commit: str | None = None  # commit of the sources; None if they are installed
    # Seconds since the trial before, or since the command began: their sum is how long the
    # experiment took, with however many jobs
    took: float = 0.0


class TrialStore:
    """A text file with a JSON object for each finished trial, which survives a crash.

    An incomplete last line of a crash is dropped. One process at a time may write it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        self.origins: dict[str, Origin] = {}
        if path.exists():
            self._read()

    def put(self, origin: Origin, record: Record) -> None:
        """Append a trial, and return when it is on disk; an equal failure is stored once."""
        if self.records.get(origin.key) == record:
            return
        line = msgspec.json.encode(msgspec.to_builtins(origin) | msgspec.to_builtins(record))
        with writing(self._path), self._path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[origin.key] = record
        self.origins[origin.key] = origin

    def _read(self) -> None:
        with reading(self._path):
            content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            problem = (
                f"{self._path}, line {number}: expected a finished trial (--force begins anew)"
            )
            origin = decode_json(line, Origin, problem)
            self.origins[origin.key] = origin
            self.records[origin.key] = decode_json(line, cast(type[Record], Record), problem)
        if whole != content:
            with writing(self._path):
                write_atomically(self._path, whole)


def _parts(value: Any, problems: Mapping[str, str]) -> Iterator[bytes]:
    """Yield a value in parts; the first has its type, and the number of those that follow."""
    if isinstance(value, np.generic):  # before float: one of NumPy's is one
        yield from _parts(value.item(), problems)
    elif value is None or isinstance(value, bool | int | float | str):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:  # these are addresses
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Sequence):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _parts(item, problems)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for name in sorted(value):
            yield from _parts(name, problems)
            yield from _parts(value[name], problems)
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"dataclass {type(value).__qualname__}".encode()
        yield from _parts({one.name: getattr(value, one.name) for one in fields(value)}, problems)
        if isinstance(value, Graph):  # measured by a trial, or made
            yield (problems.get(measuring_name(value.name)) or problems[value.name]).encode()
    else:
        raise TypeError(f"expected a value whose content can be told, got {type(value)}")


def _packages(task: Any) -> set[str]:
    """Return the packages of the classes of a task, and of all in it."""
    parts = [getattr(task, one.name) for one in fields(task)]
    inner = [_packages(part) for part in parts if is_dataclass(part)]
    own = getattr(task, "modules", ())  # of a placer or an evaluator of a user's own
    return {type(task).__module__.partition(".")[0], *own}.union(*inner)


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
