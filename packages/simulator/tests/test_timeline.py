from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from test_simulator import two_chains

from placeto_graphs import PlacementProblem
from placeto_simulator import SimulationError, Simulator, Timeline, reference
from simulated_problems import Placed, placed_problems


def timeline_of(placed: Placed) -> Timeline:
    problem, placements = placed
    return Simulator(problem, num_threads=1).timeline(placements[0])


@given(placed_problems())
def test_memory_over_time_has_the_peaks_that_evaluate_gives(placed: Placed) -> None:
    problem, placements = placed
    timeline = timeline_of(placed)
    peaks = Simulator(problem, num_threads=1).evaluate(placements[:1]).peak_memory[0]
    for device in range(problem.num_devices):
        times, held = timeline.memory(device)
        assert times[0] == 0
        assert (np.diff(times) > 0).all()
        assert held.min() >= 0
        assert held.max() == peaks[device]
        graph, here = problem.graph, timeline.op_device == device
        kept = [t for t in graph.held_tensors if here[graph.tensor_producer[t]]]
        outside = [t for t in kept if graph.parameter_bytes[graph.tensor_producer[t]] == 0]
        assert held[-1] == graph.parameter_bytes[here].sum() + graph.tensor_bytes[outside].sum()


def in_turn(before: NDArray[np.int32], members: NDArray[np.intp]) -> list[int]:
    """Return what ran on one resource in the order in which it ran, from what ran before each."""
    after = {int(before[member]): int(member) for member in members}
    assert len(after) == len(members)
    order = [-1]
    while order[-1] in after:
        order.append(after[order[-1]])
    assert len(order) == len(members) + 1
    return order[1:]


@given(placed_problems())
def test_no_resource_does_two_things_at_once_or_out_of_turn(placed: Placed) -> None:
    timeline = timeline_of(placed)
    for device in range(placed[0].num_devices):
        ops = in_turn(timeline.op_before, np.flatnonzero(timeline.op_device == device))
        assert (timeline.op_start[ops[1:]] >= timeline.op_end[ops[:-1]]).all()
    for link in range(placed[0].cluster.num_links):
        sent = in_turn(timeline.transfer_before, np.flatnonzero(timeline.transfer_link == link))
        assert (timeline.transfer_start[sent[1:]] >= timeline.transfer_end[sent[:-1]]).all()


@given(placed_problems())
def test_queues_are_worked_off_in_order_and_without_a_pause(placed: Placed) -> None:
    problem = replace(placed[0], cluster=replace(placed[0].cluster, queue="fifo"))
    timeline = timeline_of((problem, placed[1]))
    queued = arrival_of_last_input(problem, timeline)
    seconds = problem.compute_time[np.arange(problem.graph.num_ops), timeline.op_device]
    for device in range(problem.num_devices):
        ops = in_turn(timeline.op_before, np.flatnonzero(timeline.op_device == device))
        assert (np.diff(queued[ops]) >= 0).all()
        overhead = problem.cluster.devices[device].op_overhead
        free = timeline.op_end[ops] + np.where(seconds[ops] > 0, overhead, 0.0)
        started = np.maximum(np.append(0.0, free)[: len(ops)], queued[ops])
        assert timeline.op_start[ops].tolist() == started.tolist()
    sent = timeline.op_end[problem.graph.tensor_producer[timeline.transfer_tensor]]
    overheads = np.array([device.transfer_overhead for device in problem.cluster.devices])
    free = timeline.transfer_end + overheads[timeline.transfer_source]
    for link in range(problem.cluster.num_links):
        turn = in_turn(timeline.transfer_before, np.flatnonzero(timeline.transfer_link == link))
        assert (np.diff(sent[turn]) >= 0).all()
        started = np.maximum(np.append(0.0, free[turn])[: len(turn)], sent[turn])
        assert timeline.transfer_start[turn].tolist() == started.tolist()


