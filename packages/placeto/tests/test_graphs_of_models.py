"""Graphs of models and families: what they hold; a cache that is never in the way, never stale."""

import ast
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

from exported_models import Chain, features, mean_square
from placeto import family_graph, load_model_graph
from placeto.problems import models
from placeto.problems.models import cache_folder, cached_graph
from placeto.problems.options import SourceOptions
from placeto.problems.sources import Batches, source_model
from placeto_capture import capture
from placeto_graphs import DEFAULT_RULES, OpGraph, colocate, from_networkx
from placeto_workloads import MODELS, WorkloadError, family

GRAPH = from_networkx(nx.path_graph(4, create_using=nx.DiGraph))
OTHER_GRAPH = from_networkx(nx.path_graph(5, create_using=nx.DiGraph))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def never() -> OpGraph:
    raise AssertionError("expected the graph to come from the cache")


def making(graph: OpGraph) -> Callable[[], OpGraph]:
    return lambda: graph


def with_warning() -> OpGraph:
    warnings.warn("its times are too high", stacklevel=1)
    return GRAPH


def only_file(folder: Path) -> Path:
    (path,) = (folder / "graphs").iterdir()
    return path


def test_graphs_of_two_batches_tell_those_of_all_others() -> None:
    captured_samples: list[int] = []

    def captured(samples: int) -> OpGraph:
        captured_samples.append(samples)
        return capture(Chain(), features(samples), loss_fn=mean_square)

    batches = Batches(lambda: 8, captured)
    graphs = {samples: batches.graph(samples) for samples in (8, 4, 6, 3, 2, 1, 8)}
    assert captured_samples == [8, 4, 1]
    for samples, graph in graphs.items():
        assert graph == captured(samples)


