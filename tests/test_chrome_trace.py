"""A simulated step, written as a trace, passes a strict reader of the Trace Event format."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from placeto_graphs.testing import example_problem
from placeto_simulator import Simulator

ROUNDING = 1e-6  # microseconds
REQUIRED = {"name": str, "ph": str, "pid": int, "tid": int, "ts": (int, float), "args": dict}
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
        assert event.keys() == REQUIRED.keys() | EXTRA[event["ph"]]
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
        for before, after in pairwise(sorted(slices)):
            assert before[0] <= before[1] <= after[0] + ROUNDING
    last = max(end for slices in tracks.values() for _, end in slices)
    assert last >= timeline.runtime * 1e6 - ROUNDING
    for device, name in enumerate(problem.cluster.device_names):
        times, held = timeline.memory(device)
        told = np.array(memory[f"{name} memory"]).T
        np.testing.assert_allclose(told[0], 1e6 * times)
        assert told[1].tolist() == held.tolist()
