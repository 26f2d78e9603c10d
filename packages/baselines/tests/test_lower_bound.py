import re
from dataclasses import replace

import numpy as np
import pytest

from baseline_problems import cluster, op_graph, problem_of, random_problems, two_chains
from placeto_baselines import BaselineError, bound_parts, lower_bound
from placeto_baselines.bounds.paths import longest_paths
from placeto_baselines.bounds.work import work_programme
from placeto_graphs import PlacementProblem, memory_penalised_runtime
from plain_evaluator import PlainEvaluator


def best_cost(problem: PlacementProblem) -> float:
    """Return the lowest memory-penalised runtime of all placements."""
    everywhere = np.array(list(np.ndindex(*[problem.num_devices] * problem.num_groups)), np.int32)
    seconds = problem.group_graph.compute_time
    can_run = np.isfinite(seconds[np.arange(problem.num_groups), everywhere]).all(axis=1)
    batch = PlainEvaluator(problem).evaluate(everywhere[can_run])
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes).min())


@pytest.mark.parametrize("shared_links", [False, True])
def test_no_placement_of_eighty_problems_beats_the_bound(shared_links: bool) -> None:
    reached = []
    for problem in random_problems(80, shared_links=shared_links):
        best = best_cost(problem)
        bound = lower_bound(problem)
        assert bound <= best
        reached.append(bound / best if best else 1.0)
    # It would be of no use if it were far away: it is the optimum itself for many.
    assert np.mean(reached) > 0.8
    assert np.mean(np.array(reached) > 1 - 1e-8) > 0.3


@pytest.mark.parametrize("shared_links", [False, True])
def test_any_multipliers_give_a_bound(shared_links: bool) -> None:
    generator = np.random.default_rng(1)
    for problem in random_problems(40, shared_links=shared_links):
        best = best_cost(problem)
        programme = work_programme(problem, longest_paths(problem), scale=2e-9)
        multipliers = programme.solver_multipliers()
        solved = programme.bound(*multipliers)
        for _ in range(20):
            noisy = [
                generator.lognormal(0, 2) * each * generator.random(each.shape)
                for each in multipliers
            ]
            found = programme.bound(*noisy)
            assert found <= best * (1 + 1e-9)
            assert found <= solved + 1e-6 * abs(solved)


@pytest.mark.parametrize("memory", [10**9, 10**12])
def test_sets_of_groups_bound_many_groups_nearly_as_well(memory: int) -> None:
    """Of each speed there is a group; with little memory most of the cost is that of its lack."""
    generator = np.random.default_rng(3)
    graph = op_graph(600, [], parameter_bytes=generator.integers(10**6, 10**8, 600))
    seconds = generator.lognormal(0, 1, (600, 3)) * np.array([4.0, 1.0, 2.0])
    seconds[:50, 1] = np.inf
    problem = problem_of(graph, cluster(["cpu", "k80", "v100"], memory=memory), seconds)
    programme = work_programme(problem, longest_paths(problem), scale=2e-9)
    best = programme.bound(*programme.solver_multipliers())
    of_sets = programme.bound(*programme.multipliers_of_sets(120))
    assert 0.98 * best <= of_sets <= best * (1 + 1e-9)


def test_work_is_shared_over_devices_of_different_speed() -> None:
    # Ten ops of 1 s on one device and of 4 s on the other: 8 and 2 of them, both until 8 s.
    problem = problem_of(op_graph(10, []), cluster(["v100", "k80"]), np.tile([1.0, 4.0], (10, 1)))
    assert lower_bound(problem) == pytest.approx(8.0)


def test_overheads_between_ops_count_but_not_the_last() -> None:
    on = cluster(["k80"], overhead=0.5)
    problem = problem_of(op_graph(3, []), on, np.ones((3, 1)))
    assert lower_bound(problem) == pytest.approx(3 + 2 * 0.5)
    assert best_cost(problem) == 4.0


@pytest.mark.parametrize("overhead", [5e-324, 1e-310, 1e-30, 1e200])
def test_times_of_any_size_have_a_bound(overhead: float) -> None:
    graph = op_graph(1, [], parameter_bytes=np.array([100]))
    on = cluster(["k80", "k80"], overhead=overhead, memory=50)
    for seconds in (0.0, 5e-324, 1.0):
        problem = problem_of(graph, on, np.full((1, 2), seconds))
        assert lower_bound(problem, scale=1.0) == pytest.approx(seconds + 50.0)


def test_a_path_that_must_change_devices_includes_its_transfers() -> None:
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=np.array([5, 7, 1]))
    compute_time = np.array([[1.0, np.inf], [np.inf, 2.0], [3.0, np.inf]])
    problem = problem_of(graph, cluster(["cpu", "k80"]), compute_time)
    assert lower_bound(problem) == pytest.approx(1 + 5 + 2 + 7 + 3)
    assert best_cost(problem) == 18


