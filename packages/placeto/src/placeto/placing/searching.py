"""The multilevel search of `place_problem` and of comparisons, and evaluators that end a search."""

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.layers import layers_of_groups
from placeto.placing.choices import (
    CHAIN,
    SEARCHED,
    Choice,
    evaluated,
    placements_without_search,
    restricted,
    subsets_to_search,
)
from placeto.placing.costs import rank_of_result
from placeto.placing.evaluators import MOST_CHAINS
from placeto.progress import cpu_seconds
from placeto_baselines import (
    BaselineError,
    CriticalPathPlacer,
    Heft,
    LayerChain,
    MetisPlacer,
    MSct,
    MultilevelSearch,
    ScotchPlacer,
    Stages,
    StoppedSearchError,
    best_chain,
)
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
ALL_TRIED = 4_096  # placements; the search tries all where there are no more, and needs no start
SPEED_OF_WALKS = 2.0  # in single evaluations
SHARE_OF_CHAIN = 0.08  # of the evaluations of a search, at the most; more if it leads
SHARE_OF_LEADING_CHAIN = 0.15
FEWEST_OF_LEADING_CHAIN = 100
SHARE_OF_SUBSETS = 0.1
FEWEST_EVALUATIONS = 64  # of the search on a subset
FEWEST_OF_GROUP = 1 / 2  # of these, for each group
# Placers whose placements the search starts from, and the number of evaluations from which on they
# are worth what they cost: list schedulers take as long as 700 evaluations, m-SCT as 4,000.
PLACERS_OF_STARTS = (
    (MetisPlacer(), 1_000),
    (ScotchPlacer(), 3_000),
    (Heft(), 7_500),
    (CriticalPathPlacer(), 7_500),
    (MSct(), 40_000),
)

Report = Callable[[BestSoFar], None]
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


class SpentError(BaseException):
    """A placer is at its limit; no `Exception`, so that no placer continues after it."""


