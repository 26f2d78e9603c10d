"""An evaluator that tells how far a search is."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import costs_of
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    ScheduleBatch,
    SchedulingEvaluator,
)

SECONDS_BETWEEN_REPORTS = 0.2

Report = Callable[[int, float], None]


class WatchedEvaluator:
    """Returns what an evaluator returns, and reports how many placements it evaluated.

    If the evaluator also returns schedules, this one does, too. A placer may sample a placement
    without evaluating it, if it knows already what it costs. The report gets the number of
    placements evaluated, and the lowest memory-penalised runtime in seconds.
    """

    def __init__(self, evaluator: Evaluator, report: Report) -> None:
        self.problem: PlacementProblem = evaluator.problem
        self.evaluations = 0
        self.best = np.inf
        self._evaluator = evaluator
        self._report = report
        self._reported = time.monotonic()
        if isinstance(evaluator, SchedulingEvaluator):
            schedule = evaluator.schedule

            def watched(placements: NDArray[np.int32]) -> ScheduleBatch:
                result = schedule(placements)
                self._see(result)
                return result

            self.schedule = watched

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each placement."""
        batch = self._evaluator.evaluate(placements)
        self._see(batch)
        return batch

    def _see(self, batch: EvaluationBatch) -> None:
        self.evaluations += len(batch.runtime)
        if len(batch.runtime):
            self.best = min(self.best, float(costs_of(self.problem, batch).min()))
        now = time.monotonic()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(self.evaluations, self.best)
