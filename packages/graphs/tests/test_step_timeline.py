"""A step as data: shares of busy time, memory over time and names of transfers, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from placeto_graphs import Cluster, Device, OpGraph, PlacementProblem, StepTimeline


@pytest.fixture
def timeline() -> StepTimeline:
    """Return a measured step of 10 s: op `a` on device 0 has three readers on device 1.

    Of its tensors, of 10, 20 and 30 bytes, the first is on its way while the others start and
    arrive. A latency of half a second follows each.
    """
    graph = OpGraph(
        op_names=("a", "b"),
        parameter_bytes=np.array([100, 0]),
        tensor_producer=np.zeros(3, np.int32),
        tensor_bytes=np.array([10, 20, 30]),
        edges=np.array([[0, 1], [1, 1], [2, 1]], np.int32),
    )
    cluster = Cluster(
        devices=tuple(Device(name, "gpu", 1000, 0.0, 0.0) for name in ("gpu:0", "gpu:1")),
        bandwidth=np.full((2, 2), 1e9),
        latency=np.full((2, 2), 0.5),
    )
    return StepTimeline(
        problem=PlacementProblem(graph=graph, cluster=cluster, compute_time=np.ones((2, 2))),
        op_device=np.array([0, 1], np.int32),
        op_start=np.array([0.0, 8.0]),
        op_end=np.array([1.0, 10.0]),
        transfer_tensor=np.array([1, 2, 0], np.int32),
        transfer_source=np.zeros(3, np.int32),
        transfer_destination=np.ones(3, np.int32),
        transfer_link=np.zeros(3, np.int32),
        transfer_start=np.array([2.0, 4.0, 1.0]),
        transfer_end=np.array([3.5, 5.5, 7.5]),
        memory_time=np.array([0.0, 2.0, 2.0, 8.0]),
        memory_device=np.array([0, 0, 0, 1], np.int32),
        memory_bytes=np.array([60, -20, 5, 7]),
    )


def test_a_resource_is_busy_as_long_as_anything_is_on_it(timeline: StepTimeline) -> None:
    """The first transfer leaves its link from 1 s to 7 s, and the others in between."""
    assert timeline.runtime == 10.0
    assert timeline.transfer_sent.tolist() == [3.0, 5.0, 7.0]
    assert timeline.device_busy.tolist() == [0.1, 0.2]
    assert timeline.link_busy.tolist() == [0.6, 0.0]
    assert timeline.device_sending.tolist() == [0.6, 0.0]


def test_memory_changes_once_at_a_time(timeline: StepTimeline) -> None:
    """Weights are there from the beginning; of 2 s only the sum of both changes counts."""
    times, num_bytes = timeline.memory(0)
    assert times.tolist() == [0.0, 2.0]
    assert num_bytes.tolist() == [160, 145]
    assert timeline.peak_memory.tolist() == [160, 7]


def test_a_trace_has_a_slice_for_each_op_and_transfer(
    timeline: StepTimeline, tmp_path: Path
) -> None:
    timeline.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(slices) == {"a", "b", "a:0 -> gpu:1", "a:1 -> gpu:1", "a:2 -> gpu:1"}
    # Tracks are the devices, and then the links; the slice of a transfer ends when it has left.
    transfer = slices["a:0 -> gpu:1"]
    assert [transfer[key] for key in ("tid", "ts", "dur")] == [3, 1e6, 6e6]
    assert transfer["args"] == {"bytes": 10}
    assert slices["b"]["tid"] == 2
