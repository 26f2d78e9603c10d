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
    cluster = parse_cluster("3xv100", link="bus")
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


def test_a_trace_has_what_ran_and_the_memory_of_each_device(
    timeline: Timeline, tmp_path: Path
) -> None:
    timeline.to_chrome_trace(tmp_path / "trace.json")
    tracks = defaultdict(list)
    names: dict[int, str] = {}
    memory: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for event in strictly_read(tmp_path / "trace.json"):
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            memory[event["name"]].append((event["ts"], event["args"]["bytes"]))
        elif event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
    # Every device and bus has a named track, on which nothing overlaps.
    devices = timeline.problem.cluster.device_names
    assert sorted(names.values()) == sorted([*devices, *(f"{name} bus" for name in devices)])
    assert tracks.keys() <= names.keys()
    assert sum(map(len, tracks.values())) == len(timeline.op_start) + len(timeline.transfer_start)
    for slices in tracks.values():
        assert all(end >= start for start, end in slices)
        for before, after in pairwise(sorted(slices)):
            assert after[0] >= before[1] - ROUNDING
    last = max(end for slices in tracks.values() for _, end in slices)
    assert last >= timeline.runtime * 1e6 - ROUNDING
    for name, peak in zip(devices, timeline.peak_memory.tolist(), strict=True):
        times, held = zip(*memory[f"{name} memory"], strict=True)
        assert max(held) == peak
        assert all(before < after for before, after in pairwise(times))
