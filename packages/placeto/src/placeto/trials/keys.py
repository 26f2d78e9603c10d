"""What makes trials equal: the key of a trial is the hash of all that decides its result.

That is its task with all settings, the problems that it places (graph, cluster, times, groups), and
the keys of the trials that it needs. It is also the files of our packages that run it, and the
versions of others. Seconds are in records, not in keys.
"""

import ast
import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from placeto.trials.trials import Graph, Trial

# Packages that decide the results of trials. Capture has the cost models, by which CPU only is
# placed on a CPU that the problem lacks.
RUN_BY = (
    "placeto",
    "placeto_baselines",
    "placeto_capture",
    "placeto_graphs",
    "placeto_policy",
    "placeto_simulator",
)
INIT = "__init__.py"
LIBRARIES = ("networkx", "numba", "numpy", "pymetis", "pyscotch", "scipy", "torch")


def content_digest(value: object, problems: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 of a value: equal digests are equal values, in every process."""

    def content(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            told = {one.name: getattr(value, one.name) for one in fields(value)}
            if isinstance(value, Graph):
                told[""] = (problems or {})[value.name]
            return {type(value).__qualname__: told}
        if isinstance(value, msgspec.Struct):
            return {type(value).__qualname__: msgspec.structs.asdict(value)}
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:  # these are addresses
            hashed = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return [value.dtype.str, value.shape, hashed]
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise TypeError(f"expected a value whose content can be told, got {type(value)}")

    return hashlib.sha256(json.dumps(value, default=content, sort_keys=True).encode()).hexdigest()


def trial_keys(trials: Sequence[Trial], problems: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each trial by its name, of digests of the problems by name.

    Trials come in an order in which each comes after what it needs.
    """
    keys: dict[str, str] = {}
    libraries = {name: _version(name) for name in LIBRARIES}
    for trial in trials:
        own = getattr(trial.task, "modules", ())  # of a placer or an evaluator of a user
        packages = {*RUN_BY, type(trial.task).__module__.partition(".")[0], *own}
        decisive = (
            libraries,
            {name: files_digest(name) for name in packages},
            {name: imports_digest(name) for name in own if not os.path.isabs(name)},
            trial.task,
            [keys[name] for name in trial.needs],
        )
        keys[trial.name] = content_digest(decisive, problems)
    return keys


@cache
def files_digest(package: str) -> str:
    """Return the SHA-256 of the files of a package, a module or a path, such as sources.

    Its version would not tell the sources of one day from those of the next.
    """
    source = _file(package)
    folder = source if source.is_dir() else source.parent
    found = folder.rglob("*") if source == folder or source.name == INIT else [source]
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return content_digest(
        {path.relative_to(folder).as_posix(): _file_digest(path) for path in files}
    )


@cache
def imports_digest(module: str) -> str:
    """Return the SHA-256 of what a module of a user's own imports from beside it, and that imports.

    Files are read, and nothing is imported. An installed module has only libraries beside it.
    """
    source, found = _file(module), dict[str, str]()
    if source.suffix == ".py" and not {"site-packages", "dist-packages"} & {*source.parts}:
        root = source.parents[module.count(".") + (source.name == INIT)]
        left = [source]
        while left:
            path = left.pop()
            name = path.relative_to(root).as_posix()
            if name not in found:
                found[name] = _file_digest(path)
                for parts in _imported(path, name.split("/")[:-1]):
                    inner = [root.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
                    files = [file for one in inner for file in (one / INIT, Path(f"{one}.py"))]
                    left += [file for file in files if file.is_file()]
    return content_digest(found)


def _imported(path: Path, package: list[str]) -> Iterator[list[str]]:
    """Yield the modules that a file of a package may import, by the parts of their names."""
    with suppress(SyntaxError):  # of a file that nothing has imported so far
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                start = [*above, *(node.module.split(".") if node.module else [])]
                yield from ([*start, alias.name] for alias in node.names)


def _file(module: str) -> Path:
    """Return the path itself, or the file of a module; built-in ones and namespaces have none."""
    if os.path.isabs(module):
        return Path(module)
    return Path(getattr(importlib.import_module(module), "__file__", None) or os.devnull)


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