def arrival_of_last_input(problem: PlacementProblem, timeline: Timeline) -> NDArray[np.float64]:
    """Return float64[V], when each op joins the queue of its device."""
    graph = problem.graph
    arrival = {
        (tensor, device): end
        for tensor, device, end in zip(
            timeline.transfer_tensor.tolist(),
            timeline.transfer_destination.tolist(),
            timeline.transfer_end.tolist(),
            strict=True,
        )
    }
    last = np.zeros(graph.num_ops)
    for tensor, reader in graph.edges.tolist():
        producer = graph.tensor_producer[tensor]
        device = int(timeline.op_device[reader])
        local = timeline.op_device[producer] == device
        there = timeline.op_end[producer] if local else arrival[tensor, device]
        last[reader] = max(last[reader], there)
    for op, before in graph.waits.tolist():
        last[op] = max(last[op], timeline.op_end[before])
    return last


@given(placed_problems())
def test_no_op_starts_before_its_inputs_are_there(placed: Placed) -> None:
    timeline = timeline_of(placed)
    assert (timeline.op_start >= arrival_of_last_input(placed[0], timeline)).all()


@given(placed_problems())
def test_the_critical_path_leads_from_beginning_to_end_without_a_gap(
    placed: Placed,
) -> None:
    problem, timeline = placed[0], timeline_of(placed)
    path = timeline.critical_path()
    assert path[0].start == 0
    assert path[0].waits_for == "nothing"
    assert path[-1].end == timeline.runtime
    for before, step in pairwise(path):
        assert step.waits_for != "nothing"
        gap = 0.0
        if step.waits_for == "resource":
            assert before.kind == step.kind
            if step.kind == "op":
                device = problem.cluster.devices[timeline.op_device[step.index]]
                took_time = problem.compute_time[before.index, timeline.op_device[before.index]] > 0
                gap = device.op_overhead if took_time else 0.0
            else:
                device = problem.cluster.devices[timeline.transfer_source[before.index]]
                gap = device.transfer_overhead
        assert step.start == before.end + gap


@given(placed_problems())
def test_the_events_are_all_that_happened_in_order(placed: Placed) -> None:
    problem, timeline = placed[0], timeline_of(placed)
    events = timeline.events()
    assert [event.time for event in events] == sorted(event.time for event in events)
    kinds = [event.kind for event in events]
    assert kinds.count("op-done") == problem.graph.num_ops
    assert kinds.count("transfer-done") == len(timeline.transfer_start)
    used = set(timeline.op_device.tolist()), set(timeline.transfer_link.tolist())
    assert kinds.count("wakeup") >= len(used[0]) + len(used[1])


def test_a_link_that_carries_two_tensors_at_once_is_busy_once() -> None:
    """Simulated links carry one at a time; a real one takes the second before the first is over."""
    timeline = Simulator(two_chains()).timeline(np.array([0, 0, 1, 1], np.int32))
    starts, ends = np.array([2.0, 1.0]), np.array([2.5, 4.0])
    real = replace(timeline, transfer_start=starts, transfer_end=ends)
    assert real.link_busy.tolist() == [3 / 5.75, 0]


def test_a_timeline_by_hand() -> None:
    timeline = Simulator(two_chains()).timeline(np.array([0, 0, 1, 1], np.int32))
    assert timeline.op_start.tolist() == [0, 1.25, 2.125, 4.75]
    assert timeline.transfer_start.tolist() == [1, 2.625]
    assert timeline.transfer_end.tolist() == [2.125, 4.75]
    assert timeline.device_busy.tolist() == [2 / 5.75, 2 / 5.75]
    assert timeline.link_busy.tolist() == [3.25 / 5.75, 0]
    path = [(step.kind, step.index, step.waits_for) for step in timeline.critical_path()]
    assert path == [
        ("op", 0, "nothing"),
        ("transfer", 0, "input"),
        ("transfer", 1, "resource"),
        ("op", 3, "input"),
    ]
    assert [(event.time, event.kind, event.what) for event in timeline.events()] == [
        (0, "wakeup", "a1"),
        (1, "op-done", "a1"),
        (1, "wakeup", "a1:0 -> gpu:1"),
        (2.125, "transfer-done", "a1:0 -> gpu:1"),
        (2.125, "wakeup", "a2"),
        (2.25, "op-done", "b1"),
        (3.125, "op-done", "a2"),
        (4.75, "transfer-done", "b1:0 -> gpu:1"),
        (4.75, "wakeup", "b2"),
        (5.75, "op-done", "b2"),
    ]
    times, held = timeline.memory(1)
    assert times.tolist() == [0, 1, 2.125, 2.625, 3.125, 4.75, 5.75]
    assert held.tolist() == [0, 10, 17, 37, 20, 20, 0]


