import copy
import multiprocessing
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    Device,
    GraphError,
    Grouping,
    Moves,
    OpGraph,
    PlacementProblem,
    from_networkx,
)
from placeto_simulator import SimulationError, Simulator
from placeto_simulator.batches import loop_of
from simulated_problems import Placed, difference, placed_problems


@settings(max_examples=400)
@given(placed_problems())
def test_every_time_and_byte_is_that_of_the_reference(placed: Placed) -> None:
    problem, placements = placed
    for placement in placements:
        assert difference(problem, placement) is None


def pairs(*rows: list[int]) -> NDArray[np.int32]:
    return np.array(rows, np.int32)


def two_chains(**changes: Any) -> PlacementProblem:
    """Two chains of two ops of a second each, on two devices whose links differ in all."""
    graph = OpGraph(
        op_names=("a1", "b1", "a2", "b2"),
        parameter_bytes=np.array([0, 1000, 0, 0]),
        workspace_bytes=np.array([0, 0, 7, 0]),
        tensor_producer=np.array([0, 1], np.int32),
        tensor_bytes=np.array([10, 20]),
        edges=np.array([[0, 2], [1, 3]], np.int32),
    )
    fields: dict[str, Any] = {
        "graph": graph,
        "cluster": Cluster(
            devices=tuple(Device(f"gpu:{n}", "gpu", 10**9, 0.25, 0.5 + n / 2) for n in (0, 1)),
            bandwidth=np.array([[0, 10.0], [5.0, 0]]),
            latency=np.array([[0, 0.125], [1.5, 0]]),
        ),
        "compute_time": np.ones((4, 2)),
        "grouping": Grouping(group_of=np.arange(4, dtype=np.int32), group_names=graph.op_names),
    }
    return PlacementProblem(**(fields | changes))


def test_a_run_by_hand() -> None:
    batch = Simulator(two_chains()).evaluate(
        np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 0, 0]], np.int32)
    )
    # On one device four ops and three overheads; on two, two ops and one overhead each.
    # Split in the middle: a1, then b1's copy when the bus has sent a1's 10 bytes in 1 s and rested
    # for 0.5 s. Its 20 bytes take 2 s and are there 0.125 s later; then b2.
    # The way back: 2 s for the 10 bytes, 1 s of rest, 4 s for the 20, and 1.5 s until they arrive.
    assert batch.runtime.tolist() == [4.75, 2.25, 1 + 1.5 + 2.125 + 1, 1 + 3 + 5.5 + 1]
    # b1 owns 1000 bytes, in which its output lives; a1's output is 10 bytes, a2 needs 7 more.
    # A copy takes memory, also where the original takes none: b1's 20 bytes arrive while a2 runs.
    # On the way back a2 is done 1.5 s after the bus took b1's copy.
    assert batch.peak_memory.tolist() == [[1017, 0], [17, 1000], [1010, 37], [37, 1010]]


def test_messages_overlap_in_their_latency() -> None:
    """Two devices send four messages each to two others, over one wire or over two."""
    fan = nx.DiGraph()
    for maker in ("a", "b"):
        fan.add_node(maker, outputs=dict.fromkeys(range(4), 10))
        for tensor in range(4):
            fan.add_edge(maker, f"{maker}{tensor}", tensors=[tensor])
    ops = from_networkx(fan)
    latency = np.zeros((4, 4))
    latency[0, 2:], latency[1, 2:] = 100.0, (50.0, 7.0)
    cluster = Cluster(
        devices=tuple(Device(name, "d", 10**9, 0.0, 0.25) for name in "abcd"),
        bandwidth=np.full((4, 4), 10.0),
        latency=latency,
    )
    problem = PlacementProblem(graph=ops, cluster=cluster, compute_time=np.zeros((ops.num_ops, 4)))
    place = {"a": 0, "b": 1, "a0": 2, "a1": 3, "a2": 2, "a3": 3, "b0": 2, "b1": 3, "b2": 2, "b3": 3}
    placement = np.array([place[name] for name in problem.grouping.group_names], np.int32)
    timeline = Simulator(problem).timeline(placement)
    # A message takes its bus for 1.25 s. Two of b's to the near device arrive before its first.
    start = {name: timeline.op_start[ops.op_names.index(name)] for name in place}
    assert [start[f"a{n}"] for n in range(4)] == [101.0, 102.25, 103.5, 104.75]
    assert [start[f"b{n}"] for n in range(4)] == [51.0, 9.25, 53.5, 11.75]
    assert timeline.link_busy.tolist() == [4 / 104.75, 4 / 104.75, 0, 0]
    assert timeline.device_sending.tolist() == timeline.link_busy.tolist()
    path = [(step.start, step.end) for step in timeline.critical_path if step.kind == "transfer"]
    assert path == [(0, 1.25), (1.25, 2.5), (2.5, 3.75), (3.75, 104.75)]
    assert difference(problem, placement) is None


