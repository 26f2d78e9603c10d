"""The conformance suites pass what is right, and find each thing that may be wrong."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
from numpy.typing import NDArray

from placeto_graphs import (
    BestSoFar,
    EvaluationBatch,
    Evaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    plain_walk,
)
from placeto_graphs.testing import EvaluatorSuite, LoadEvaluator, PlacerSuite, random_placements

Draw = Callable[[PlacementProblem, int], NDArray[np.int32]]
Change = Callable[[PlacementResult], PlacementResult]


class BestOfThree:
    """The best of three random placements."""

    name = "best-of-three"

    def __init__(
        self,
        change: Change = lambda result: result,
        draw: Draw = lambda problem, seed: random_placements(problem, 3, seed),
    ) -> None:
        self.change, self.draw = change, draw

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        rows, best = self.draw(problem, seed), BestSoFar(problem)
        best.add(rows, evaluator.evaluate(rows))
        return self.change(best.result(seconds=0.0))


class TestBestOfThree(PlacerSuite):
    """A placer that is right."""

    def make_placer(self, problem: PlacementProblem) -> BestOfThree:  # noqa: ARG002
        return BestOfThree()


class Walking(LoadEvaluator):
    """An evaluator with moves and without schedules."""

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        is_critical: NDArray[np.bool_] = placements == placements[:, :1]
        return is_critical

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        return plain_walk(self, placements, moves)


class TestWalkingEvaluator(EvaluatorSuite):
    """An evaluator that is right."""

    def make_evaluator(self, problem: PlacementProblem) -> Walking:
        return Walking(problem)


def outcomes(suite: Any) -> tuple[set[str], set[str]]:
    """Return the tests of a suite that fail, and those that are skipped."""
    failed, skipped = set(), set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except SkipTest:
                skipped.add(name)
            except Exception:
                failed.add(name)
    return failed, skipped


def test_what_an_evaluator_does_not_have_is_skipped() -> None:
    class Suite(EvaluatorSuite):
        def make_evaluator(self, problem: PlacementProblem) -> LoadEvaluator:
            return LoadEvaluator(problem)

    assert outcomes(Suite()) == (
        set(),
        {
            "test_a_schedule_costs_what_the_placement_does",
            "test_a_walk_is_one_evaluation_after_the_other",
            "test_some_groups_of_each_placement_are_critical",
        },
    )


CALLS = count()
RESULT = "test_a_result_is_what_the_evaluator_returns"


@pytest.mark.parametrize(
    ("placer", "failing"),
    [
        (
            BestOfThree(draw=lambda problem, _: np.zeros((3, problem.num_groups), np.int32)),
            {RESULT},
        ),
        (
            BestOfThree(draw=lambda problem, _: random_placements(problem, 3, next(CALLS))),
            {"test_a_seed_gives_one_result", "test_a_placer_can_be_used_again"},
        ),
        (BestOfThree(lambda result: replace(result, runtime=result.runtime / 2)), {RESULT}),
        (BestOfThree(lambda result: replace(result, curve=result.curve[:1] * [1, 2])), {RESULT}),
        (BestOfThree(lambda result: replace(result, evaluations=1)), {RESULT}),
    ],
)
def test_what_is_wrong_with_a_placer_is_found(placer: BestOfThree, failing: set[str]) -> None:
    class Suite(PlacerSuite):
        def make_placer(self, problem: PlacementProblem) -> BestOfThree:  # noqa: ARG002
            return placer

    assert failing <= outcomes(Suite())[0]


class Changed(Walking):
    """An evaluator in which one thing is wrong."""

    fault = ""

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        if self.fault == "stumbles over barred devices":
            self.problem.group_graph.compute_time[0, placements]  # an IndexError, or nothing
        if self.fault == "takes barred devices":
            shape = (len(placements), self.problem.num_devices)
            return EvaluationBatch(
                runtime=np.ones(len(placements)), peak_memory=np.zeros(shape, np.int64)
            )
        batch = super().evaluate(placements)
        if self.fault == "depends on the batch":
            return replace(batch, runtime=batch.runtime + 1e-3 * np.arange(len(placements)))
        if self.fault == "writes":
            placements[:] = 0
        if self.fault == "one row":
            return replace(batch, runtime=batch.runtime[:1], peak_memory=batch.peak_memory[:1])
        return batch

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        if self.fault == "has other critical groups in a walk":
            return Walking(self.problem).walk(placements, moves)
        if self.fault == "goes downhill only":
            moves = replace(moves, allowance=np.zeros_like(moves.allowance))
        return super().walk(placements, moves)

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        critical = np.ones(placements.shape, np.bool_)
        if self.fault == "nothing is critical":
            critical[-1] = False
        if self.fault == "critical by the batch":
            critical[1:, 0] = False
        return critical if self.fault != "critical as numbers" else critical.astype(np.int32)


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        ("takes barred devices", "test_wrong_placements_are_refused"),
        ("stumbles over barred devices", "test_wrong_placements_are_refused"),
        ("depends on the batch", "test_a_batch_is_its_placements_one_by_one"),
        ("writes", "test_placements_stay_as_they_are"),
        ("one row", "test_results_have_a_row_for_each_placement"),
        ("has other critical groups in a walk", "test_a_walk_is_one_evaluation_after_the_other"),
        ("goes downhill only", "test_a_walk_is_one_evaluation_after_the_other"),
        ("nothing is critical", "test_some_groups_of_each_placement_are_critical"),
        ("critical by the batch", "test_some_groups_of_each_placement_are_critical"),
        ("critical as numbers", "test_some_groups_of_each_placement_are_critical"),
    ],
)
def test_what_is_wrong_with_an_evaluator_is_found(wrong: str, test: str) -> None:
    class Wrong(Changed):
        fault = wrong

    class Suite(EvaluatorSuite):
        def make_evaluator(self, problem: PlacementProblem) -> Wrong:
            return Wrong(problem)

    assert test in outcomes(Suite())[0]