class WatchedEvaluator:
    """Returns what an evaluator returns, with reports, until a `SpentError` at the limits."""

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

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the runtime and memory of each placement."""
        return self._evaluated(self._evaluator.evaluate, placements)

    def of(self, problem: PlacementProblem) -> "WatchedEvaluator":
        """Return the same for a problem with as many groups, whose placements cost the same."""
        other = copy(self)
        other.problem = problem
        return other

    def counted(self, result: PlacementResult) -> PlacementResult:
        """Return a result with the evaluations, seconds and curve of what was evaluated here."""
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
            self._report(self._best)


@dataclass(kw_only=True)
class PortfolioSearch:
    """A multilevel search that starts from what a person or another placer would place.

    It evaluates placements on fewer devices, the best chain of layers, and placements of other
    placers, as far as their seconds are a small part of the budget. With three devices or more,
    short searches on some of them take a tenth, if that is enough for each. The search continues
    from those that lead. Ctrl-C ends it, with the best so far.
    Fields are parameters of `MultilevelSearch`; evaluations also count what is not searched.
    """

    name = MultilevelSearch.name

    limits: Limits
    bound: float = 0.0
    report: Report = lambda *_: None
    update: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter
    chains: int = 1
    stopped: Callable[[], bool] = lambda: False
    choices: list[Choice] = field(default_factory=list, init=False)  # of the last call of `place`

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,
        start: NDArray[np.int32] | None = None,
    ) -> PlacementResult:
        """Return the best placement; no worse than a ``start`` int32[G]."""
        began, self.choices = self.clock(), []
        watched = WatchedEvaluator(evaluator, self.report, Limits(self.limits.evaluations))
        try:
            self._place(problem, watched, seed, start, began)
        except (KeyboardInterrupt, SpentError):
            if not watched.evaluations:
                raise
        except Exception:  # one of the evaluator ends every part of the search alike
            if not (watched.failures and watched.evaluations):
                raise
            failure = watched.failures[0]
            raise StoppedSearchError(failure, watched.result()) from failure
        return replace(watched.result(), seconds=self.clock() - began)

    def _place(
        self,
        problem: PlacementProblem,
        watched: WatchedEvaluator,
        seed: int,
        start: NDArray[np.int32] | None,
        began: float,
    ) -> None:
        results = [] if start is None else [evaluated(watched, start)]
        self.choices.extend(placements_without_search(problem, watched))
        affordable = self._affordable(watched, began)
        layers, are_modules = layers_of_groups(problem)
        chain = LayerChain(problem, watched, layers)
        if problem.num_devices > 1:
            self._add_chain(chain, watched, affordable)
        needs_starts = problem.num_devices**problem.num_groups > ALL_TRIED
        for placer, least in PLACERS_OF_STARTS if needs_starts else ():
            if affordable >= least and not self.stopped():
                try:
                    results.append(placer.place(problem, watched, seed=seed))
                except BaselineError:  # a library that cannot be used is no start
                    if watched.failures:
                        raise
        subsets = subsets_to_search(problem)
        share = SHARE_OF_SUBSETS / max(len(subsets), 1)
        each, seconds, most = affordable * share, self.limits.seconds, self.limits.evaluations
        fewest = max(FEWEST_EVALUATIONS, FEWEST_OF_GROUP * problem.num_groups)
        for devices in subsets if each >= fewest else []:
            if self.stopped():
                return
            self.update(
                f"on {'+'.join(problem.cluster.device_names[each] for each in devices)} ..."
            )
            near = chain_placement(chain, devices, each * SHARE_OF_SUBSETS)
            smaller = restricted(problem, devices)
            result = MultilevelSearch(
                seconds and seconds * share, most and int(most * share), clock=self.clock
            ).place(
                smaller, watched.of(smaller), seed=seed, starts=None if near is None else near[None]
            )
            self.choices.append(Choice(devices, SEARCHED, result))
        starts = [result.placement for result in (*results, *(c.result for c in self.choices))]
        left = most and most - watched.evaluations
        if self.stopped() or left == 0:
            return
        MultilevelSearch(
            seconds and max(seconds - (self.clock() - began), 1e-3),
            left,
            bound=self.bound,
            clock=self.clock,
            chains=self.chains,
        ).place(
            problem,
            watched,
            seed=seed,
            starts=np.stack(starts) if starts else None,
            layers=layers if are_modules else None,  # coarse groups are levels already
        )

    def _add_chain(self, chain: LayerChain, watched: WatchedEvaluator, affordable: float) -> None:
        """Add the best chain on all devices, which takes a larger share if it leads."""
        problem, starts = chain.problem, list[Stages]()
        least = min(rank_of_result(problem, choice.result) for choice in self.choices)
        for share in (SHARE_OF_CHAIN, SHARE_OF_LEADING_CHAIN):
            evaluations = int(min(affordable * share, MOST_CHAINS))
            if starts and evaluations < FEWEST_OF_LEADING_CHAIN:
                break
            stages = best_chain(chain, range(problem.num_devices), starts, evaluations)
            if stages is None or len(stages.devices) == 1:
                return
            starts = [stages]
            result = evaluated(watched, stages.device_of_layer()[chain.layer_of_group])
            if rank_of_result(problem, result) >= least:
                break
        self.choices.append(Choice(tuple(sorted(starts[0].devices)), CHAIN, result))

    def _affordable(self, watched: WatchedEvaluator, began: float) -> float:
        """Return the number of evaluations of the budget, as fast as they were so far."""
        evaluations, seconds = self.limits.evaluations, self.limits.seconds
        if seconds is None:
            return evaluations or 0
        rate = max(watched.evaluations, 1) * self.chains / max(self.clock() - began, 1e-9)
        rate *= SPEED_OF_WALKS
        return min(evaluations or math.inf, seconds * rate)


def chain_placement(
    chain: LayerChain, devices: Sequence[int], evaluations: float
) -> NDArray[np.int32] | None:
    """Return int32[G], the best chain of layers on some devices, if there is one."""
    found = best_chain(chain, devices, evaluations=int(min(evaluations, MOST_CHAINS)))
    return None if found is None else found.device_of_layer()[chain.layer_of_group]