@pytest.mark.parametrize("activation", [1, 99, 100, 101, 1000])
def test_activations_of_layers_count_whatever_their_size(activation: int) -> None:
    """Three layers given as one op each, with 100 bytes of weights, read an input of 7 bytes."""
    layers = nx.DiGraph([("input", "a"), ("a", "b"), ("b", "c")])
    layers.edges["input", "a"]["bytes"] = 7
    for reader, producer in [("b", "a"), ("c", "b")]:
        layers.edges[producer, reader]["bytes"] = activation
    for name in "abc":
        layers.nodes[name]["parameter_bytes"] = 100
    layers.nodes["c"]["waits_for"] = ["a"]
    problem = PlacementProblem(
        graph=from_networkx(layers), cluster=two_chains().cluster, compute_time=np.ones((4, 2))
    )
    batch = Simulator(problem).evaluate(np.array([[0, 0, 0, 0], [0, 0, 1, 1]]))
    # While b runs, a's activation and its own are there; on two devices a's copy and its own.
    assert batch.peak_memory.tolist() == [
        [300 + max(2 * activation, 7 + activation), 0],
        [100 + 7 + activation, 200 + 2 * activation],
    ]


def test_an_op_that_only_waits_is_a_weight() -> None:
    graph = OpGraph(
        op_names=("first", "weight", "layer"),
        parameter_bytes=np.array([0, 8, 8]),
        tensor_producer=np.array([1, 2], np.int32),
        tensor_bytes=np.array([8, 8]),
        edges=pairs([0, 2]),
        waits=pairs([1, 0]),
    )
    assert graph.lives_in_weights.tolist() == [True, False]
    problem = PlacementProblem(
        graph=graph, cluster=two_chains().cluster, compute_time=np.ones((3, 2))
    )
    assert Simulator(problem).evaluate(np.zeros((1, 3), np.int32)).peak_memory.tolist() == [[24, 0]]


def test_only_what_fits_into_a_weight_lives_there() -> None:
    """Ops of 100 bytes of weights, and outputs of 60, 40, 1 and 0 bytes; one reads nothing."""
    layers = nx.DiGraph()
    for name in "abc":
        layers.add_node(name, parameter_bytes=100, outputs={"x": 60, "y": 40, "z": 1, "empty": 0})
    layers.add_edge("a", "b", tensors=["x", "y", "z"])
    layers.add_edge("b", "c", tensors=["z"])
    layers.nodes["c"]["outputs"] = {"large": 101, "small": 1}
    graph = from_networkx(layers)
    assert graph.lives_in_weights.tolist() == [True, True] + [False] * 8
    problem = PlacementProblem(
        graph=graph, cluster=two_chains().cluster, compute_time=np.ones((3, 2))
    )
    batch = Simulator(problem).evaluate(np.array([[0, 0, 0], [0, 1, 0]]))
    # All weights; b's z until c ends, and c's own outputs, while a's z is gone.
    # On two devices c finds its outputs, a copy of z and 200 bytes; b copies of 101, its own 101
    # and 100.
    assert batch.peak_memory.tolist() == [[300 + 1 + 102, 0], [200 + 1 + 102, 100 + 101 + 101]]


def test_waiting_takes_no_transfer_and_no_memory() -> None:
    plain = two_chains()
    waiting = replace(plain, graph=replace(plain.graph, waits=pairs([1, 2])))
    batch = Simulator(waiting).evaluate(np.array([[0, 0, 0, 0], [0, 1, 0, 1]], np.int32))
    # On one device b1 has its turn after a2, and b2 follows. On two, b1 starts when a2 is done at
    # 2.25 s although no byte comes: 0.25 s of overhead are between b1 and b2.
    assert batch.runtime.tolist() == [4.75, 2.25 + 1 + 0.25 + 1]
    # Beside b1's 1000 bytes: a1's 10 bytes and the 7 of a2, which reads them.
    assert batch.peak_memory.tolist() == [[1017, 0], [17, 1000]]


