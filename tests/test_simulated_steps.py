"""Simulated steps: pipelines as GPipe says, and traces."""

import json
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpipe_pipelines import Pipeline
from placeto import capture_step, load_model_graph
from placeto.placing.placers import expert_scopes
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto_baselines import ExpertPlacer, LocalSearch, SingleDevice
from placeto_capture import cost_model
from placeto_graphs import DEVICE_KINDS, OpGraph, parse_cluster
from placeto_graphs.testing import example_problem
from placeto_simulator import Simulator
from placeto_workloads import MODELS, library_step


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 32),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["fifo", "backward-first"]),
)
def test_no_step_is_faster_than_gpipe(
    stages: int, count: int, backward_seconds: float, ops_per_layer: int, queue: str
) -> None:
    pipeline = Pipeline(stages, count, backward_seconds, ops_per_layer=ops_per_layer, queue=queue)
    seconds = pipeline.simulated().runtime[0]
    gpipe_seconds = (count + stages - 1) * (1 + backward_seconds)
    assert seconds >= gpipe_seconds
    loses_nothing = queue == "backward-first" or ops_per_layer == 1
    if loses_nothing and backward_seconds != 0.5:
        assert seconds == gpipe_seconds


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 32), st.sampled_from([1, 2]), st.sampled_from([1, 3]))
def test_schedules_take_and_hold_what_they_say(
    stages: int, count: int, backward: int, ops_per_layer: int
) -> None:
    """Outputs of 1 kB, of which a stage holds one for each op and micro-batch, and a few more."""
    expected = {"gpipe": [count] * stages}
    expected["1f1b"] = [min(count, stages - stage) for stage in range(stages)]
    for schedule, num_outputs in expected.items():
        pipeline = Pipeline(stages, count, backward, 1e-6, ops_per_layer, schedule=schedule)
        costs = pipeline.simulated()
        gpipe_seconds = (count + stages - 1) * (1 + backward)
        assert gpipe_seconds <= costs.runtime[0] <= gpipe_seconds + 1e-4
        outputs = costs.peak_memory[0] / 1000
        assert (ops_per_layer * np.array(num_outputs) <= outputs).all()
        assert (outputs <= ops_per_layer * np.array(num_outputs) + min(count, 3) + 2).all()


@pytest.mark.parametrize("stages", [2, 4])
def test_memory_grows_with_the_micro_batches_in_flight(stages: int) -> None:
    """First in, first out starts all; backward first, until the first of them comes back."""
    for count in (16, 32):
        fifo, backward_first = (
            Pipeline(stages, count, 1.0, transfer_seconds=1e-6, queue=queue).simulated()
            for queue in ("fifo", "backward-first")
        )
        assert fifo.peak_memory[0, 0] > 1000 * count
        assert backward_first.peak_memory[0, 0] == 1000 * (3 * stages - 1)


ROUNDING = 1e-6  # microseconds
REQUIRED: dict[str, Any] = {"name": str, "ph": str, "pid": int, "tid": int, "args": dict}
EXTRA: dict[str, set[str]] = {"X": {"dur", "cat"}, "C": set(), "M": set()}


def test_a_trace_has_what_ran_and_the_memory_of_each_device(tmp_path: Path) -> None:
    problem = example_problem()
    placement = np.random.default_rng(0).integers(0, 3, problem.num_groups, np.int32)
    timeline = Simulator(problem).timeline(placement)
    timeline.to_chrome_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document.keys() == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    tracks, memory, names = defaultdict(list), defaultdict(list), {}
    for event in document["traceEvents"]:
        assert all(isinstance(event[key], kind) for key, kind in REQUIRED.items()), event
        assert event.keys() == REQUIRED.keys() | {"ts"} | EXTRA[event["ph"]]
        assert 0 <= event["ts"] < np.inf
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            memory[event["name"]].append((event["ts"], event["args"]["bytes"]))
        elif event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
    # Every device and link has a named track, on which nothing overlaps.
    assert sorted(names.values()) == sorted(
        [*problem.cluster.device_names, *problem.cluster.link_names]
    )
    assert tracks.keys() <= names.keys()
    assert sum(map(len, tracks.values())) == len(timeline.op_start) + len(timeline.transfer_start)
    for slices in tracks.values():
        for earlier, later in pairwise(sorted(slices)):
            assert earlier[0] <= earlier[1] <= later[0] + ROUNDING
    last = max(end for slices in tracks.values() for _, end in slices)
    assert last >= timeline.runtime * 1e6 - ROUNDING
    for device, name in enumerate(problem.cluster.device_names):
        times, held_bytes = timeline.memory(device)
        traced_memory = np.array(memory[f"{name} memory"]).T
        np.testing.assert_allclose(traced_memory[0], 1e6 * times)
        assert traced_memory[1].tolist() == held_bytes.tolist()


# Published results: steps of the paper and of an RTX 3090, and what one K80 has no memory for.


def step_seconds(graph: OpGraph, kind: str) -> float:
    seconds = cost_model(graph, kind)
    return float(seconds.sum() + np.count_nonzero(seconds) * DEVICE_KINDS[kind].op_overhead)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model", "published"),
    [
        ("k80", "inception-v3", 1.56),
        ("k80", "nasnet", 1.28),
        ("cpu", "inception-v3", 12.5),
        ("cpu", "nasnet", 37.5),
    ],
)
def test_a_step_on_one_device_takes_about_as_long_as_published(
    kind: str, model: str, published: float
) -> None:
    assert step_seconds(load_model_graph(model), kind) == pytest.approx(published, rel=0.02)


REGNETY_032 = {"hidden_sizes": [72, 216, 576, 1512], "depths": [2, 5, 13, 1], "groups_width": 24}


@pytest.mark.parametrize(
    ("model", "sizes", "batch", "images_per_second"),
    [
        ("regnet", REGNETY_032, 384, 696.58),  # grouped convolutions
        pytest.param("convnext", {}, 256, 819.24, marks=pytest.mark.slow),  # depthwise ones
        pytest.param("mobilenet_v2", {}, 512, 2313.1, marks=pytest.mark.slow),
    ],
)
def test_training_in_half_precision_is_as_fast_as_published(
    model: str, sizes: dict[str, Any], batch: int, images_per_second: float
) -> None:
    step = library_step(f"transformers:{model}", batch_size=batch, **sizes)
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    graph = capture_step(step._replace(optimizer=make), autocast=torch.float16)
    published = batch / images_per_second
    assert step_seconds(graph, "rtx3090") == pytest.approx(published, rel=0.35)


@pytest.mark.slow
def test_translation_on_one_gpu_or_by_an_expert_runs_out_of_memory() -> None:
    model = "nmt-2"
    source = Source(model, load_model_graph(model), rules=MODELS[model].colocation_rules)
    problem = make_problem(source, parse_cluster("1xcpu+2xk80"))
    expert = ExpertPlacer(expert_scopes(problem.graph.scopes))
    placers = SingleDevice(), expert, LocalSearch(max_evaluations=300)
    placed = (placer.place(problem, Simulator(problem)) for placer in placers)
    assert [result.fits(problem.cluster) for result in placed] == [False, False, True]
