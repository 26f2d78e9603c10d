from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from test_simulator import two_chains

from placeto_simulator import Simulator, Timeline
from simulated_problems import Placed, in_weights, placed_problems


def timeline_of(placed: Placed) -> Timeline:
    problem, placements = placed
    return Simulator(problem, num_threads=1).timeline(placements[0])


@given(placed_problems())
def test_memory_over_time_has_the_peaks_that_evaluate_gives(placed: Placed) -> None:
    problem, placements = placed
    timeline = timeline_of(placed)
    peaks = Simulator(problem, num_threads=1).evaluate(placements[:1]).peak_memory[0]
    for device in range(problem.num_devices):
        times, num_bytes = timeline.memory(device)
        assert times[0] == 0
        assert (np.diff(times) > 0).all()
        assert num_bytes.min() >= 0
        assert num_bytes.max() == peaks[device]
        graph, on_device = problem.graph, timeline.op_device == device
        held_tensors = [t for t in graph.held_tensors if on_device[graph.tensor_producer[t]]]
        sizes = [graph.tensor_bytes[t] for t in held_tensors if not in_weights(graph, t)]
        assert num_bytes[-1] == graph.parameter_bytes[on_device].sum() + sum(sizes)


@given(placed_problems())
def test_the_critical_path_leads_from_beginning_to_end_without_a_gap(placed: Placed) -> None:
    problem, timeline = placed[0], timeline_of(placed)
    path = timeline.critical_path
    assert path[0].start == 0
    assert path[0].waits_for == "nothing"
    assert path[-1].end == timeline.runtime
    for previous, step in pairwise(path):
        assert step.waits_for != "nothing"
        free = previous.end
        if step.waits_for == "resource":
            assert previous.kind == step.kind
            if step.kind == "op":
                device = problem.cluster.devices[timeline.op_device[step.index]]
                took_time = (
                    problem.compute_time[previous.index, timeline.op_device[previous.index]] > 0
                )
                free += device.op_overhead if took_time else 0.0
            else:
                source = timeline.transfer_source[previous.index]
                way = source, timeline.transfer_destination[previous.index]
                size = problem.graph.tensor_bytes[timeline.transfer_tensor[previous.index]]
                free = previous.start + size / problem.cluster.bandwidth[way]
                free += problem.cluster.devices[source].transfer_overhead
                assert previous.end == min(free, timeline.transfer_end[previous.index])
        assert step.start == free


def test_a_link_that_carries_two_tensors_at_once_is_busy_once() -> None:
    """Simulated links carry one at a time; a real one takes the second before the first is over."""
    timeline = Simulator(two_chains()).timeline(np.array([0, 0, 1, 1], np.int32))
    starts, ends = np.array([2.0, 1.0]), np.array([2.5, 4.125])  # of which 0.125 is latency
    real = replace(timeline, transfer_start=starts, transfer_end=ends)
    assert real.link_busy.tolist() == [3 / 5.625, 0]
    assert real.device_sending.tolist() == [3 / 5.625, 0]


def test_a_timeline_by_hand() -> None:
    timeline = Simulator(two_chains()).timeline(np.array([0, 0, 1, 1], np.int32))
    assert timeline.op_start.tolist() == [0, 1.25, 2.125, 4.625]
    assert timeline.transfer_start.tolist() == [1, 2.5]
    assert timeline.transfer_end.tolist() == [2.125, 4.625]
    assert timeline.device_busy.tolist() == [2 / 5.625, 2 / 5.625]
    assert timeline.link_busy.tolist() == [3 / 5.625, 0]
    path = [(step.kind, step.index, step.waits_for) for step in timeline.critical_path]
    assert path == [
        ("op", 0, "nothing"),
        ("transfer", 0, "input"),
        ("transfer", 1, "resource"),
        ("op", 3, "input"),
    ]
    times, num_bytes = timeline.memory(1)
    assert times.tolist() == [0, 1, 2.125, 2.5, 3.125, 4.625, 5.625]
    assert num_bytes.tolist() == [0, 10, 17, 37, 20, 20, 0]


@given(placed_problems())
def test_critical_groups_are_those_of_the_critical_path(placed: Placed) -> None:
    problem, placements = placed
    simulator = Simulator(problem, num_threads=1)
    for placement, is_critical in zip(
        placements, simulator.critical_groups(placements), strict=True
    ):
        path = simulator.timeline(placement).critical_path
        ops = [step.index for step in path if step.kind == "op"]
        on_path = np.unique(problem.grouping.group_of[ops])
        assert np.flatnonzero(is_critical).tolist() == on_path.tolist()


def test_a_group_on_another_device_is_critical_through_its_transfer() -> None:
    problem = two_chains()
    placements = np.array([[0, 1, 1, 0], [0, 0, 0, 0]], np.int32)
    # a1's bytes arrive at 2.125 s, b1's 20 at 6.5 s. On one device each op waits for another.
    assert Simulator(problem).critical_groups(placements).tolist() == [
        [False, True, False, True],
        [True, True, True, True],
    ]
    waiting = replace(problem, graph=replace(problem.graph, waits=np.array([[1, 2]], np.int32)))
    # b1 waits for a2 on the other device, and b2 comes behind it.
    assert Simulator(waiting).critical_groups(np.array([[0, 1, 0, 1]], np.int32)).tolist() == [
        [True, True, True, True]
    ]