def test_a_shared_link_does_not_make_the_bound_too_high() -> None:
    # Two chains that must change devices, in opposite directions: with a link for each, their
    # transfers overlap, and the bound is reached; on one link the second waits.
    graph = op_graph(4, [(0, 1), (2, 3)], tensor_bytes=np.array([5, 1, 5, 1]))
    here, there = [1.0, np.inf], [np.inf, 1.0]
    own = problem_of(graph, cluster(["k80", "k80"]), np.array([here, there, there, here]))
    assert lower_bound(own) == pytest.approx(1 + 5 + 1)
    assert best_cost(own) == 7.0
    one_bus = np.array([[-1, 0], [0, -1]], np.int32)
    shared = replace(own, cluster=replace(own.cluster, link=one_bus, link_names=("bus",)))
    assert lower_bound(shared) == pytest.approx(1 + 5 + 1)
    assert best_cost(shared) == 1 + 5 + 5 + 1


def test_a_wait_makes_a_path_without_a_transfer() -> None:
    # Three ops of 1, 2 and 3 s that wait for each other, on devices of their own: a chain of 6 s.
    waits = np.array([[1, 0], [2, 1]], np.int32)
    graph = op_graph(3, [], waits=waits)
    seconds = np.where(np.eye(3, dtype=bool), [1.0, 2.0, 3.0], np.inf)
    apart = problem_of(graph, cluster(["k80"] * 3, bandwidth=1e-3, overhead=0.25), seconds)
    assert best_cost(apart) == 6.0
    assert bound_parts(apart)["path"] == pytest.approx(6.0)
    # On one device the overheads between them count.
    together = problem_of(graph, cluster(["k80"], overhead=0.25), seconds.min(axis=0)[:, None])
    assert best_cost(together) == 6.5
    assert bound_parts(together)["path"] == pytest.approx(6.5)


def test_parts_that_only_wait_for_each_other_need_no_transfer() -> None:
    # Two ops that do not fit one device: apart they take 2 s, whatever a byte takes.
    graph = op_graph(2, [], parameter_bytes=np.full(2, 10**9), waits=np.array([[1, 0]], np.int32))
    on = cluster(["k80", "k80"], memory=15 * 10**8, bandwidth=1e-9)
    problem = problem_of(graph, on, np.ones((2, 2)))
    assert best_cost(problem) == 2.0
    assert lower_bound(problem) == pytest.approx(2.0)


def test_memory_forces_a_transfer() -> None:
    graph = op_graph(2, [(0, 1)], parameter_bytes=np.full(2, 10**9), tensor_bytes=np.array([3, 1]))
    crowded = problem_of(graph, cluster(["k80", "k80"], memory=15 * 10**8), np.ones((2, 2)))
    # Together they lack half a gigabyte, which costs a second; apart, three seconds of transfer.
    assert best_cost(crowded) == 3.0
    assert lower_bound(crowded) == pytest.approx(3.0)
    assert lower_bound(crowded, scale=1e-6) == pytest.approx(5.0)
    roomy = problem_of(graph, cluster(["k80", "k80"], memory=2 * 10**9 + 10), np.ones((2, 2)))
    assert lower_bound(roomy, scale=1e-6) == pytest.approx(2.0)


def test_memory_that_no_placement_saves_is_paid_for() -> None:
    # Wherever the op runs, a billion bytes of workspace and a billion of inputs are in the way.
    graph = op_graph(2, [(0, 1)], workspace_bytes=np.array([0, 10**9]), tensor_bytes=[10**9, 0])
    problem = problem_of(
        graph, cluster(["k80", "k80"], memory=10**9, bandwidth=1e30), np.ones((2, 2))
    )
    assert best_cost(problem) == 4.0
    assert lower_bound(problem) == pytest.approx(4.0)


@pytest.mark.parametrize("edges", [[], [(0, 2), (1, 3)]])
def test_a_graph_without_costs_is_bounded_by_nothing(edges: list[tuple[int, int]]) -> None:
    graph = op_graph(4, edges, tensor_bytes=np.zeros(4, int))
    problem = two_chains(graph=graph, compute_time=np.zeros((4, 3)))
    assert lower_bound(problem) == 0.0


@pytest.mark.parametrize("scale", [-1.0, np.inf, np.nan])
def test_a_wrong_scale_is_named(scale: float) -> None:
    message = f"scale: expected a number >= 0, got {scale}"
    with pytest.raises(BaselineError, match=re.escape(message)):
        lower_bound(two_chains(), scale=scale)
