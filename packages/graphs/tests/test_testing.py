"""The conformance suites pass what is right, and find each thing that may be wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    memory_penalised_runtime,
    plain_walk,
)
from placeto_graphs.testing import (
    EvaluatorSuite,
    LoadEvaluator,
    PlacerSuite,
    random_placements,
)


class BestOfThree:
    """The best of three random placements."""

    name = "best-of-three"

    def __init__(self, change: Callable[[PlacementResult], PlacementResult] | None = None) -> None:
        self.change = change or (lambda result: result)

    def draw(self, problem: PlacementProblem, seed: int) -> NDArray[np.int32]:
        return random_placements(problem, 3, seed)

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        rows = self.draw(problem, seed)
        batch = evaluator.evaluate(rows)
        costs = memory_penalised_runtime(batch, problem.cluster.memory_bytes)
        best = int(costs.argmin())
        return self.change(
            PlacementResult(
                placement=rows[best],
                runtime=batch.runtime[best],
                peak_memory=batch.peak_memory[best],
                evaluations=3,
                seconds=0.0,
                curve=np.array([[1, costs[0]], [3, costs.min()]]),
            )
        )


class Barred(BestOfThree):
    def draw(self, problem: PlacementProblem, seed: int) -> NDArray[np.int32]:  # noqa: ARG002
        return np.zeros((3, problem.num_groups), np.int32)


class Moody(BestOfThree):
    calls = 0

    def draw(self, problem: PlacementProblem, seed: int) -> NDArray[np.int32]:  # noqa: ARG002
        self.calls += 1
        return super().draw(problem, self.calls)


class Unseeded(BestOfThree):
    def draw(self, problem: PlacementProblem, seed: int) -> NDArray[np.int32]:  # noqa: ARG002
        return super().draw(problem, int.from_bytes(np.random.default_rng().bytes(4), "big"))


class TestBestOfThree(PlacerSuite):
    """A placer that is right."""

    def make_placer(self, problem: PlacementProblem) -> BestOfThree:  # noqa: ARG002
        return BestOfThree()


class TestLoadEvaluator(EvaluatorSuite):
    """An evaluator that is right, without moves and schedules."""

    def make_evaluator(self, problem: PlacementProblem) -> LoadEvaluator:
        return LoadEvaluator(problem)


def test_what_an_evaluator_does_not_have_is_skipped() -> None:
    suite = TestLoadEvaluator()
    for method, test in (
        ("schedule", suite.test_a_schedule_costs_what_the_placement_does),
        ("walk", suite.test_a_walk_is_one_evaluation_after_the_other),
        ("critical_groups", suite.test_some_groups_of_each_placement_are_critical),
    ):
        with pytest.raises(SkipTest, match=f"it has no {method}\\("):
            test()


class Walking(LoadEvaluator):
    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        is_critical: NDArray[np.bool_] = placements == placements[:, :1]
        return is_critical

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        return plain_walk(self, placements, moves)


class TestWalkingEvaluator(EvaluatorSuite):
    """An evaluator that is right, with moves."""

    def make_evaluator(self, problem: PlacementProblem) -> Walking:
        return Walking(problem)


def failures(suite: Any) -> set[str]:
    """Return the tests of a suite that fail."""
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except SkipTest:
                pass
            except Exception:
                failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("placer", "expected"),
    [
        (BestOfThree(), set()),
        (Barred(), {"test_no_group_goes_where_it_cannot_run"}),
        (Unseeded(), {"test_a_seed_gives_one_result", "test_a_placer_can_be_used_again"}),
        (Moody(), {"test_a_seed_gives_one_result", "test_a_placer_can_be_used_again"}),
        (
            BestOfThree(lambda result: replace(result, runtime=result.runtime / 2)),
            {"test_a_result_is_what_the_evaluator_returns"},
        ),
        (
            BestOfThree(lambda result: replace(result, curve=result.curve[:1] * [1, 2])),
            {"test_a_result_is_what_the_evaluator_returns"},
        ),
        (
            BestOfThree(lambda result: replace(result, evaluations=1)),
            {"test_a_result_is_what_the_evaluator_returns"},
        ),
    ],
)
def test_what_is_wrong_with_a_placer_is_found(placer: BestOfThree, expected: set[str]) -> None:
    class Suite(PlacerSuite):
        def make_placer(self, problem: PlacementProblem) -> BestOfThree:  # noqa: ARG002
            return placer

    assert expected <= failures(Suite())
    assert bool(expected) == bool(failures(Suite()))


class Changed(Walking):
    """An evaluator in which one thing is wrong."""

    def __init__(self, problem: PlacementProblem, what: str) -> None:
        super().__init__(problem)
        self.what = what

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        if self.what == "takes barred devices":
            placements = np.clip(placements, 0, self.problem.num_devices - 1)
            rows = np.zeros((len(placements), self.problem.num_groups), np.int32)
            rows[:, : placements.shape[1]] = placements
            return EvaluationBatch(
                runtime=np.ones(len(rows)),
                peak_memory=np.zeros((len(rows), self.problem.num_devices), np.int64),
            )
        batch = super().evaluate(placements)
        if self.what == "depends on the batch":
            return replace(batch, runtime=batch.runtime + 1e-3 * np.arange(len(placements)))
        if self.what == "writes":
            placements[:] = 0
        if self.what == "one row":
            return replace(batch, runtime=batch.runtime[:1], peak_memory=batch.peak_memory[:1])
        return batch

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        found = super().walk(placements, moves)
        if self.what == "has other critical groups in a walk":
            return Walking(self.problem).walk(placements, moves)
        if self.what == "goes downhill only":
            downhill = replace(moves, allowance=np.zeros_like(moves.allowance))
            return super().walk(placements, downhill)
        return found

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        critical = np.ones(placements.shape, np.bool_)
        if self.what == "nothing is critical":
            critical[-1] = False
        if self.what == "critical by the batch":
            critical[1:, 0] = False
        return critical if self.what != "critical as numbers" else critical.astype(np.int32)


@pytest.mark.parametrize(
    ("what", "test"),
    [
        ("takes barred devices", "test_wrong_placements_are_refused"),
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
def test_what_is_wrong_with_an_evaluator_is_found(what: str, test: str) -> None:
    class Suite(EvaluatorSuite):
        def make_evaluator(self, problem: PlacementProblem) -> Changed:
            return Changed(problem, what)

    assert test in failures(Suite())