def test_ops_that_wait_for_one_op_are_enqueued_in_order_after_its_readers() -> None:
    plain = two_chains()
    waiting = replace(
        plain, graph=replace(plain.graph, waits=pairs([3, 0], [1, 0]), edges=pairs([0, 2]))
    )
    timeline = Simulator(waiting).timeline(np.array([0, 0, 0, 0]))
    assert timeline.op_start.tolist() == [0.0, 2.5, 1.25, 3.75]  # a1, then a2, b1, b2
    assert [step.waits_for for step in timeline.critical_path] == [
        "nothing",
        "resource",
        "resource",
        "resource",
    ]


def test_the_critical_path_goes_through_an_op_that_is_waited_for() -> None:
    plain = two_chains()
    waiting = replace(plain, graph=replace(plain.graph, waits=pairs([1, 2])))
    path = Simulator(waiting).timeline(np.array([0, 1, 0, 1])).critical_path
    assert [(step.index, step.waits_for) for step in path] == [
        (0, "nothing"),
        (2, "resource"),
        (1, "order"),
        (3, "resource"),
    ]


def test_a_held_tensor_stays_until_the_step_ends_on_the_device_that_made_it() -> None:
    plain = two_chains()
    graph = replace(plain.graph, workspace_bytes=np.array([0, 0, 0, 7]))
    placements = np.array([[0, 0, 0, 0], [0, 0, 1, 1]], np.int32)
    expected = {
        # b2 needs its 7 bytes when a1's 10 are read. On the other device a2 and b2 have copies of
        # 10 and of 20 bytes, of which the first one is there until a2 is done.
        (): [[1010, 0], [1010, 30]],
        # Held, they are still there; the copy of a1's 10 bytes is not held, and b1's output lives
        # in its weights.
        (0, 1): [[1017, 0], [1010, 30]],
    }
    for held_tensors, peaks in expected.items():
        problem = replace(
            plain, graph=replace(graph, held_tensors=np.array(held_tensors, np.int32))
        )
        assert Simulator(problem).evaluate(placements).peak_memory.tolist() == peaks


def test_placements_that_may_not_be_written_to_compile_nothing_anew() -> None:
    placements = np.array([[0, 1, 1, 0]], np.int32)
    frozen = placements.copy()
    frozen.flags.writeable = False
    simulator = Simulator(two_chains())
    assert simulator.evaluate(frozen) == simulator.evaluate(placements)
    ones, zero = np.ones((1, 1), np.int32), np.zeros(1, np.int32)
    moves = Moves(
        set_of=ones * 0,
        device=ones,
        allowance=np.zeros((1, 1)),
        first_member=np.arange(2, dtype=np.int32),
        members=zero,
    )
    simulator.walk(frozen, moves)
    loop: Any = loop_of("fifo")
    assert len(loop.signatures) == 1


def test_one_simulator_serves_several_threads() -> None:
    generator = np.random.default_rng(0)
    placements = generator.integers(0, 2, (200, 4)).astype(np.int32)
    simulator = Simulator(two_chains(), num_threads=2)
    expected = simulator.evaluate(placements)
    with ThreadPoolExecutor(4) as threads:
        for batch in threads.map(lambda _: simulator.evaluate(placements), range(20)):
            assert batch == expected


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_simulator_that_was_used_serves_a_forked_process() -> None:
    """Also one that a thread uses while the process forks: the child has its state, not it."""
    placements = np.random.default_rng(0).integers(0, 2, (2_000, 4)).astype(np.int32)
    simulator = Simulator(two_chains(), num_threads=2)
    expected, is_done = simulator.evaluate(placements), threading.Event()

    def evaluate_until_done() -> None:
        while not is_done.is_set():
            simulator.evaluate(placements)

    def exit_with_success_if_equal() -> None:
        raise SystemExit(0 if simulator.evaluate(placements) == expected else 1)

    user = threading.Thread(target=evaluate_until_done)
    user.start()
    child = multiprocessing.get_context("fork").Process(target=exit_with_success_if_equal)
    child.start()
    child.join(20)
    child.kill()
    is_done.set()
    user.join()
    assert child.exitcode == 0


