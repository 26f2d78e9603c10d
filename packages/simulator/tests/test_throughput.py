"""The time per sample of a pipeline: loads by hand, and walks against evaluations one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_simulator import two_chains
from test_walking import random_moves

from placeto_graphs import Cluster, Device, GraphError, MoveEvaluator, PlacementProblem, plain_walk
from placeto_graphs.testing import check_walks
from placeto_simulator import SimulationError, Simulator, ThroughputEvaluator
from simulated_problems import Placed, placed_problems


def plain_loads(problem: PlacementProblem, placement: NDArray[np.int32]) -> list[float]:
    """Return the load of each device by the definition, one tensor at a time."""
    graph, cluster, device_of = problem.graph, problem.cluster, problem.expand(placement)
    kinds = [device.kind.split("-")[0] for device in cluster.devices]
    loads = []
    for number, device in enumerate(cluster.devices):
        seconds_of_ops = problem.compute_time[device_of == number, number]
        overheads = device.op_overhead * float((seconds_of_ops > 0).sum())
        loads.append(float(seconds_of_ops.sum()) + overheads)

    def seconds(ends: list[tuple[int, int]], size: int) -> float:
        return max(float(cluster.latency[way] + size / cluster.bandwidth[way]) for way in ends)

    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        home = int(device_of[graph.tensor_producer[tensor]])
        readers = {int(device_of[op]) for op in graph.consumers_of_tensor[tensor]} - {home}
        for end in {home, *readers} if readers else ():
            if kinds[end] == "cpu":
                continue
            hosts = [kinds.index("cpu")] if "cpu" in kinds else range(len(kinds))
            ways = [(end, other) for other in hosts if other != end]
            loads[end] += seconds(ways if end == home else [w[::-1] for w in ways], size)
    return loads


def with_a_host(problem: PlacementProblem) -> PlacementProblem:
    first, *others = problem.cluster.devices
    devices = (replace(first, kind="cpu-ddr5-2ch"), *others)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@given(placed_problems(), st.booleans())
def test_loads_are_those_of_the_definition(placed: Placed, has_host: bool) -> None:
    problem, placements = placed
    problem = with_a_host(problem) if has_host else problem
    evaluator = ThroughputEvaluator(problem)
    expected = [plain_loads(problem, placement) for placement in placements]
    np.testing.assert_allclose(evaluator.loads(placements), expected, rtol=1e-12, atol=1e-12)
    found = evaluator.evaluate(placements)
    assert found.runtime.tolist() == evaluator.loads(placements).max(axis=1).tolist()
    for row, placement in enumerate(placements):
        device_of = problem.expand(placement)
        graph = problem.graph
        for device in range(problem.num_devices):
            held = [t for t in graph.held_tensors if device_of[graph.tensor_producer[t]] == device]
            kept = [t for t in held if graph.parameter_bytes[graph.tensor_producer[t]] == 0]
            expected_bytes = graph.parameter_bytes[device_of == device].sum()
            expected_bytes += graph.tensor_bytes[kept].sum()
            assert found.peak_memory[row, device] == expected_bytes


@given(placed_problems(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 10.0]))
def test_walks_are_those_of_one_evaluation_after_the_other(
    placed: Placed, seed: int, most: float
) -> None:
    problem, placements = placed
    evaluator = ThroughputEvaluator(problem)
    moves = random_moves(problem, len(placements), 40, seed, most)
    check_walks(evaluator.walk(placements, moves), plain_walk(evaluator, placements, moves))


def test_loads_by_hand() -> None:
    """Accelerators of a machine: 0.125 s and 1 s for 10 bytes, twice as long for 20.

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
        [2.5 + 1.125 + 2.125, 2.5 + 1.125 + 2.125, 0.0],
        [2.5 + 1.125 + 2.125, 0.0, 8.0],  # what a CPU reads from its memory is free
    ]
    assert evaluator.evaluate(placements).runtime.tolist() == [5.0, 2.5, 5.75, 8.0]
    assert evaluator.evaluate(placements).peak_memory[2].tolist() == [1000, 0, 0]
    assert evaluator.critical_groups(placements).tolist() == [
        [True] * 4,
        [True, False, True, False],  # of equal loads the first device counts
        [True, True, False, False],
        [False, False, True, True],
    ]


def test_what_one_device_does_for_a_sample_is_its_simulated_step() -> None:
    problem = two_chains()
    first, *others = problem.cluster.devices
    slow = replace(problem.cluster, devices=(replace(first, op_overhead=0.5), *others))
    problem = replace(problem, cluster=slow)
    alone = np.zeros((1, 4), np.int32)
    step = Simulator(problem).evaluate(alone).runtime[0]
    assert ThroughputEvaluator(problem).evaluate(alone).runtime[0] == step + 0.5 == 6.0


def test_a_tensor_leaves_once_and_comes_in_once() -> None:
    chains = two_chains()
    shared = replace(chains.graph, edges=np.array([[0, 2], [0, 3], [0, 1]], np.int32))
    evaluator = ThroughputEvaluator(replace(chains, graph=shared))
    loads = evaluator.loads(np.array([[0, 0, 1, 1]], np.int32))
    assert loads[0] == pytest.approx([2.5 + 1.125] * 2, rel=1e-12)


def test_it_is_an_evaluator_with_moves_and_refuses_what_the_simulator_refuses() -> None:
    evaluator = ThroughputEvaluator(two_chains())
    assert isinstance(evaluator, MoveEvaluator)
    with pytest.raises(GraphError, match=r"expected shape \(any, 4\), got \(1, 3\)"):
        evaluator.evaluate(np.zeros((1, 3), np.int32))
    assert evaluator.evaluate(np.empty((0, 4), np.int32)).runtime.shape == (0,)


def test_a_time_beside_which_all_others_would_be_nothing_is_refused() -> None:
    times = np.ones((4, 2))
    times[3, 1] = 1e18
    with pytest.raises(SimulationError, match=r"got 1e\+18 s for one op; where an op cannot run"):
        ThroughputEvaluator(two_chains(compute_time=times))
