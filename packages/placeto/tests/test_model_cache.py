"""The cache of captured graphs: never in the way, never stale."""

import ast
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import networkx as nx
import pytest

from placeto.problems import models
from placeto.problems.models import cache_folder, cached_graph
from placeto_graphs import OpGraph, from_networkx

GRAPH = from_networkx(nx.path_graph(4, create_using=nx.DiGraph))
OTHER_GRAPH = from_networkx(nx.path_graph(5, create_using=nx.DiGraph))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def never() -> OpGraph:
    raise AssertionError("expected the graph to come from the cache")


def making(graph: OpGraph) -> Callable[[], OpGraph]:
    return lambda: graph


def only_file(folder: Path) -> Path:
    (path,) = (folder / "graphs").iterdir()
    return path


@pytest.mark.parametrize(
    ("name", "parameters", "version"),
    [
        ("road", {"length": 4}, None),
        ("path", {"length": 5}, None),
        ("path", {"size": 4}, None),
        ("path", {}, None),
        ("path", {"length": 4}, "99.0"),
    ],
)
def test_a_graph_is_made_once_for_each_name_parameter_and_version(
    name: str,
    parameters: dict[str, object],
    version: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cached_graph("path", {"length": 4}, making(GRAPH)) is GRAPH
    with monkeypatch.context() as other:
        if version:
            other.setattr("torch.__version__", version)
        assert cached_graph(name, parameters, making(OTHER_GRAPH)) == OTHER_GRAPH
    assert cached_graph("path", {"length": 4}, never) == GRAPH


@pytest.mark.parametrize("changed", ["module.py", "more.py"])
def test_another_source_makes_the_graph_anew(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"sources_{changed[:4]}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "module.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(models, "SOURCES", (package.name,))
    models._source_digest.cache_clear()
    cached_graph("path", {}, making(GRAPH))
    assert cached_graph("path", {}, never) == GRAPH
    (package / changed).write_text("x = 2")
    models._source_digest.cache_clear()  # as in another process
    assert cached_graph("path", {}, making(OTHER_GRAPH)) == OTHER_GRAPH
    models._source_digest.cache_clear()


def test_the_sources_import_no_others_of_our_packages_but_errors_and_the_schema() -> None:
    files = [path for name in models.SOURCES for path in Path(str(resources.files(name))).iterdir()]
    imported = {
        str(node.module)
        for path in files
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("placeto")
    }
    others = {name for name in imported if not name.startswith(models.SOURCES)}
    assert others <= {"placeto_graphs", "placeto_capture.errors", "placeto_workloads.errors"}
    assert "placeto_capture.tracing.tracer" in imported


def test_graphs_that_were_used_longest_ago_make_room_but_none_for_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in enumerate(("c", "b", "a")):
        cached_graph(name, {}, making(GRAPH))
        (path,) = (tmp_path / "graphs").glob(f"{name}-*")
        os.utime(path, ns=(0, 10**9 * (5 - age)))  # c was used last, a longest ago
        size = path.stat().st_size
    cached_graph("a", {}, never)  # now a was
    monkeypatch.setattr(models, "MOST_BYTES", 3 * size + 50)
    cached_graph("d", {}, making(GRAPH))
    cached_graph("large", {}, making(from_networkx(nx.path_graph(1000, nx.DiGraph))))
    assert sorted(path.name[0] for path in (tmp_path / "graphs").iterdir()) == ["a", "c", "d"]


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08\x00", None])
def test_a_damaged_file_is_mended(content: bytes | None, tmp_path: Path) -> None:
    cached_graph("path", {}, making(GRAPH))
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    assert cached_graph("path", {}, making(GRAPH)) == GRAPH
    assert cached_graph("path", {}, never) == GRAPH
    path.unlink()
    path.mkdir()  # cannot be read
    assert cached_graph("path", {}, making(GRAPH)) == GRAPH


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PLACETO_CACHE_DIR": "/own"}, "/own/graphs"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/placeto/graphs"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home"}, "/home/.cache/placeto/graphs"),
        ({"HOME": "/home"}, "/home/.cache/placeto/graphs"),
        ({}, "None"),
        ({"PLACETO_CACHE_DIR": __file__}, f"{__file__}/graphs"),  # no folder
    ],
)
def test_where_the_cache_is_and_that_it_is_done_without(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    for name in ("PLACETO_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if "HOME" not in variables:
        monkeypatch.setattr(Path, "home", no_home)
    assert str(cache_folder()) == expected
    if expected in ("None", f"{__file__}/graphs"):
        assert cached_graph("path", {}, making(GRAPH)) == GRAPH

        def fail() -> OpGraph:
            raise OSError("of the capture, not of the cache")

        with pytest.raises(OSError, match="of the capture"):
            cached_graph("path", {}, fail)
