"""No placement of any problem beats the bound, with the simulator as the judge."""

import numpy as np
import pytest
from small_problems import small_problem

from placeto_baselines import LocalSearch, exhaustive_search, lower_bound
from placeto_baselines.bounds.fork_join import fork_join_bound
from placeto_baselines.bounds.paths import longest_paths
from placeto_graphs import PlacementProblem
from placeto_simulator import Simulator


def least_runtime(problem: PlacementProblem) -> float:
    return exhaustive_search(problem, Simulator(problem, num_threads=1)).runtime


def parts_of_the_optimum(seed: int, count: int, max_groups: int) -> list[float]:
    """Return the bound of random problems in parts of their optimum, which it may not pass."""
    generator = np.random.default_rng(seed)
    parts = []
    for _ in range(count):
        problem = small_problem(generator, max_groups)
        best = least_runtime(problem)
        bound = fork_join_bound(problem, longest_paths(problem)) * (1 - 1e-9)
        assert bound <= best, f"{bound} s for an optimum of {best} s: {problem}"
        parts.append(bound / best if best else 1.0)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count", "max_groups"), [(100, 1500, 6), (200, 60, 10)])
def test_no_placement_beats_the_bound(seed: int, count: int, max_groups: int) -> None:
    assert np.mean(parts_of_the_optimum(seed, count, max_groups)) > 0.7


def test_the_bound_of_all_parts_is_the_best_of_each() -> None:
    generator = np.random.default_rng(7)
    for _ in range(30):
        problem = small_problem(generator, 5)
        bound = lower_bound(problem)
        part = fork_join_bound(problem, longest_paths(problem))
        assert part * (1 - 1e-9) <= bound <= least_runtime(problem)
        found = LocalSearch(budget=20).place(problem, Simulator(problem, num_threads=1))
        assert bound <= found.runtime
