"""The placements that a placer has tried, and the base of placers that follow a rule."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_graphs import (
    CriticalEvaluator,
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    memory_penalised_runtime,
    placement_ranks,
    plain_walk,
)

Result = TypeVar("Result")


class Trials:
    """Evaluates placements and keeps the one with the lowest memory-penalised runtime.

    One that fits the memory of its devices comes before all that do not, whatever they cost. Of
    equally good placements the first is kept. The clock runs from construction on. An evaluator
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
        self.memory = problem.cluster.memory_bytes
        self.count = 0
        self._best_rank = (True, np.inf)
        self._best: tuple[NDArray[np.int32], float, NDArray[np.int64]] | None = None
        self._curve: list[tuple[int, float]] = []
        self._start = time.perf_counter()

    def evaluate(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtime of int32[B, G] in seconds."""
        batch = self._ask(self.evaluator.evaluate, placements)
        ranks = placement_ranks(batch, self.memory)
        for row, rank in enumerate(ranks):
            if rank < self._best_rank:
                self._keep(placements[row], batch, row, rank, self.count + row + 1)
        self.count += len(ranks)
        return np.array([cost for _, cost in ranks])

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can, and count all of it."""
        if isinstance(self.evaluator, MoveEvaluator):
            walks = self._ask(self.evaluator.walk, placements, moves)
        else:
            walks = plain_walk(_Asked(self), placements, moves)
        found = EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
        ranks = placement_ranks(found, self.memory)
        best = ranks.index(min(ranks))
        if ranks[best] < self._best_rank:
            paid = memory_penalised_runtime(found, self.memory, moves.seconds_per_byte)
            count = self.count + int(walks.evaluations_until(paid)[best])
            self._keep(walks.best_placement[best], found, best, ranks[best], count)
        self.count += walks.evaluations
        return walks

    @property
    def best_fits(self) -> bool:
        """Whether the best placement so far fits the memory of its devices."""
        return not self._best_rank[0]

    @property
    def best_cost(self) -> float:
        """The memory-penalised runtime of the best placement so far, in seconds."""
        return self._best_rank[1]

    @property
    def best_placement(self) -> NDArray[np.int32]:
        """int32[G], the best placement so far."""
        return self.result().placement

    def result(self) -> PlacementResult:
        """Return the best placement so far.

        Its curve has the memory-penalised runtime of the best placement after so many evaluations,
        which is the runtime if the placement fits. The curve rises if the first placement that fits
        costs more than one that does not.
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
        self,
        placement: NDArray[np.int32],
        batch: EvaluationBatch,
        row: int,
        rank: tuple[bool, float],
        count: int,
    ) -> None:
        self._best_rank = rank
        self._best = (placement.copy(), float(batch.runtime[row]), batch.peak_memory[row].copy())
        self._curve.append((count, rank[1]))


class _Asked:
    """The evaluator of trials, whose failures stop the search."""

    def __init__(self, trials: Trials) -> None:
        self.problem = trials.problem
        self.evaluate = partial(trials._ask, trials.evaluator.evaluate)
        if isinstance(trials.evaluator, CriticalEvaluator):
            self.critical_groups = partial(trials._ask, trials.evaluator.critical_groups)


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
