"""An evaluator that reports the progress of a search, and ends it at its limits."""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.costs import rank_of_result
from placeto.progress import cpu_seconds
from placeto_graphs import (
    BestSoFar,
    CriticalEvaluator,
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    SchedulingEvaluator,
    Walks,
)

SECONDS_BETWEEN_REPORTS = 0.2

Report = Callable[[int, float], None]
Batch = TypeVar("Batch", bound=EvaluationBatch)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Limits of a placer; None for no limit."""

    evaluations: int | None = None
    seconds: float | None = None  # CPU seconds; what comes first is evaluated in any case

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise InputError(f"seconds: expected a finite number above 0, got {self.seconds}")

    def part(self, share: float) -> "Limits":
        """Return a part of the limits."""
        return Limits(
            self.evaluations and int(self.evaluations * share),
            self.seconds and self.seconds * share,
        )


class SpentError(BaseException):
    """A placer is at its limit; no `Exception`, so that no placer continues after it."""


class WatchedEvaluator:
    """Returns what an evaluator returns, and reports how many placements it evaluated.

    It has the optional methods that the evaluator has. The report gets the number of evaluations
    and the memory-penalised runtime of the best. Beyond the limits a `SpentError` ends the search,
    and `result` has the best until then.
    """

    def __init__(self, evaluator: Evaluator, report: Report, limits: Limits | None = None) -> None:
        self.problem: PlacementProblem = evaluator.problem
        self._best = BestSoFar(self.problem)
        self.failures: list[Exception] = []  # of the evaluator, the first one first
        self._evaluator = evaluator
        self._report = report
        self._limits = limits or Limits()
        self._reported = time.monotonic()
        self._began = cpu_seconds()
        if isinstance(evaluator, SchedulingEvaluator):
            self.schedule = partial(self._evaluated, evaluator.schedule)
        if isinstance(evaluator, MoveEvaluator):
            self.walk = partial(self._walked, evaluator.walk)
        if isinstance(evaluator, CriticalEvaluator):
            self.critical_groups = partial(self._query, evaluator.critical_groups)

    @property
    def evaluations(self) -> int:
        """Number of placements that were evaluated."""
        return self._best.evaluations

    @property
    def best(self) -> float:
        """The memory-penalised runtime of the best placement so far, in seconds."""
        return self._best.cost

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each placement."""
        return self._evaluated(self._evaluator.evaluate, placements)

    def of(self, problem: PlacementProblem) -> "WatchedEvaluator":
        """Return the same for a problem with as many groups, whose placements cost the same."""
        other = copy(self)
        other.problem = problem
        return other

    def counted(self, result: PlacementResult) -> PlacementResult:
        """Return a result with the evaluations, seconds and curve of what was evaluated here.

        If that is nothing, it is what its placement costs.
        """
        rank = rank_of_result(self.problem, result)
        count = max(self.evaluations, 1)
        return replace(
            result,
            evaluations=count,
            seconds=cpu_seconds() - self._began,
            curve=np.array([*self._best.curve, (count, min(self._best.rank, rank)[1])]),
        )

    def result(self) -> PlacementResult:
        """Return the best placement that was evaluated; what fits the memory comes first."""
        return self._best.result(cpu_seconds() - self._began)

    def _evaluated(
        self, evaluate: Callable[[NDArray[np.int32]], Batch], placements: NDArray[np.int32]
    ) -> Batch:
        allowed = placements[: self._allowed(len(placements))]
        batch = self._query(evaluate, allowed)
        self._best.add(allowed, batch)
        self._tell()
        if len(allowed) < len(placements):
            raise SpentError
        return batch

    def _walked(
        self,
        walk: Callable[[NDArray[np.int32], Moves], Walks],
        placements: NDArray[np.int32],
        moves: Moves,
    ) -> Walks:
        """Walk, if the limit allows all of it; as far as it allows otherwise."""
        wanted = len(placements) * (1 + moves.num_moves)
        allowed = self._allowed(wanted)
        if allowed < wanted:
            most = allowed // len(placements) - 1  # besides the start of each walk
            if most < 0:
                raise SpentError
            of_each = ("set_of", "device", "allowance", "pick")
            moves = replace(moves, **{name: getattr(moves, name)[:, :most] for name in of_each})
        walks = self._query(walk, placements, moves)
        self._best.add_walks(walks, moves)
        self._tell()
        if allowed < wanted:
            raise SpentError
        return walks

    def _query(self, function: Callable[..., Result], *arguments: object) -> Result:
        try:
            return function(*arguments)
        except Exception as error:
            self.failures.append(error)
            raise

    def _allowed(self, wanted: int) -> int:
        """Return how many placements may be evaluated of so many; raise `SpentError` if none."""
        evaluations, seconds = self._limits.evaluations, self._limits.seconds
        if seconds is not None and self.evaluations and cpu_seconds() - self._began >= seconds:
            raise SpentError
        if evaluations is None:
            return wanted
        if wanted and self.evaluations >= evaluations:
            raise SpentError
        return min(wanted, evaluations - self.evaluations)

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(self.evaluations, self.best)
