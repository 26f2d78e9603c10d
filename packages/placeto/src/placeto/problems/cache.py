"""Captured graphs, kept in the user's cache folder, those that were used last.

The folder may be deleted at any time. A file that is damaged, or a folder that cannot be written,
costs a capture and nothing else.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from placeto_graphs import GraphError, OpGraph, load_graph, save_graph

FOLDER_VARIABLE = "PLACETO_CACHE_DIR"
MOST_BYTES = 2 * 10**9  # of all graphs
# What decides how a graph comes out: the rest of the packages may change and the graphs stay valid.
SOURCES = ("placeto_capture.costs", "placeto_capture.tracing", "placeto_workloads.models")


def cached_graph(
    name: str, parameters: Mapping[str, object], make: Callable[[], OpGraph]
) -> OpGraph:
    """Return a graph from the cache; make it and keep it, if it is not there.

    The name is letters, digits and hyphens, as it is part of a file name. Parameters are all else
    that decides what graph it is, with the same ``repr`` in every process. The version of PyTorch
    and the sources of the tracer and the models count anyway.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    path = folder / f"{name}-{_key(name, parameters)}.json.gz"
    with suppress(OSError, GraphError):
        graph = load_graph(path)
        with suppress(OSError):
            os.utime(path)
        return graph
    graph = make()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
        _make_room(folder)
    return graph


def cache_folder() -> Path | None:
    """Return the folder of captured graphs, or None where the user has no home.

    That is ``$PLACETO_CACHE_DIR/graphs``, else ``$XDG_CACHE_HOME/placeto/graphs``, else
    ``~/.cache/placeto/graphs``.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named) / "graphs"
    of_system = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if of_system.is_absolute():  # the XDG specification wants others ignored
        return of_system / "placeto" / "graphs"
    try:
        return Path.home() / ".cache" / "placeto" / "graphs"
    except RuntimeError:
        return None


def _make_room(folder: Path) -> None:
    """Delete graphs beyond `MOST_BYTES`: those used longest ago, and one that alone is larger."""
    files = {path: path.stat() for path in folder.glob("*.json.gz")}
    total = 0
    for path in sorted(files, key=lambda path: files[path].st_mtime_ns, reverse=True):
        if total + files[path].st_size <= MOST_BYTES:
            total += files[path].st_size
        else:
            path.unlink(missing_ok=True)  # another process may have deleted it


def _key(name: str, parameters: Mapping[str, object]) -> str:
    described = {
        "name": name,
        "parameters": {key: repr(value) for key, value in parameters.items()},
        "torch": str(torch.__version__),
        "source": _source_digest(),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        folder = resources.files(name)
        for path in sorted(Path(str(folder)).rglob("*.py")):
            digest.update(f"{name}/{path.relative_to(str(folder)).as_posix()}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
