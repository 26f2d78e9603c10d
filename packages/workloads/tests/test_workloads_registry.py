"""Models by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto import load_model_graph
from placeto_graphs import DEFAULT_RULES, OpGraph, colocate
from placeto_workloads import MODELS, WorkloadError, model_names, registry, training_step

SMALL_NMT: dict[str, Any] = {"steps": 3, "batch_size": 4, "units": 6, "vocabulary_size": 9}
SMALL: dict[str, dict[str, Any]] = {
    "inception-v3": {"batch_size": 2, "image_size": 75, "num_classes": 5},
    "nasnet": {"batch_size": 2, "image_size": 32, "cells_per_stage": 1, "penultimate_filters": 96},
    "nmt-2": SMALL_NMT,
    "nmt-4": SMALL_NMT,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def forget_how_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> OpGraph:
        raise AssertionError("expected no capture")

    monkeypatch.setattr(registry, "capture_step", fail)


def test_the_published_sizes_are_the_defaults() -> None:
    nmt = {"steps": 32, "batch_size": 128, "units": 2400, "vocabulary_size": 32000}
    assert {name: dict(model.sizes) for name, model in MODELS.items()} == {
        "inception-v3": {"batch_size": 64, "image_size": 299, "num_classes": 1000},
        "nasnet": {
            "batch_size": 64,
            "image_size": 224,
            "num_classes": 1000,
            "cells_per_stage": 4,
            "penultimate_filters": 1056,
            "stem_filters": 32,
        },
        "nmt-2": nmt,
        "nmt-4": nmt,
    }


def test_every_model_says_what_it_is() -> None:
    assert model_names() == tuple(MODELS)
    assert model_names() == ("inception-v3", "nasnet", "nmt-2", "nmt-4")
    for name, model in MODELS.items():
        assert model.name == name
        assert len(model.description) > 20
        assert "\n" not in model.description


@pytest.mark.slow
@pytest.mark.parametrize("name", model_names())
def test_a_model_is_captured_with_all_its_parameters_and_modules(name: str) -> None:
    graph = load_model_graph(name, **SMALL[name])
    step = training_step(name, **SMALL[name])
    weights = dict(step.model.named_parameters())
    assert {
        op for op, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == "parameter"
    } == set(weights)
    paths = {path for path, _ in step.model.named_modules()}
    assert set(graph.scopes) <= {*paths, "loss"}
    unrolled = {path for path in paths if "step" in path}
    assert unrolled <= set(graph.scopes)


def test_the_number_of_layers_is_in_the_name() -> None:
    layers = {
        name: {
            scope.split(".")[1]
            for scope in load_model_graph(name, **SMALL_NMT).scopes
            if "layer" in scope
        }
        for name in ("nmt-2", "nmt-4")
    }
    assert layers == {
        "nmt-2": {"layer0", "layer1"},
        "nmt-4": {"layer0", "layer1", "layer2", "layer3"},
    }


def test_a_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_model_graph("nmt-2", **SMALL_NMT)
    forget_how_to_capture(monkeypatch)
    assert load_model_graph("nmt-2", **SMALL_NMT) == graph
    with pytest.raises(AssertionError, match="expected no capture"):
        load_model_graph("nmt-4", **SMALL_NMT)
    with pytest.raises(AssertionError, match="expected no capture"):
        load_model_graph("nmt-2", **{**SMALL_NMT, "units": 7})


def test_a_cpu_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    load_model_graph("nmt-2", **SMALL_NMT)
    forget_how_to_capture(monkeypatch)
    with pytest.raises(AssertionError, match="expected no capture"):
        load_model_graph("nmt-2", "cpu", SMALL_NMT)


def test_published_sizes_given_or_left_out_are_the_same_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def note(name: str, parameters: dict[str, object], _make: object) -> None:
        asked.append((name, parameters))

    monkeypatch.setattr(registry, "cached_graph", note)
    load_model_graph("nmt-2")
    load_model_graph("nmt-2", batch_size=128, units=np.int64(2400))  # type: ignore[arg-type]
    assert repr(asked[0]) == repr(asked[1])


@pytest.mark.parametrize("function", [load_model_graph, training_step])
def test_an_unknown_name_lists_the_known_ones(function: Any) -> None:
    with pytest.raises(
        WorkloadError,
        match=r"name: expected one of inception-v3, nasnet, nmt-2, nmt-4, got 'resnet'",
    ):
        function("resnet")


@pytest.mark.parametrize("function", [load_model_graph, training_step])
@pytest.mark.parametrize("size", ["image_size", "layers", "device_count"])
def test_an_unknown_size_lists_the_known_ones(function: Any, size: str) -> None:
    known = "steps, batch_size, units, vocabulary_size"
    with pytest.raises(WorkloadError, match=f"nmt-2: expected sizes among {known}, got '{size}'"):
        function("nmt-2", **{size: 3})


def test_sizes_that_make_no_network_name_the_layer(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"image_size=10.* layer 'network\.stem\.pool_1'"):
        load_model_graph("inception-v3", image_size=10)
    assert not (tmp_path / "graphs").exists()


def test_a_size_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(WorkloadError, match="steps: expected an integer from 1 to"):
        load_model_graph("nmt-2", steps=1.5)  # type: ignore[arg-type]


def test_the_rules_of_a_model_leave_its_time_steps_apart() -> None:
    sizes = {"steps": 8, "batch_size": 2, "units": 4, "vocabulary_size": 9}
    graph = load_model_graph("nmt-2", **sizes)
    by_rules = colocate(graph, MODELS["nmt-2"].colocation_rules)
    assert by_rules.num_groups > 4 * colocate(graph, DEFAULT_RULES).num_groups
    assert MODELS["inception-v3"].colocation_rules == DEFAULT_RULES
