"""Graphs of registered models and of families: what they hold, and that they are captured once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto import family_graph, load_model_graph
from placeto_graphs import DEFAULT_RULES, OpGraph, colocate
from placeto_workloads import MODELS, WorkloadError, family

SMALL_NMT: dict[str, Any] = {"steps": 3, "batch_size": 4, "units": 6, "vocabulary_size": 9}
SMALL_FAMILIES: dict[str, dict[str, Any]] = {
    "nmt": {"units": 4, "vocabulary_size": 10},
    "ptb": {"units": 4, "vocabulary_size": 10},
    "cifar10": {"filters": 4},
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def forget_how_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> OpGraph:
        raise AssertionError("expected no capture")

    monkeypatch.setattr("placeto.problems.models.capture_step", fail)


def test_a_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_model_graph("nmt-2", **SMALL_NMT)
    forget_how_to_capture(monkeypatch)
    assert load_model_graph("nmt-2", **SMALL_NMT) == graph
    for name, target, sizes in (
        ("nmt-4", "gpu", SMALL_NMT),
        ("nmt-2", "cpu", SMALL_NMT),
        ("nmt-2", "gpu", {**SMALL_NMT, "units": 7}),
    ):
        with pytest.raises(AssertionError, match="expected no capture"):
            load_model_graph(name, target, **sizes)  # type: ignore[arg-type]


def test_published_sizes_given_or_left_out_are_the_same_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def note(name: str, parameters: dict[str, object], _make: object) -> None:
        asked.append((name, parameters))

    monkeypatch.setattr("placeto.problems.models.cached_graph", note)
    load_model_graph("nmt-2")
    load_model_graph("nmt-2", batch_size=128, units=np.int64(2400))  # type: ignore[arg-type]
    assert repr(asked[0]) == repr(asked[1])


def test_the_rules_of_a_model_leave_its_time_steps_apart() -> None:
    sizes = {"steps": 8, "batch_size": 2, "units": 4, "vocabulary_size": 9}
    graph = load_model_graph("nmt-2", **sizes)
    by_rules = colocate(graph, MODELS["nmt-2"].colocation_rules)
    assert by_rules.num_groups > 4 * colocate(graph, DEFAULT_RULES).num_groups
    assert MODELS["inception-v3"].colocation_rules == DEFAULT_RULES


def test_what_makes_no_graph_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    for name, sizes, error in (
        ("inception-v3", {"image_size": 10}, r"image_size=10, .*sizes that make a network, got"),
        ("resnet", {}, "expected one of "),
        ("nmt-2", {"layers": 3}, "expected sizes among "),
    ):
        with pytest.raises(WorkloadError, match=error):
            load_model_graph(name, **sizes)
    assert not (tmp_path / "graphs").exists()


def test_a_family_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    member, other = family("ptb", units=4, vocabulary_size=10).training[:2]
    member = replace(member, sizes={**member.sizes, "steps": 3})
    graph = family_graph(member)
    forget_how_to_capture(monkeypatch)
    assert family_graph(member) == graph
    same_sizes = replace(other, sizes=member.sizes)  # but another cell
    with pytest.raises(AssertionError, match="expected no capture"):
        family_graph(same_sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "groups"),
    [("nmt", "test", 160), ("ptb", "training", 128), ("cifar10", "test", 128)],
)
def test_graphs_of_a_family_have_the_groups_of_the_paper(name: str, part: str, groups: int) -> None:
    chosen = family(name, **SMALL_FAMILIES[name])
    member = getattr(chosen, part)[0]
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