def test_a_wrong_placement_is_named() -> None:
    with pytest.raises(SimulationError, match="from 0 to 1 for group 'b2', got 5"):
        Simulator(two_chains()).timeline(np.array([0, 0, 1, 5], np.int32))


@given(placed_problems())
def test_on_one_device_critical_groups_go_from_the_beginning_to_the_end(placed: Placed) -> None:
    problem, placements = placed
    together = np.zeros_like(placements[:1])
    marked = Simulator(problem, num_threads=1).critical_groups(together)[0]
    timeline = Simulator(problem, num_threads=1).timeline(together[0])
    is_critical = marked[problem.grouping.group_of]
    assert is_critical[np.argmax(timeline.op_end)]
    assert (timeline.op_start[is_critical] == 0).any()


@given(placed_problems())
def test_critical_groups_are_those_of_the_way_back_through_the_reference(placed: Placed) -> None:
    problem, placements = placed
    step = reference.simulate(problem, placements[0].tolist())
    graph, cluster, device = problem.graph, problem.cluster, problem.expand(placements[0])
    begin, end = step.op_start, step.op_end
    done = [e.element for e in step.events if e.kind == "op-done" and isinstance(e.element, int)]

    def cause(op: int) -> int | None:
        """Return what an op waited for: something here that was over just then, or a transfer."""
        inputs = [t for t, reader in graph.edges.tolist() if reader == op]
        # Of several that were over just then the op with the lowest number counts.
        makers = sorted(((t, int(graph.tensor_producer[t])) for t in inputs), key=lambda of: of[1])
        for _, maker in makers:
            if device[maker] == device[op] and end[maker] == begin[op]:
                return maker
        for one, awaited in graph.waits.tolist():
            if one == op and end[awaited] == begin[op]:
                return int(awaited)
        earlier = [each for each in done[: done.index(op)] if device[each] == device[op]]
        if earlier:
            takes = problem.compute_time[earlier[-1], device[op]] > 0
            overhead = cluster.devices[device[op]].op_overhead if takes else 0.0
            if end[earlier[-1]] + overhead >= begin[op]:
                return earlier[-1]
        arrivals = {
            maker: end[maker]
            + cluster.latency[device[maker], device[op]]
            + graph.tensor_bytes[t] / cluster.bandwidth[device[maker], device[op]]
            for t, maker in reversed(makers)
            if device[maker] != device[op]
        }
        return max(
            (maker for _, maker in makers if maker in arrivals),
            key=arrivals.__getitem__,
            default=None,
        )

    op: int | None = int(np.argmax(end))
    critical = set()
    while op is not None:
        critical.add(int(problem.grouping.group_of[op]))
        op = cause(op)
    marked = Simulator(problem, num_threads=1).critical_groups(placements[:1])[0]
    assert set(np.flatnonzero(marked).tolist()) == critical


def test_a_group_on_another_device_is_critical_through_its_transfer() -> None:
    problem = two_chains()
    placements = np.array([[0, 1, 1, 0], [0, 0, 0, 0]], np.int32)
    # a1's bytes arrive at 2.125 s, b1's 20 at 3.125 s. On one device each op waits for another.
    assert Simulator(problem).critical_groups(placements).tolist() == [
        [False, True, False, True],
        [True, True, True, True],
    ]
    waiting = replace(problem, graph=replace(problem.graph, waits=np.array([[1, 2]], np.int32)))
    # b1 waits for a2 on the other device, and b2 comes behind it.
    assert Simulator(waiting).critical_groups(np.array([[0, 1, 0, 1]], np.int32)).tolist() == [
        [True, True, True, True]
    ]
