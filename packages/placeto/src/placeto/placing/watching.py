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
    """Passes on what an evaluator returns, and reports how many placements it was asked for.

    A placer may sample a placement without asking for it, if it knows already what it costs.

    Parameters
    ----------
    evaluator
        The one that is asked.
    report
        Gets the number of placements evaluated, and the lowest memory-penalised runtime in seconds.
    """

    def __init__(self, evaluator: Evaluator, report: Report) -> None:
        self.evaluations = 0
        self.best = np.inf
        self._evaluator = evaluator
        self._report = report
        self._reported = time.monotonic()

    @property
    def problem(self) -> PlacementProblem:
        """The problem whose placements are evaluated."""
        return self._evaluator.problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return what each placement costs."""
        return self.seen(self._evaluator.evaluate(placements))

    def seen(self, batch: EvaluationBatch) -> EvaluationBatch:
        """Count a batch, and report if it is time to."""
        self.evaluations += len(batch.runtime)
        if len(batch.runtime):
            self.best = min(self.best, float(costs_of(self.problem, batch).min()))
        now = time.monotonic()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(self.evaluations, self.best)
        return batch


class WatchedSchedulingEvaluator(WatchedEvaluator):
    """A watched evaluator that also says when each group is at work.

    Parameters
    ----------
    evaluator, report
        As of `WatchedEvaluator`.
    """

    def __init__(self, evaluator: SchedulingEvaluator, report: Report) -> None:
        super().__init__(evaluator, report)
        self._scheduler = evaluator

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return what each placement costs, and when its groups are at work."""
        schedule = self._scheduler.schedule(placements)
        self.seen(schedule)
        return schedule
