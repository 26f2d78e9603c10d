"""The time per sample of a pipeline: loads by hand, and walks against evaluations one by one."""

from dataclasses import replace
from functools import partial

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_simulator import two_chains
from test_walking import random_moves

from placeto_graphs import (
    Cluster,
    Device,
    GraphError,
    MoveEvaluator,
    PlacementProblem,
    from_networkx,
    parse_cluster,
    plain_walk,
)
from placeto_graphs.testing import check_walks
from placeto_simulator import SimulationError, Simulator, ThroughputEvaluator
from simulated_problems import Placed, in_weights, placed_problems


def plain_loads(problem: PlacementProblem, placement: NDArray[np.int32]) -> list[float]:
    """Return the load of each device, and of the network cards, one tensor at a time."""
    graph, cluster, device_of = problem.graph, problem.cluster, problem.expand(placement)
    machine = cluster.machine.tolist()
    inside = {
        m: [d for d, machine_of_device in enumerate(machine) if machine_of_device == m]
        for m in machine
    }
    host = {m: [d for d in inside[m] if cluster.devices[d].kind[:3] == "cpu"] for m in machine}
    loads = []
    for index, device in enumerate(cluster.devices):
        seconds_of_ops = problem.compute_time[device_of == index, index]
        overheads = device.op_overhead * float((seconds_of_ops > 0).sum())
        loads.append(float(seconds_of_ops.sum()) + overheads)
    cards = dict.fromkeys(cluster.link_names, 0.0)

    def seconds(size: int, sources: list[int], destinations: list[int]) -> float:
        ways = [(s, d) for s in sources for d in destinations if s != d]
        return max((size / cluster.bandwidth[way] for way in ways), default=0.0)

    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        home = int(device_of[graph.tensor_producer[tensor]])
        readers = {int(device_of[op]) for op in graph.consumers_of_tensor[tensor]} - {home}
        for end in {home, *readers} if readers else ():
            machine_of_device = machine[end]
            if end in host[machine_of_device]:
                continue
            peers = host[machine_of_device][:1] or (
                inside[machine_of_device]
                if len(inside[machine_of_device]) > 1
                else range(len(machine))
            )
            ends = ([end], peers) if end == home else (peers, [end])
            loads[end] += seconds(size, *ends)
        home_machine = machine[home]
        for reader_machine in {machine[reader] for reader in readers} - {home_machine}:
            ends = (
                (host[home_machine][:1] or inside[home_machine]),
                (host[reader_machine][:1] or inside[reader_machine]),
            )
            cards[cluster.link_names[cluster.link[ends[0][0], ends[1][0]]]] += seconds(size, *ends)
    return [*loads, max(cards.values(), default=0.0)]


def in_machines(problem: PlacementProblem, seed: int) -> PlacementProblem:
    """Return the problem with its devices in up to three machines, and some of them CPUs."""
    generator, count = np.random.default_rng(seed), problem.num_devices
    kinds = generator.choice(["cpu-ddr5-2ch", "kind", "kind"], count).tolist()
    devices = tuple(
        replace(d, kind=kind) for d, kind in zip(problem.cluster.devices, kinds, strict=True)
    )
    machine = np.unique(generator.integers(0, 3, count), return_inverse=True)[1].astype(np.int32)
    names = tuple(f"machine {index}" for index in range(machine.max() + 1))
    cluster = replace(problem.cluster, devices=devices, machine=machine, machine_names=names)
    return replace(problem, cluster=cluster)


@given(placed_problems(), st.integers(0, 2**32 - 1))
def test_loads_are_those_of_the_definition(placed: Placed, seed: int) -> None:
    problem, placements = placed
    problem = in_machines(problem, seed)
    evaluator = ThroughputEvaluator(problem)
    expected = np.array([plain_loads(problem, placement) for placement in placements])
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    close(evaluator.loads(placements), expected[:, :-1])
    batch = evaluator.evaluate(placements)
    close(batch.runtime, expected.max(axis=1))
    for row, placement in enumerate(placements):
        device_of = problem.expand(placement)
        graph = problem.graph
        for device in range(problem.num_devices):
            held_tensors = [
                t for t in graph.held_tensors if device_of[graph.tensor_producer[t]] == device
            ]
            outside_weights = [t for t in held_tensors if not in_weights(graph, t)]
            expected_bytes = graph.parameter_bytes[device_of == device].sum()
            expected_bytes += graph.tensor_bytes[outside_weights].sum()
            assert batch.peak_memory[row, device] == expected_bytes


@given(placed_problems(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 10.0]))
def test_walks_are_those_of_one_evaluation_after_the_other(
    placed: Placed, seed: int, max_allowance: float
) -> None:
    problem, placements = placed
    evaluator = ThroughputEvaluator(in_machines(problem, seed))
    moves = random_moves(problem, len(placements), 40, seed, max_allowance)
    check_walks(evaluator.walk(placements, moves), plain_walk(evaluator, placements, moves))


