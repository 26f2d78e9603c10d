"""A simulated step, written as a trace, passes a strict reader of the Trace Event format."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_runs import profile
from placeto_graphs import (
    PlacementProblem,
    load_pipedream_profile,
    measured_compute_time,
    parse_cluster,
)
from placeto_simulator import Simulator, Timeline

ROUNDING = 1e-6  # microseconds
REQUIRED: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "ph": str,
    "pid": int,
    "tid": int,
    "ts": (int, float),
    "args": dict,
}


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    (tmp_path / "graph.txt").write_text(profile(30))
    graph = load_pipedream_profile(tmp_path / "graph.txt")
    cluster = parse_cluster("3xv100")
    problem = PlacementProblem(
        graph=graph, cluster=cluster, compute_time=measured_compute_time(graph, cluster)
    )
    placement = np.random.default_rng(0).integers(0, 3, problem.num_groups, np.int32)
    return Simulator(problem).timeline(placement)


def strictly_read(path: Path) -> list[dict[str, Any]]:
    """Read a trace, and refuse whatever the format does not define."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(path.read_text(), parse_constant=refuse)
    assert document.keys() == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        assert all(isinstance(event[key], kind) for key, kind in REQUIRED.items()), event
        assert event["ts"] >= 0
        extra = {"X": {"dur", "cat"}, "C": set(), "M": set()}[event["ph"]]
        assert event.keys() == REQUIRED.keys() | extra
    return events


def test_slices_have_durations_and_do_not_overlap_within_a_track(
    timeline: Timeline, tmp_path: Path
) -> None:
    timeline.to_chrome_trace(tmp_path / "trace.json")
    tracks = defaultdict(list)
    for event in strictly_read(tmp_path / "trace.json"):
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, tracks.values())) == len(timeline.op_start) + len(timeline.transfer_start)
    for slices in tracks.values():
        for before, after in pairwise(sorted(slices)):
            assert after[0] >= before[1] - ROUNDING
    last = max(end for slices in tracks.values() for _, end in slices)
    assert last >= timeline.runtime * 1e6 - ROUNDING


def test_every_device_and_bus_has_a_named_track(timeline: Timeline, tmp_path: Path) -> None:
    timeline.to_chrome_trace(tmp_path / "trace.json")
    events = strictly_read(tmp_path / "trace.json")
    named = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    devices = timeline.problem.cluster.device_names
    assert sorted(named.values()) == sorted([*devices, *(f"{name} bus" for name in devices)])
    assert {event["tid"] for event in events if event["ph"] == "X"} <= named.keys()


def test_counters_show_the_memory_of_each_device(timeline: Timeline, tmp_path: Path) -> None:
    timeline.to_chrome_trace(tmp_path / "trace.json")
    peaks: dict[str, int] = defaultdict(int)
    times: dict[str, list[float]] = defaultdict(list)
    for event in strictly_read(tmp_path / "trace.json"):
        if event["ph"] == "C":
            peaks[event["name"]] = max(peaks[event["name"]], event["args"]["bytes"])
            times[event["name"]].append(event["ts"])
    names = timeline.problem.cluster.device_names
    assert [peaks[f"{name} memory"] for name in names] == timeline.peak_memory.tolist()
    assert all(before < after for row in times.values() for before, after in pairwise(row))
