"""Walks in compiled code against walks with one evaluation after the other."""

from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import (
    GraphError,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    from_networkx,
    parse_cluster,
    plain_walk,
)
from placeto_graphs.testing import check_walks
from placeto_simulator import Simulator, ThroughputEvaluator
from simulated_problems import Placed, layered_problem, placed_problems


def random_moves(
    problem: PlacementProblem, num_walks: int, num_moves: int, seed: int, max_allowance: float
) -> Moves:
    """Draw moves of single groups and of pairs, half of them critical, with allowances."""
    generator = np.random.default_rng(seed)
    groups, shape = problem.num_groups, (num_walks, num_moves)
    pair = min(2, groups)
    pairs = [generator.choice(groups, pair, replace=False) for _ in range(groups)]
    is_critical = generator.random(shape) < 0.5
    return Moves(
        set_of=np.where(
            is_critical, generator.integers(0, 2, shape), generator.integers(0, 2 * groups, shape)
        ),
        pick=np.where(is_critical, generator.random(shape), np.inf),
        neighbours=problem.group_graph.edges[:, :: generator.choice([-1, 1])],
        set_with=np.array([np.arange(groups), np.append(np.arange(1, groups), 0)], np.int32),
        device=generator.integers(0, problem.num_devices, shape).astype(np.int32),
        allowance=generator.uniform(0, max_allowance, shape) * generator.integers(0, 2, shape),
        first_member=np.append(np.arange(groups), groups + pair * np.arange(groups + 1)),
        members=np.append(np.arange(groups), pairs),
        memory_penalty=generator.choice([0.0, 0.1, 30.0]),
    )


@given(placed_problems(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 10.0]))
def test_compiled_walks_decide_as_plain_ones_do(
    placed: Placed, seed: int, max_allowance: float
) -> None:
    problem, placements = placed
    moves = random_moves(problem, len(placements), 12, seed, max_allowance)
    expected = plain_walk(Simulator(problem, num_threads=1), placements, moves)
    for num_threads in (1, 3):
        check_walks(Simulator(problem, num_threads=num_threads).walk(placements, moves), expected)


@given(placed_problems(), st.integers(0, 2**32 - 1))
def test_where_a_group_cannot_run_no_walk_goes(placed: Placed, seed: int) -> None:
    problem, placements = placed
    compute_time = problem.compute_time.copy()
    compute_time[0, 1:] = np.inf
    problem = replace(problem, compute_time=compute_time)
    placements = placements.copy()
    bound = problem.grouping.group_of[0]
    placements[:, bound] = 0
    moves = random_moves(problem, len(placements), 12, seed, 10.0)
    simulator = Simulator(problem, num_threads=1)
    walks = simulator.walk(placements, moves)
    check_walks(walks, plain_walk(simulator, placements, moves))
    assert not walks.placement[:, bound].any()


def test_a_walk_keeps_the_best_that_it_accepted() -> None:
    problem = layered_problem(200, 2, 20, np.random.default_rng(0))
    simulator = Simulator(problem, num_threads=1)
    start = np.zeros((1, problem.num_groups), np.int32)
    moves = random_moves(problem, 1, 300, 0, 1e-3)
    walks = simulator.walk(start, moves)
    again = simulator.evaluate(walks.best_placement)
    assert walks.best_runtime.tolist() == again.runtime.tolist()
    assert walks.best_peak_memory.tolist() == again.peak_memory.tolist()
    assert walks.best_runtime[0] == np.nanmin(walks.cost)
    assert np.isinf(walks.cost).any()
    assert walks.evaluations == (~np.isnan(walks.cost)).sum()
    assert not start.any()


@pytest.mark.parametrize("evaluator", [Simulator, ThroughputEvaluator])
def test_the_best_of_a_walk_is_what_fits_however_dear(
    evaluator: Callable[[PlacementProblem], MoveEvaluator],
) -> None:
    ops = nx.DiGraph()
    ops.add_nodes_from("ab", parameter_bytes=600)
    graph = from_networkx(ops)
    cluster = parse_cluster("2xk80")
    devices = tuple(
        replace(device, memory_bytes=1000, op_overhead=0.0) for device in cluster.devices
    )
    problem = PlacementProblem(
        graph=graph,
        cluster=replace(cluster, devices=devices),
        compute_time=np.array([[1.0, 90.0]] * 2),
    )
    there_and_back = Moves(
        set_of=np.array([[0, 0]]),
        device=np.array([[1, 0]]),
        allowance=np.array([[np.inf, np.inf]]),
        first_member=np.array([0, 1]),
        members=np.array([0]),
    )
    walks = evaluator(problem).walk(np.zeros((1, 2), np.int32), there_and_back)
    assert walks.placement.tolist() == [[0, 0]]
    # 2 s, and a fifth of the memory again: 14 s.
    assert walks.cost[0, 0] == walks.cost[0, 2] == pytest.approx(14.0)
    assert walks.cost[0, 1] == 90.0
    assert walks.best_placement.tolist() == [[1, 0]]
    assert walks.best_runtime.tolist() == [90.0]
    assert walks.best_peak_memory.tolist() == [[600, 600]]


def test_the_most_bytes_that_a_graph_may_have_do_not_wrap() -> None:
    max_bytes = 2**60
    ops = nx.DiGraph([("input", "op")])
    ops.add_node("weights", parameter_bytes=max_bytes)
    ops.nodes["op"]["workspace_bytes"] = max_bytes
    ops.edges["input", "op"]["bytes"] = max_bytes
    graph = from_networkx(ops)
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((3, 2))
    )
    simulator = Simulator(problem, num_threads=1)
    together = np.zeros((1, 3), np.int32)
    assert simulator.evaluate(together).peak_memory.tolist() == [[3 * max_bytes, 0]]
    moves = replace(random_moves(problem, 1, 1, 0, 0.0), memory_penalty=2.0)
    walks = simulator.walk(together, moves)
    runtime, memory = walks.best_runtime[0], problem.cluster.devices[0].memory_bytes
    assert walks.cost[0, 0] == pytest.approx(2 * runtime * 3 * max_bytes / memory, rel=1e-6)


def test_the_simulator_walks() -> None:
    problem = layered_problem(50, 2, 10, np.random.default_rng(0))
    assert isinstance(Simulator(problem), MoveEvaluator)
    start = np.zeros((2, problem.num_groups), np.int32)
    moves = random_moves(problem, 1, 3, 0, 0.0)
    with pytest.raises(GraphError, match=r"^set_of: expected moves of 2 walks, got 1$"):
        Simulator(problem).walk(start, moves)
    with pytest.raises(GraphError, match=r"^device: expected numbers from 0 to 1, got 2$"):
        Simulator(problem).walk(start[:1], replace(moves, device=np.full((1, 3), 2)))
    with pytest.raises(GraphError, match=r"^placements: expected shape"):
        Simulator(problem).walk(start[:, 1:], moves)