def test_loads_by_hand() -> None:
    """Accelerators of a machine: 1 s for 10 bytes, twice as long for 20.

    An op of a second is followed by an overhead of 0.25 s there, and by none on the host.
    """
    chains = two_chains()
    host = Device("cpu:0", "cpu", 10**9, 0.0, 0.0)
    problem = replace(
        chains,
        cluster=Cluster(
            devices=(*chains.cluster.devices, host),
            bandwidth=np.full((3, 3), 10.0),
            latency=np.full((3, 3), 0.125),
        ),
        compute_time=np.array([[1.0, 1.0, 4.0]] * 4),
    )
    evaluator = ThroughputEvaluator(problem)
    placements = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 2, 2]], np.int32)
    assert evaluator.loads(placements).tolist() == [
        [5.0, 0.0, 0.0],
        [2.5, 2.5, 0.0],
        [2.5 + 1 + 2, 2.5 + 1 + 2, 0.0],
        [2.5 + 1 + 2, 0.0, 8.0],  # what a CPU reads from its memory is free
    ]
    assert evaluator.evaluate(placements).runtime.tolist() == [5.0, 2.5, 5.5, 8.0]
    assert evaluator.evaluate(placements).peak_memory[2].tolist() == [1000, 0, 0]
    assert evaluator.critical_groups(placements).tolist() == [
        [True] * 4,
        [True, False, True, False],  # of equal loads the first device counts
        [True, True, False, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize(
    ("spec", "maker", "readers", "seconds"),
    [
        # Each device has 15.75 GB a second in its machine, and 1.25 on the network.
        ("2x(1xcpu+2xv100)", "v100:2", ["v100:3"], 1.0),
        ("2x(1xcpu+2xv100)", "v100:2", ["cpu:1"], 1.0),
        ("2x(1xcpu+2xv100)", "cpu:0", ["cpu:1"], 12.6),
        ("2x(1xcpu+2xv100)", "v100:0", ["cpu:1"], 12.6),
        ("2x(1xcpu+2xv100)", "cpu:1", ["v100:0", "v100:1", "cpu:0"], 12.6),  # once
        ("3x(1xcpu+1xv100)", "v100:2", ["v100:0", "cpu:0", "v100:1"], 25.2),  # to each machine
        ("1x(2xv100)+1x(1xcpu+1xv100)", "v100:2", ["cpu:0"], 1.0),
        ("1x(2xv100)+1x(1xcpu+1xv100)", "v100:2", ["v100:0"], 12.6),
        ("2x(1xcpu)", "cpu:0", ["cpu:1"], 12.6),
        ("2x(1xv100)", "v100:0", ["v100:1"], 12.6),
        ("2xcpu", "cpu:0", ["cpu:1"], 0.0),  # in one memory
    ],
)
def test_the_time_of_a_tensor_is_that_of_its_machine_and_its_network_card(
    spec: str, maker: str, readers: list[str], seconds: float
) -> None:
    ops = nx.DiGraph()
    ops.add_edges_from((("maker", reader) for reader in readers), bytes=15_750_000_000)
    cluster = parse_cluster(spec)
    same = cluster.machine[:, None] == cluster.machine
    cluster = replace(cluster, bandwidth=np.where(same, 15.75e9, 1.25e9))
    count = 1 + len(readers)
    problem = PlacementProblem(
        graph=from_networkx(ops),
        cluster=cluster,
        compute_time=np.zeros((count, cluster.num_devices)),
    )
    names = dict(zip(problem.grouping.group_names, [maker, *readers], strict=True))
    assert [*names] == ["maker", *readers]
    places = [cluster.device_names.index(name) for name in names.values()]
    evaluator = ThroughputEvaluator(problem)
    assert evaluator.evaluate(np.array([places])).runtime == pytest.approx([seconds], rel=1e-9)
    if seconds > 2:  # the card is what is busiest
        assert evaluator.critical_groups(np.array([places]))[0, 0]


def test_what_another_machine_sends_does_not_feed_the_busiest_card() -> None:
    ops = nx.DiGraph([("sends more", "reads"), ("sends less", "reads too")])
    ops.edges["sends more", "reads"]["bytes"] = 1000
    ops.edges["sends less", "reads too"]["bytes"] = 10
    problem = PlacementProblem(
        graph=from_networkx(ops), cluster=parse_cluster("2x(1xcpu)"), compute_time=np.zeros((4, 2))
    )
    assert problem.grouping.group_names == ("sends more", "reads", "sends less", "reads too")
    placements = np.array([[0, 1, 1, 0], [1, 0, 0, 1]], np.int32)
    is_critical = ThroughputEvaluator(problem).critical_groups(placements)
    assert is_critical.tolist() == [[True, False, False, True], [True, False, False, True]]


def test_what_one_device_does_for_a_sample_is_its_simulated_step() -> None:
    problem = two_chains()
    first, *further_devices = problem.cluster.devices
    slow = replace(problem.cluster, devices=(replace(first, op_overhead=0.5), *further_devices))
    problem = replace(problem, cluster=slow)
    alone = np.zeros((1, 4), np.int32)
    step = Simulator(problem).evaluate(alone).runtime[0]
    assert ThroughputEvaluator(problem).evaluate(alone).runtime[0] == step + 0.5 == 6.0


def test_it_is_an_evaluator_with_moves_and_refuses_what_the_simulator_refuses() -> None:
    evaluator = ThroughputEvaluator(two_chains())
    assert isinstance(evaluator, MoveEvaluator)
    with pytest.raises(GraphError, match=r"expected shape \(any, 4\), got \(1, 3\)"):
        evaluator.evaluate(np.zeros((1, 3), np.int32))
    with pytest.raises(GraphError, match=r"placements\[1, 3\]: expected an integer from 0 to 1"):
        evaluator.loads(np.array([[0, 0, 0, 0], [0, 0, 0, 2]], np.int32))
    assert evaluator.evaluate(np.empty((0, 4), np.int32)).runtime.shape == (0,)


def test_a_time_beside_which_all_others_would_be_nothing_is_refused() -> None:
    times = np.ones((4, 2))
    times[3, 1] = 1e18
    with pytest.raises(SimulationError, match=r"got 1e\+18 s for one op; where an op cannot run"):
        ThroughputEvaluator(two_chains(compute_time=times))
