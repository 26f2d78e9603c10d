import numpy as np
import pytest
from numpy.typing import NDArray

from baseline_problems import cluster, two_chains
from placeto_baselines import BaselineError
from placeto_baselines.trials import Trials
from placeto_graphs import EvaluationBatch, Moves, PlacementProblem, Walks, plain_walk

GIGABYTE = 10**9


class Listed:
    """An evaluator that says what it is told to."""

    def __init__(self, problem: PlacementProblem, answers: list[tuple[float, int]]) -> None:
        self.problem = problem
        self.answers = answers

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        now, self.answers = self.answers[: len(placements)], self.answers[len(placements) :]
        return EvaluationBatch(
            runtime=np.array([runtime for runtime, _ in now]),
            peak_memory=np.array([[0, 0, peak] for _, peak in now]),
        )


def placements(*devices: int) -> NDArray[np.int32]:
    return np.array([[device] * 4 for device in devices], np.int32)


def test_the_first_of_the_best_is_kept_and_the_curve_shows_when() -> None:
    problem = two_chains(cluster=cluster(["cpu", "k80", "k80"], memory=GIGABYTE))
    # The second is fastest, but a gigabyte too large, so that it comes behind all that fit.
    answers = [(5.0, 0), (1.0, 2 * GIGABYTE), (2.5, 0), (2.5, 0), (2.5, 0), (4.0, 0)]
    trials = Trials(problem, Listed(problem, answers))
    assert trials.evaluate(placements(0, 1, 2, 1)).tolist() == [5.0, 3.0, 2.5, 2.5]
    trials.evaluate(placements(0, 1))
    result = trials.result()
    assert result.placement.tolist() == [2, 2, 2, 2]
    assert (result.runtime, result.evaluations) == (2.5, 6)
    assert result.curve.tolist() == [[1, 5.0], [3, 2.5], [6, 2.5]]


@pytest.mark.parametrize("one_call", [False, True])
def test_the_curve_says_after_how_many_placements_a_walk_found_the_best(one_call: bool) -> None:
    class Walking(Listed):
        def walk(self, starts: NDArray[np.int32], moves: Moves) -> Walks:
            return plain_walk(self, starts, moves)

    problem = two_chains()
    # The first walk goes from 9 s to 8 s, the second one from 7 s over 6 s to 5 s.
    answers = [(seconds, 0) for seconds in (10.0, 9.0, 8.0, 8.5, 7.0, 6.0, 5.0)]
    trials = Trials(problem, (Walking if one_call else Listed)(problem, answers))
    trials.evaluate(placements(0))
    walks = trials.walk(
        placements(1, 1),
        Moves(
            set_of=np.array([[0, 1], [0, 1]]),
            device=np.full((2, 2), 2),
            allowance=np.zeros((2, 2)),
            first_member=np.array([0, 1, 2]),
            members=np.array([0, 1]),
        ),
    )
    assert walks.best_runtime.tolist() == [8.0, 5.0]
    result = trials.result()
    assert result.placement.tolist() == [2, 2, 1, 1]
    assert result.curve.tolist() == [[1, 10.0], [7, 5.0], [7, 5.0]]


def test_the_curve_counts_to_the_best_of_a_walk_that_pays_more_for_memory() -> None:
    problem = two_chains(cluster=cluster(["cpu", "k80", "k80"], memory=GIGABYTE))
    trials = Trials(problem, Listed(problem, [(s, 2 * GIGABYTE) for s in (9.0, 8.0, 7.0)]))
    trials.evaluate(placements(0))
    moves = Moves(
        set_of=np.array([[0]]),
        device=np.array([[2]]),
        allowance=np.array([[0.0]]),
        first_member=np.array([0, 1]),
        members=np.array([0]),
        seconds_per_byte=5e-9,
    )
    trials.walk(placements(1), moves)
    assert trials.result().curve.tolist() == [[1, 11.0], [3, 9.0], [3, 9.0]]


@pytest.mark.parametrize("at_once", [False, True])
def test_what_fits_comes_before_what_does_not_whatever_it_costs(at_once: bool) -> None:
    problem = two_chains(cluster=cluster(["cpu", "k80", "k80"], memory=GIGABYTE))
    answers = [(1.0, 2 * GIGABYTE), (9.0, 0), (0.5, 2 * GIGABYTE), (8.0, 0), (np.inf, 0)]
    trials = Trials(problem, Listed(problem, answers))
    for rows in [placements(1, 2, 1, 0, 1)] if at_once else placements(1, 2, 1, 0, 1)[:, None]:
        trials.evaluate(rows)
    result = trials.result()
    assert result.runtime == 8.0
    assert result.placement.tolist() == [0, 0, 0, 0]
    assert result.curve.tolist() == [[1, 3.0], [2, 9.0], [4, 8.0], [5, 8.0]]


def test_a_placement_over_the_memory_is_kept_with_its_own_runtime() -> None:
    problem = two_chains(cluster=cluster(["cpu", "k80", "k80"], memory=GIGABYTE))
    trials = Trials(problem, Listed(problem, [(1.0, 2 * GIGABYTE)]))
    trials.evaluate(placements(1))
    assert trials.result().runtime == 1.0
    assert trials.result().curve.tolist() == [[1, 3.0], [1, 3.0]]
    assert not trials.result().fits(problem.cluster)


def test_placements_that_cannot_run_are_no_result() -> None:
    problem = two_chains()
    trials = Trials(problem, Listed(problem, [(np.inf, 0)]))
    trials.evaluate(placements(1))
    with pytest.raises(BaselineError, match="evaluator: expected a placement that can run"):
        trials.result()