class Pairs(nn.Module):
    """Compares each sample with all others, as contrastive losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        codes: torch.Tensor = self.layer(images)
        return codes @ codes.T


def test_batches_of_pairs_of_samples_are_captured() -> None:
    captured_samples: list[int] = []

    def captured(samples: int) -> OpGraph:
        captured_samples.append(samples)
        return capture(Pairs(), torch.ones(samples, 8), loss_fn=mean_square)

    batches = Batches(lambda: 64, captured)
    for samples in (64, 32, 16):
        batches.graph(samples)
    assert captured_samples == [64, 32, 16]


def test_batches_of_other_ops_are_captured() -> None:
    graphs = {3: GRAPH, 4: OTHER_GRAPH, 5: GRAPH}
    batches = Batches(lambda: 4, graphs.__getitem__)
    assert {samples: batches.graph(samples) for samples in graphs} == graphs


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
    name: str, parameters: dict[str, object], version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cached_graph("path", {"length": 4}, making(GRAPH)) is GRAPH
    with monkeypatch.context() as patched:
        if version:
            patched.setattr(models, "version", lambda _: version)
        assert cached_graph(name, parameters, making(OTHER_GRAPH)) == OTHER_GRAPH
    assert cached_graph("path", {"length": 4}, never) == GRAPH


def test_a_warning_of_a_graph_is_shown_each_time() -> None:
    for _ in range(2):
        with pytest.warns(UserWarning, match="its times are too high"):
            assert cached_graph("path", {}, with_warning) == GRAPH


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
    packages_outside = {name for name in imported if not name.startswith(models.SOURCES)}
    assert packages_outside <= {
        "placeto_graphs",
        "placeto_capture.errors",
        "placeto_workloads.errors",
    }
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


SMALL_NMT: dict[str, Any] = {"steps": 3, "batch_size": 4, "units": 6, "vocabulary_size": 9}
SMALL_FAMILIES: dict[str, dict[str, Any]] = {
    "nmt": {"units": 4, "vocabulary_size": 10},
    "ptb": {"units": 4, "vocabulary_size": 10},
    "cifar10": {"filters": 4},
}


def forget_how_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_how: object) -> OpGraph:
        raise AssertionError("expected no capture")

    for module in ("models", "sources"):
        monkeypatch.setattr(f"placeto.problems.{module}.capture_step", fail)


def test_a_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(fraction: float | None = None) -> OpGraph:
        choice = SourceOptions(SMALL_NMT, mask_fraction=fraction, autocast="bfloat16")
        return source_model("nmt-2", choice).source("gpu").graph

    graphs = [load_model_graph("nmt-2", **SMALL_NMT), mixed()]
    forget_how_to_capture(monkeypatch)
    assert [load_model_graph("nmt-2", **SMALL_NMT), mixed()] == graphs
    assert "bfloat16" in {*graphs[1].dtype} - {*graphs[0].dtype}
    with pytest.raises(AssertionError, match="expected no capture"):
        mixed(0.5)
    for name, target, sizes in (
        ("nmt-4", "gpu", SMALL_NMT),
        ("nmt-2", "cpu", SMALL_NMT),
        ("nmt-2", "gpu", {**SMALL_NMT, "units": 7}),
        ("nmt-2", "gpu", {**SMALL_NMT, "autocast": torch.float16}),
    ):
        with pytest.raises(AssertionError, match="expected no capture"):
            load_model_graph(name, target, **sizes)  # type: ignore[arg-type]


def test_the_rules_of_a_model_leave_its_time_steps_apart() -> None:
    sizes: dict[str, Any] = {"steps": 8, "batch_size": 2, "units": 4, "vocabulary_size": 9}
    graph = load_model_graph("nmt-2", **sizes)
    by_rules = colocate(graph, MODELS["nmt-2"].colocation_rules)
    assert by_rules.num_groups > 4 * colocate(graph, DEFAULT_RULES).num_groups
    assert MODELS["inception-v3"].colocation_rules == DEFAULT_RULES


def test_what_makes_no_graph_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    refused: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("inception-v3", {"image_size": 10}, r"image_size=10, .*sizes that make a network, got"),
        ("resnet", {}, "expected one of "),
        ("nmt-2", {"layers": 3}, "expected sizes among "),
        ("nmt-2", {**SMALL_NMT, "target": "cpu"}, "expected sizes among "),
    )
    for name, sizes, error in refused:
        with pytest.raises(WorkloadError, match=error):
            load_model_graph(name, **sizes)
    assert not (tmp_path / "graphs").exists()


def test_a_family_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    member, another_member = family("ptb", units=4, vocabulary_size=10).training[:2]
    member = replace(member, sizes={**member.sizes, "steps": 3})
    graph = family_graph(member)
    forget_how_to_capture(monkeypatch)
    assert family_graph(member) == graph
    same_sizes = replace(another_member, sizes=member.sizes)  # but another cell
    changed_arguments: tuple[dict[str, Any], ...] = (
        {"member": same_sizes},
        {"member": member, "target": "cpu"},
        {"member": member, "autocast": torch.float16},
    )
    for arguments in changed_arguments:
        with pytest.raises(AssertionError, match="expected no capture"):
            family_graph(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split", "groups"),
    [("nmt", "test", 160), ("ptb", "training", 128), ("cifar10", "test", 128)],
)
def test_graphs_of_a_family_have_the_groups_of_the_paper(
    name: str, split: str, groups: int
) -> None:
    chosen = family(name, **SMALL_FAMILIES[name])
    member = getattr(chosen, split)[0]
    few = {"steps": 8} if "steps" in member.sizes else {}
    member = replace(member, sizes={**member.sizes, **few})
    graph = family_graph(member)
    grouping = chosen.grouping(graph)
    assert grouping.num_groups == chosen.num_groups == groups
    assert np.bincount(grouping.group_of).max() < 0.25 * graph.num_ops
    steps = {scope for scope in graph.scopes if "softmax.step" in scope}
    assert len(steps) == member.sizes.get("steps", 0)
    if few:  # single consumers would join the steps of a recurrent network
        assert colocate(graph).num_groups < groups / 2
        assert colocate(graph, chosen.colocation_rules).num_groups > 3 * groups
