"""The placements that a placer has tried, and the base of placers that follow a rule."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_graphs import (
    BestSoFar,
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    plain_walk,
)

Result = TypeVar("Result")


class Trials:
    """Evaluates placements and keeps the best; the clock runs from construction on.

    An evaluator that fails after some placements ends the search with a `StoppedSearchError`, which
    has the best of them.
    """

    def __init__(self, problem: PlacementProblem, evaluator: Evaluator) -> None:
        check_evaluator(problem, evaluator)
        self.problem = problem
        self.evaluator = evaluator
        self.best = BestSoFar(problem)
        self._start = time.perf_counter()

    @property
    def count(self) -> int:  # of placements that were evaluated
        return self.best.evaluations

    def batch(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each of int32[B, G]."""
        batch = self._query(self.evaluator.evaluate, placements)
        self.best.add(placements, batch)
        return batch

    def ranks(self, placements: NDArray[np.int32]) -> list[tuple[bool, float]]:
        """Return the rank of each of int32[B, G], as `placement_ranks` has it."""
        batch = self._query(self.evaluator.evaluate, placements)
        return self.best.add(placements, batch)

    def evaluate(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B], the cost of each of int32[B, G]: in seconds, what fits."""
        return np.array([cost for _, cost in self.ranks(placements)])

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can, and count all of it."""
        walk: Callable[..., Walks] = partial(plain_walk, self.evaluator)
        if isinstance(self.evaluator, MoveEvaluator):
            walk = self.evaluator.walk
        walks = self._query(walk, placements, moves)
        self.best.add_walks(walks, moves)
        return walks

    def result(self) -> PlacementResult:
        """Return the best placement so far."""
        return self.best.result(time.perf_counter() - self._start)

    def _query(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call the evaluator; where it fails, what has been found is kept."""
        try:
            return function(*arguments)
        except Exception as error:
            if self.best.placement is None:
                raise
            raise StoppedSearchError(error, self.result()) from error


class RulePlacer:
    """Base of the placers whose rule makes one placement or a few; the best of them is kept."""

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        """Return int32[B, G], what the rule makes of a problem."""
        raise NotImplementedError

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the placement that the rule makes; nothing of it is random."""
        trials = Trials(problem, evaluator)
        trials.evaluate(self.placements(problem))
        return trials.result()


def check_evaluator(problem: PlacementProblem, evaluator: Evaluator) -> None:
    """Refuse the evaluator of another problem."""
    if evaluator.problem is not problem and evaluator.problem != problem:
        raise BaselineError(f"evaluator: expected one of {problem}, got one of {evaluator.problem}")