def test_a_copy_simulates_the_same() -> None:
    placements = np.array([[0, 1, 1, 0]], np.int32)
    simulator = Simulator(two_chains(), num_threads=2)
    assert copy.deepcopy(simulator).evaluate(placements) == simulator.evaluate(placements)


def chain(num_devices: int, num_ops: int, **changes: Any) -> PlacementProblem:
    """A chain of ops of a second each, and tensors of 10 bytes that take 10 s each."""
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        tensor_producer=np.arange(num_ops - 1, dtype=np.int32),
        tensor_bytes=np.full(num_ops - 1, 10),
        edges=np.stack([np.arange(num_ops - 1), np.arange(1, num_ops)], axis=1).astype(np.int32),
    )
    shape = (num_devices, num_devices)
    fields: dict[str, Any] = {
        "devices": tuple(
            Device(f"gpu:{device}", "gpu", 10**9, 0.0, 0.0) for device in range(num_devices)
        ),
        "bandwidth": np.ones(shape),
        "latency": np.zeros(shape),
    }
    return PlacementProblem(
        graph=graph,
        cluster=Cluster(**(fields | changes)),
        compute_time=np.ones((num_ops, num_devices)),
    )


@pytest.mark.parametrize("num_devices", [64, 65, 130, 300, 1024])
def test_any_number_of_devices(num_devices: int) -> None:
    problem = chain(num_devices, 4)
    last = num_devices - 1
    placements = np.array([[0, last, 0, 0], [0, last - 1, last, 1]], np.int32)
    assert Simulator(problem).evaluate(placements).runtime.tolist() == [24.0, 34.0]
    assert difference(problem, placements[1]) is None


def test_a_link_for_each_pair_of_forty_devices() -> None:
    pairs = np.full((40, 40), -1)
    pairs[~np.eye(40, dtype=np.bool_)] = np.arange(40 * 39)
    problem = chain(40, 30, link=pairs)
    for placement in np.random.default_rng(0).integers(0, 40, (5, 30)).astype(np.int32):
        assert difference(problem, placement) is None


@pytest.mark.parametrize(
    ("link", "runtime"),
    [(np.repeat(np.arange(4), 4).reshape(4, 4), 12.0), (np.zeros((4, 4), np.int64), 22.0)],
    ids=["bus each", "one bridge"],
)
def test_one_transfer_at_a_time_is_on_a_link_whoever_sends_it(
    link: NDArray[np.int64], runtime: float
) -> None:
    """Two devices send 10 s each to two others."""
    problem = PlacementProblem(
        graph=replace(two_chains().graph, tensor_bytes=np.array([10, 10])),
        cluster=Cluster(
            devices=tuple(Device(f"gpu:{n}", "gpu", 10**9, 0.0, 0.0) for n in range(4)),
            bandwidth=np.ones((4, 4)),
            latency=np.zeros((4, 4)),
            link=np.where(np.eye(4, dtype=np.bool_), -1, link).astype(np.int32),
        ),
        compute_time=np.ones((4, 4)),
        grouping=two_chains().grouping,
    )
    assert Simulator(problem).runtimes(np.array([[0, 1, 2, 3]])).tolist() == [runtime]


