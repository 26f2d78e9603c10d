"""What a placer has tried so far, and the base of those that try what a rule makes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    memory_penalised_runtime,
    plain_walk,
)

Result = TypeVar("Result")


class Trials:
    """Evaluates placements and keeps the one with the lowest memory-penalised runtime.

    Of equally good placements the first is kept. The clock runs from construction on. An evaluator
    that fails stops the search; what else fails is an error of the search.

    Parameters
    ----------
    problem
        Problem to place.
    evaluator
        Evaluator of its placements.

    Raises
    ------
    BaselineError
        When the evaluator is one of another problem. Later a `StoppedSearchError`, when it fails
        after some placements: it has the best of them.
    """

    def __init__(self, problem: PlacementProblem, evaluator: Evaluator) -> None:
        if evaluator.problem is not problem and evaluator.problem != problem:
            raise BaselineError(
                f"evaluator: expected one of {problem}, got one of {evaluator.problem}"
            )
        self.problem = problem
        self.evaluator = evaluator
        self.memory = np.array([device.memory_bytes for device in problem.cluster.devices])
        self.count = 0
        self.best_cost = np.inf
        self._best: tuple[NDArray[np.int32], float, NDArray[np.int64]] | None = None
        self._curve: list[tuple[int, float]] = []
        self._start = time.perf_counter()

    def evaluate(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtime of int32[B, G] in seconds."""
        return self.record(placements, self._ask(self.evaluator.evaluate, placements))

    def cost(self, batch: EvaluationBatch) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtime of what was evaluated."""
        return memory_penalised_runtime(batch, self.memory)

    def record(self, placements: NDArray[np.int32], batch: EvaluationBatch) -> NDArray[np.float64]:
        """Count placements that were evaluated, and return their penalised runtimes."""
        costs = self.cost(batch)
        for row in np.flatnonzero(costs < self.best_cost):
            if costs[row] < self.best_cost:
                self._keep(placements[row], batch, int(row), float(costs[row]))
        self.count += len(costs)
        return costs

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can, and count all of it."""
        if isinstance(self.evaluator, MoveEvaluator):
            walks = self._ask(self.evaluator.walk, placements, moves)
        else:
            asked = _Function(self.problem, partial(self._ask, self.evaluator.evaluate))
            walks = plain_walk(asked, placements, moves)
        costs = self.cost_of_best(walks)
        best = int(costs.argmin())
        before = self.count
        if costs[best] < self.best_cost:
            tried = walks.cost[~np.isnan(walks.cost)]
            self.count += int(np.argmax(tried == costs[best])) - best  # `_keep` adds the row
            found = EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
            self._keep(walks.best_placement[best], found, best, float(costs[best]))
        self.count = before + walks.evaluations
        return walks

    def cost_of_best(self, walks: Walks) -> NDArray[np.float64]:
        """Return float64[C], the memory-penalised runtime of the best placement of each walk."""
        return self.cost(
            EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
        )

    @property
    def best_placement(self) -> NDArray[np.int32]:
        """int32[G], the best placement so far."""
        return self.result().placement

    def result(self) -> PlacementResult:
        """Return the best placement so far.

        Its curve holds the lowest memory-penalised runtime after so many placements: that is what
        the search minimises, and the runtime itself wherever placements fit the memory.
        """
        if self._best is None:
            raise BaselineError("evaluator: expected a placement that can run, got none")
        placement, runtime, peak_memory = self._best
        return PlacementResult(
            placement=placement,
            runtime=runtime,
            peak_memory=peak_memory,
            evaluations=self.count,
            seconds=time.perf_counter() - self._start,
            curve=np.array([*self._curve, (self.count, self.best_cost)]),
        )

    def _ask(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call the evaluator; where it fails, what has been found is kept."""
        try:
            return function(*arguments)
        except Exception as error:
            if self._best is None:
                raise
            raise StoppedSearchError(error, self.result()) from error

    def _keep(
        self, placement: NDArray[np.int32], batch: EvaluationBatch, row: int, cost: float
    ) -> None:
        self.best_cost = cost
        self._best = (placement.copy(), float(batch.runtime[row]), batch.peak_memory[row].copy())
        self._curve.append((self.count + row + 1, cost))


@dataclass(frozen=True)
class _Function:
    """An evaluator made of a function."""

    problem: PlacementProblem
    function: Callable[[NDArray[np.int32]], EvaluationBatch]

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        return self.function(placements)


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
