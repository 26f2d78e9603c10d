"""Teams of devices for copies, and the samples that each copy gets."""

from itertools import product

import numpy as np
import pytest

from baseline_problems import op_graph, problem_of
from placeto_baselines import LayerChain
from placeto_baselines.search.copies import (
    Team,
    balanced_samples,
    device_teams,
    placements_on_teams,
)
from placeto_graphs import parse_cluster
from placeto_simulator import Simulator

PAIR, UNEQUAL = [(0,), (1,)], "1xv100+1xp100+2xk80"


@pytest.mark.parametrize(
    ("spec", "seconds", "expected"),
    [
        ("1xcpu+2xk80", [9.0, 1, 1], [[(1,), (2,)]]),
        ("4xk80", [1.0] * 4, [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)]]),
        ("2x(2xk80)", [1.0] * 4, [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)], PAIR]),
        (UNEQUAL, [1.0, 2, 8, 8], [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)], PAIR]),
        ("3xk80", [1.0, np.inf, 1], [[(0,), (2,)]]),
        ("1xk80", [1.0], []),
    ],
)
def test_teams_are_of_all_devices_of_the_fastest_and_of_a_machine(
    spec: str, seconds: list[float], expected: list[list[Team]]
) -> None:
    problem = problem_of(op_graph(1, []), parse_cluster(spec), np.array([seconds]))
    assert list(device_teams(problem)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_copy_takes_the_least_time_for_which_there_is_memory(seed: int) -> None:
    """All divisions of the batch are tried."""
    rng = np.random.default_rng(seed)
    count, batch = int(rng.integers(2, 4)), int(rng.integers(4, 12))
    fixed, seconds = rng.uniform(0, 1, count), rng.uniform(0.2, 2, count)
    most = rng.integers(2, batch + 1, count).astype(float)
    divisions = [
        division
        for division in product(range(1, batch), repeat=count)
        if sum(division) == batch and (np.array(division) <= most).all()
    ]
    samples = balanced_samples(batch, fixed, seconds, most)
    if samples is None:  # the fewest seconds would leave a copy without samples
        unlimited = balanced_samples(batch, fixed * 0, seconds * 0 + 1, most)
        assert not divisions or unlimited is not None
        return
    best = min((fixed + seconds * division).max() for division in divisions)
    assert sum(samples) == batch
    assert (fixed + seconds * samples).max() == pytest.approx(best)


def test_each_copy_has_the_least_samples() -> None:
    costs = 9, np.zeros(3), np.array([1.0, 4.0, 4.0]), np.full(3, np.inf)
    assert balanced_samples(*costs) == (7, 1, 1)
    assert balanced_samples(*costs, min_samples=2) == (5, 2, 2)


def test_teams_of_the_same_kinds_have_the_same_stages() -> None:
    memory = 4 * parse_cluster("4xk80").memory_bytes[0] // 5
    graph = op_graph(4, [(0, 1), (1, 2), (2, 3)], parameter_bytes=np.full(4, memory // 2))
    problem = problem_of(graph, parse_cluster("4xk80"), np.ones((4, 4)))
    chain = LayerChain(problem, Simulator(problem), np.arange(4))
    placements = placements_on_teams(chain, [(0, 1), (3, 2)], 100)
    assert placements is not None
    first, second = placements.tolist()
    assert {*first} == {0, 1}
    assert second == [{0: 3, 1: 2}[device] for device in first]