def test_what_is_picked_when_an_overhead_ends_completes_in_a_later_round() -> None:
    """Ties behind an overhead: an op of no length must not complete one round too early.

    `a` (1 s) and `z` (no time) run on device 0, whose overhead is 1 s; `b` runs on device 1 until
    2 s. At 2 s `b` completes, and `z` is picked: its reader is queued behind `b`'s.
    """
    cluster = Cluster(
        devices=(Device("0", "d", 9, 1.0, 0.0), Device("1", "d", 9, 0.0, 0.0)),
        bandwidth=np.full((2, 2), np.inf),
        latency=np.zeros((2, 2)),
    )
    graph = replace(
        chain(2, 6).graph,
        op_names=("a", "z", "b", "after z", "after b", "end"),
        tensor_producer=np.array([1, 2], np.int32),
        tensor_bytes=np.zeros(2, np.int64),
        edges=np.array([[0, 3], [1, 4]], np.int32),
    )
    seconds = np.array([1.0, 0.0, 2.0, 4.0, 8.0, 0.0])
    problem = PlacementProblem(
        graph=graph, cluster=cluster, compute_time=np.stack([seconds, seconds], axis=1)
    )
    placement = np.array([0, 0, 1, 0, 0, 1], np.int32)
    timeline = Simulator(problem).timeline(placement)
    # At 2 s: b is done and z is picked; b's copy, which takes no time, arrives in the round in
    # which z is done. Ops come before transfers, so that z's reader is the first in the queue.
    assert timeline.op_start.tolist() == [0.0, 2.0, 0.0, 2.0, 7.0, 2.0]
    assert difference(problem, placement) is None


@pytest.mark.parametrize(
    ("first_bytes", "starts"),
    [
        (0, {"a": 0.0, "p": 0.0, "q": 0.0, "of_q": 0.0, "of_p": 1.0}),
        (10, {"a": 0.0, "p": 1.0, "q": 1.0, "of_p": 1.0, "of_q": 2.0}),
    ],
    ids=["both", "the second one"],
)
def test_copies_of_no_length_arrive_in_the_round_after_they_are_picked(
    first_bytes: int, starts: dict[str, float]
) -> None:
    """`a` sends to `p` on device 2 and then to `q` on device 1, and both of them to device 3.

    Ops take no time but for the readers `of_p` and `of_q`. If the first copy takes none either, the
    bus picks both at 0 s. They arrive in one round, so that `q` and `p` are done in one round,
    devices by index: `q` comes first. If the first copy takes a second, the bus picks the second
    one when the first has arrived. It arrives a round later, and `p` comes first.
    """
    steps = nx.DiGraph()
    steps.add_node("a", outputs={"to p": first_bytes, "to q": 0})
    steps.add_edge("a", "p", tensors=["to p"])
    steps.add_edge("a", "q", tensors=["to q"])
    steps.add_edge("p", "of_p", bytes=0)
    steps.add_edge("q", "of_q", bytes=0)
    ops = from_networkx(steps)
    cluster = Cluster(
        devices=tuple(Device(name, "d", 10**9, 0.0, 0.0) for name in "0123"),
        bandwidth=np.full((4, 4), 10.0),
        latency=np.zeros((4, 4)),
    )
    seconds = np.array([1.0 if name.startswith("of_") else 0.0 for name in ops.op_names])
    problem = PlacementProblem(
        graph=ops, cluster=cluster, compute_time=np.tile(seconds[:, None], (1, 4))
    )
    place = {"a": 0, "p": 2, "q": 1, "of_p": 3, "of_q": 3}
    placement = np.array([place[name] for name in problem.grouping.group_names], np.int32)
    timeline = Simulator(problem).timeline(placement)
    start = dict(zip(ops.op_names, timeline.op_start.tolist(), strict=True))
    assert start == starts
    assert difference(problem, placement) is None


def test_a_step_in_which_not_every_op_is_done_is_no_runtime() -> None:
    simulator = Simulator(two_chains(), num_threads=1)
    missing = simulator._tables.num_awaited + np.int32(1)  # of an input that never comes
    simulator._tables = simulator._tables._replace(num_awaited=missing)
    placements = np.array([[0, 0, 1, 1]], np.int32)
    for simulate in (simulator.evaluate, simulator.runtimes, simulator.schedule):
        with pytest.raises(SimulationError, match=r"placements\[0\]: expected every op to be done"):
            simulate(placements)
    with pytest.raises(SimulationError, match="expected every op to be done"):
        simulator.timeline(placements[0])


def test_backward_comes_first_and_the_earliest_micro_batch_of_it() -> None:
    """While `a` runs, two forward ops, then two backward ones and an update come to wait."""
    count = 6
    graph = replace(
        chain(1, count).graph,
        phases=np.array([0, 0, 0, 1, 1, 2], np.int8),
        tensor_producer=np.zeros(1, np.int32),
        tensor_bytes=np.zeros(1, np.int64),
        edges=np.array([[0, reader] for reader in (2, 1, 4, 5, 3)], np.int32),
    )
    for queue, order in (("fifo", [0, 2, 1, 4, 5, 3]), ("backward-first", [0, 5, 3, 4, 1, 2])):
        problem = replace(
            chain(1, count), graph=graph, cluster=replace(chain(1, count).cluster, queue=queue)
        )
        placement = np.zeros(count, np.int32)
        timeline = Simulator(problem).timeline(placement)
        assert np.argsort(timeline.op_start).tolist() == order
        assert difference(problem, placement) is None


