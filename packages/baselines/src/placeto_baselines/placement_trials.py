"""Placements that a placer tries, under limits; and the base of placers that follow a rule."""

import math
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, StoppedSearchError, check_at_least
from placeto_graphs import (
    BestSoFar,
    CriticalEvaluator,
    EvaluationBatch,
    Evaluator,
    GeneralEvaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    SchedulingEvaluator,
    Walks,
    placement_ranks,
    plain_walk,
)

SECONDS_BETWEEN_REPORTS = 0.2

Report = Callable[[BestSoFar], None]
Batch = TypeVar("Batch", bound=EvaluationBatch)
Result = TypeVar("Result")


class PlacementTrials:
    """Evaluates placements and keeps the best; the clock runs from construction on.

    An evaluator that fails after some placements ends the search with a `StoppedSearchError`, which
    has the best of them.

    Parameters
    ----------
    problem
        Problem whose placements are evaluated.
    evaluator
        Evaluator of this problem.
    clock
        Function that returns the time in seconds.

    Raises
    ------
    BaselineError
        If the evaluator is that of another problem.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_evaluator(problem, evaluator)
        self.problem = problem
        self.evaluator = evaluator
        self.best = BestSoFar(problem)
        self._clock = clock
        self._began = clock()

    @property
    def evaluations(self) -> int:
        """Number of placements that were evaluated."""
        return self.best.evaluations

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each of int32[B, G]."""
        batch = self._query(self.evaluator.evaluate, placements)
        self.best.add(placements, batch)
        return batch

    def ranks(self, placements: NDArray[np.int32]) -> list[tuple[bool, float]]:
        """Return the rank of each of int32[B, G], as `placement_ranks` has it."""
        batch = self._query(self.evaluator.evaluate, placements)
        return self.best.add(placements, batch)

    def costs(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B], the cost of each of int32[B, G]: in seconds, what fits."""
        return np.array([cost for _, cost in self.ranks(placements)])

    def try_moves(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can, and count all of it."""
        walk: Callable[..., Walks] = partial(plain_walk, self.evaluator)
        if isinstance(self.evaluator, MoveEvaluator):
            walk = self.evaluator.walk
        walks = self._query(walk, placements, moves)
        self.best.add_walks(walks, moves)
        return walks

    def result(self) -> PlacementResult:
        """Return the best placement so far; what fits the memory comes first."""
        return self.best.result(self._clock() - self._began)

    def _query(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call the evaluator; if it fails, the error has the best placement so far."""
        try:
            return function(*arguments)
        except Exception as error:
            if self.best.placement is None:
                raise
            raise StoppedSearchError(error, self.result()) from error


@dataclass(frozen=True)
class Limits:
    """Limits of a search or placer.

    Attributes
    ----------
    max_evaluations : int or None
        Maximum number of evaluations; None for no limit.
    seconds : float or None
        Seconds after which it is stopped; None for no limit. What comes first is evaluated in any
        case.
    strict : bool
        True if it is stopped at ``max_evaluations``; False if these are those of a default, which a
        last rollout may exceed.

    Raises
    ------
    BaselineError
        If a limit is not above 0, or the seconds are not finite.
    """

    max_evaluations: int | None = None
    seconds: float | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.max_evaluations is not None:
            check_at_least("max_evaluations", self.max_evaluations, 1)
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise BaselineError(f"seconds: expected a finite number above 0, got {self.seconds}")


def check_budget(max_evaluations: int | None, seconds: float | None) -> None:
    """Refuse a search that no budget ends, or one that is too small."""
    if seconds is None and max_evaluations is None:
        raise BaselineError("seconds, max_evaluations: expected one of the two, got neither")
    Limits(max_evaluations, seconds)  # checks each


class SpentError(BaseException):
    """A placer is at its limit; no `Exception`, so that no placer continues after it."""


class WatchedEvaluator(PlacementTrials):
    """Returns what an evaluator returns, with reports, until a `SpentError` at the limits.

    It can schedule, walk, name critical groups, and be made for other problems, if the evaluator
    can. What is evaluated of other problems is not counted. An error of the evaluator is raised as
    it is.

    Parameters
    ----------
    evaluator
        Evaluator of a problem.
    report
        Function that is called with the best so far, at most five times a second.
    limits
        Limits of the evaluations, and of the seconds by the clock; by default none.
    clock
        Function that returns the time in seconds.

    Attributes
    ----------
    failures : list of Exception
        Errors of the evaluator, the first one first.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        report: Report,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        super().__init__(evaluator.problem, evaluator, clock)
        self.failures: list[Exception] = []
        self._report = report
        self._limits = limits or Limits()
        self._reported = time.monotonic()
        if isinstance(evaluator, SchedulingEvaluator):
            self.schedule = partial(self._evaluated, evaluator.schedule)
        if isinstance(evaluator, MoveEvaluator):
            self.walk = partial(self._walked, evaluator.walk)
        if isinstance(evaluator, CriticalEvaluator):
            self.critical_groups = partial(self._query, evaluator.critical_groups)
        if isinstance(evaluator, GeneralEvaluator):
            self.for_problem = evaluator.for_problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each of int32[B, G]."""
        return self._evaluated(self.evaluator.evaluate, placements)

    def of(self, problem: PlacementProblem) -> "WatchedEvaluator":
        """Return the same for a problem with as many groups, whose placements cost the same."""
        evaluator = copy(self)
        evaluator.problem = problem
        return evaluator

    def counted(self, result: PlacementResult) -> PlacementResult:
        """Return a result with the evaluations, seconds and curve of what was evaluated here."""
        rank = rank_of_result(self.problem, result)
        evaluations = max(self.evaluations, 1)
        return replace(
            result,
            evaluations=evaluations,
            seconds=self._clock() - self._began,
            curve=np.array([*self.best.curve, (evaluations, min(self.best.rank, rank)[1])]),
        )

    def _evaluated(
        self, evaluate: Callable[[NDArray[np.int32]], Batch], placements: NDArray[np.int32]
    ) -> Batch:
        """Evaluate as many placements as the limits allow."""
        allowed = placements[: self._num_allowed(len(placements))]
        batch = self._query(evaluate, allowed)
        self.best.add(allowed, batch)
        self._report_now_and_then()
        if len(allowed) < len(placements):
            raise SpentError
        return batch

    def _walked(
        self,
        walk: Callable[[NDArray[np.int32], Moves], Walks],
        placements: NDArray[np.int32],
        moves: Moves,
    ) -> Walks:
        """Walk, if the limits allow all of it; as far as they allow otherwise."""
        evaluations = len(placements) * (1 + moves.num_moves)
        allowed = self._num_allowed(evaluations)
        if allowed < evaluations:
            num_moves = allowed // len(placements) - 1  # besides the start of each walk
            if num_moves < 0:
                raise SpentError
            moves = replace(
                moves,
                set_of=moves.set_of[:, :num_moves],
                device=moves.device[:, :num_moves],
                allowance=moves.allowance[:, :num_moves],
                pick=moves.pick[:, :num_moves],
            )
        walks = self._query(walk, placements, moves)
        self.best.add_walks(walks, moves)
        self._report_now_and_then()
        if allowed < evaluations:
            raise SpentError
        return walks

    def _query(self, function: Callable[..., Result], *arguments: object) -> Result:
        try:
            return function(*arguments)
        except Exception as error:
            self.failures.append(error)
            raise

    def _num_allowed(self, count: int) -> int:
        """Return how many of ``count`` placements may be evaluated; `SpentError` if none may."""
        limits = self._limits
        in_time = limits.seconds is None or self._clock() - self._began < limits.seconds
        if self.evaluations and not in_time:
            raise SpentError
        if limits.max_evaluations is None or not limits.strict:
            return count
        if count and self.evaluations >= limits.max_evaluations:
            raise SpentError
        return min(count, limits.max_evaluations - self.evaluations)

    def _report_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._report(self.best)


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
        trials = PlacementTrials(problem, evaluator)
        trials.costs(self.placements(problem))
        return trials.result()


def check_evaluator(problem: PlacementProblem, evaluator: Evaluator) -> None:
    """Refuse the evaluator of another problem."""
    if evaluator.problem is not problem and evaluator.problem != problem:
        raise BaselineError(f"evaluator: expected one of {problem}, got one of {evaluator.problem}")


def evaluated(evaluator: Evaluator, placement: NDArray[np.integer]) -> PlacementResult:
    """Return a placement, int[G], and its costs."""
    rows = placement[None].astype(np.int32)
    batch = evaluator.evaluate(rows)
    return PlacementResult(
        placement=rows[0],
        runtime=float(batch.runtime[0]),
        peak_memory=batch.peak_memory[0],
        evaluations=1,
        seconds=0.0,
        curve=np.array([[1.0, float(batch.runtime[0])]]),
    )


def rank_of_result(problem: PlacementProblem, result: PlacementResult) -> tuple[bool, float]:
    """Return the rank of a placement, as `placement_ranks` has it."""
    batch = EvaluationBatch(
        runtime=np.array([result.runtime]), peak_memory=np.array([result.peak_memory])
    )
    return placement_ranks(batch, problem.cluster.memory_bytes)[0]
