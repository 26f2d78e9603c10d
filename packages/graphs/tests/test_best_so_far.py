"""The best placement of a search so far, and the curve of its cost."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from example_graphs import refused
from placeto_graphs import BestSoFar, EvaluationBatch, Moves, PlacementProblem, plain_walk
from placeto_graphs.testing import example_problem

GIGABYTE = 10**9
Cost = tuple[float, int]  # seconds, and bytes on the second device


def two_groups() -> PlacementProblem:
    problem = example_problem(2)
    small = tuple(replace(device, memory_bytes=GIGABYTE) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=small))


class Listed:
    """An evaluator whose results are given in their order."""

    def __init__(self, problem: PlacementProblem, costs: list[Cost]) -> None:
        self.problem = problem
        self.costs = costs

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        now, self.costs = self.costs[: len(placements)], self.costs[len(placements) :]
        memory = np.zeros((len(now), self.problem.num_devices), np.int64)
        memory[:, 1] = [peak for _, peak in now]
        return EvaluationBatch(
            runtime=np.array([runtime for runtime, _ in now]), peak_memory=memory
        )


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("costs", "expected", "runtime", "row", "curve"),
    [
        # The second is the fastest, but 1 GB too large, which costs 2 s.
        (
            [(5.0, 0), (1.0, 2 * GIGABYTE), (2.5, 0), (2.5, 0), (4.0, 0)],
            [5.0, 3.0, 2.5, 2.5, 4.0],
            2.5,
            2,
            [[1, 5.0], [3, 2.5], [5, 2.5]],
        ),
        # What fits comes before what does not, whatever it costs.
        (
            [(1.0, 2 * GIGABYTE), (9.0, 0), (0.5, 2 * GIGABYTE), (8.0, 0), (np.inf, 0)],
            [3.0, 9.0, 2.5, 8.0, np.inf],
            8.0,
            3,
            [[1, 3.0], [2, 9.0], [4, 8.0], [5, 8.0]],
        ),
        # A placement over the memory is kept with its own runtime.
        ([(1.0, 2 * GIGABYTE)], [3.0], 1.0, 0, [[1, 3.0], [1, 3.0]]),
    ],
)
def test_the_best_and_its_curve(
    costs: list[Cost],
    expected: list[float],
    runtime: float,
    row: int,
    curve: list[list[float]],
    at_once: bool,
) -> None:
    problem = two_groups()
    evaluator, best = Listed(problem, costs), BestSoFar(problem)
    rows = np.array([[at % 2, at // 2 % 2] for at in range(len(costs))], np.int32)
    found = [
        best.add(some, evaluator.evaluate(some)) for some in ([rows] if at_once else rows[:, None])
    ]
    assert np.concatenate(found).tolist() == expected
    result = best.result(seconds=7.0)
    assert (result.runtime, result.evaluations, result.seconds) == (runtime, len(costs), 7.0)
    assert result.placement.tolist() == rows[row].tolist()
    assert result.peak_memory[1] == costs[row][1]
    assert result.curve.tolist() == curve
    assert (best.fits, best.cost) == (costs[row][1] == 0, curve[-1][1])


@pytest.mark.parametrize(
    ("peak", "curve"),
    [
        # The first walk goes from 9 s to 8 s, the second one from 7 s over 6 s to 5 s.
        (0, [[1, 10.0], [3, 8.0], [7, 5.0], [7, 5.0]]),
        # Walks that pay more for memory are found by what they paid; the curve has the usual cost.
        (2 * GIGABYTE, [[1, 12.0], [3, 10.0], [7, 7.0], [7, 7.0]]),
    ],
)
def test_the_curve_says_after_how_many_placements_walks_found_the_best(
    peak: int, curve: list[list[float]]
) -> None:
    problem = two_groups()
    seconds = (10.0, 9.0, 8.0, 8.5, 7.0, 6.0, 5.0)
    evaluator, best = Listed(problem, [(each, peak) for each in seconds]), BestSoFar(problem)
    start = np.zeros((1, 2), np.int32)
    best.add(start, evaluator.evaluate(start))
    moves = Moves(
        set_of=np.array([[0, 1], [0, 1]]),
        device=np.ones((2, 2), np.int32),
        allowance=np.zeros((2, 2)),
        first_member=np.array([0, 1, 2]),
        members=np.array([0, 1]),
        seconds_per_byte=5e-9,
    )
    best.add_walks(plain_walk(evaluator, np.zeros((2, 2), np.int32), moves), moves)
    assert best.placement is not None
    assert best.placement.tolist() == [1, 1]
    assert best.result(0.0).curve.tolist() == curve


def test_memory_costs_what_the_search_says_and_what_cannot_run_is_no_result() -> None:
    problem = two_groups()
    evaluator = Listed(problem, [(np.inf, 0), (1.0, 2 * GIGABYTE)])
    placement = np.zeros((1, 2), np.int32)
    best = BestSoFar(problem, seconds_per_byte=5e-9)
    best.add(placement, evaluator.evaluate(placement))
    with refused("evaluator: expected a placement that can run, got none"):
        best.result(0.0)
    assert best.add(placement, evaluator.evaluate(placement)).tolist() == [6.0]