def test_backward_that_comes_during_an_overhead_is_still_the_first() -> None:
    """A device that is free again at 3 s does not choose before that."""
    graph = replace(
        chain(2, 4).graph,
        phases=np.array([0, 0, 0, 1], np.int8),
        tensor_producer=np.array([1], np.int32),
        tensor_bytes=np.zeros(1, np.int64),
        edges=np.array([[0, 3]], np.int32),
    )
    cluster = Cluster(
        devices=(Device("0", "d", 9, 2.0, 0.0), Device("1", "d", 9, 0.0, 0.0)),
        bandwidth=np.full((2, 2), np.inf),
        latency=np.zeros((2, 2)),
        queue="backward-first",
    )
    seconds = np.array([1.0, 2.0, 1.0, 1.0])
    problem = PlacementProblem(
        graph=graph, cluster=cluster, compute_time=np.stack([seconds, seconds], axis=1)
    )
    # Op 2 waits since 0 s; op 3, backward, since 2 s, in the overhead of op 0.
    timeline = Simulator(problem).timeline(np.array([0, 1, 0, 0], np.int32))
    assert timeline.op_start.tolist() == [0.0, 0.0, 6.0, 3.0]


def test_a_wrong_placement_is_named() -> None:
    compute_time = np.ones((4, 2))
    compute_time[2, 1] = np.inf
    simulator = Simulator(two_chains(compute_time=compute_time))
    assert simulator.evaluate(np.array([[1, 1, 0, 1]])).runtime[0] > 0
    with pytest.raises(GraphError, match=r"^placements: expected shape \(any, 4\), got \(1, 3\)$"):
        simulator.evaluate(np.zeros((1, 3), np.int32))
    with pytest.raises(GraphError, match=re.escape("group 'a2', got 1 ('gpu:1')")):
        simulator.evaluate(np.array([[0, 0, 0, 0], [0, 0, 1, 0]]))


def test_a_simulator_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="num_threads: expected at least 1, got 0"):
        Simulator(two_chains(), num_threads=0)


def resting(op_overhead: float, transfer_overhead: float, graph: nx.DiGraph) -> Simulator:
    """Return the simulator of ops of a second on two devices that rest, at 10 bytes a second."""
    ops = from_networkx(graph)
    devices = tuple(Device(name, "kind", 100, op_overhead, transfer_overhead) for name in "ab")
    bandwidth, latency = np.full((2, 2), 10.0), np.zeros((2, 2))
    return Simulator(
        PlacementProblem(
            graph=ops,
            cluster=Cluster(devices=devices, bandwidth=bandwidth, latency=latency),
            compute_time=np.ones((ops.num_ops, 2)),
        ),
        num_threads=1,
    )


def test_an_op_that_starts_as_a_rest_ends_takes_memory_after_what_is_freed_then() -> None:
    graph = nx.DiGraph()
    graph.add_edge("first", "reader", bytes=5)
    graph.add_edge("second", "sink", bytes=7)
    # The device rests from 1 to 1.5, and the tensor of 5 bytes has been sent just then.
    simulator = resting(0.5, 0.0, graph)
    batch = simulator.evaluate(np.array([[0, 1, 0, 0]], np.int32))
    assert batch.peak_memory[0].tolist() == [7, 5]


def test_a_copy_takes_memory_when_its_link_has_rested() -> None:
    graph = nx.DiGraph()
    graph.add_edge("source", "early", bytes=5)
    graph.add_edge("other", "late", bytes=7)
    # The first copy comes at 1.5, and is read until 2.5; the link rests from 1.5 to 3.5.
    simulator = resting(0.0, 2.0, graph)
    batch = simulator.evaluate(np.array([[0, 1, 0, 1]], np.int32))
    assert batch.peak_memory[0, 1] == 7
