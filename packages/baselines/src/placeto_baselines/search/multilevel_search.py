"""Multilevel search: annealing from coarse groups to fine ones, as well as a given time allows.

Read `MultilevelSearch.place` and `_search` first, then how `_Walkers` move.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.search.exhaustive_search import all_placements, num_placements
from placeto_baselines.search.move_sets import MoveSets, move_sets
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, Moves, PlacementProblem, PlacementResult

FEW_PLACEMENTS = 4096  # so many are evaluated one and all
MOVES_OF_FIRST_ROUND = 64
MOST_MOVES_OF_ROUND = 4096
FEWEST_OF_WALK = 2  # evaluations: where it starts, and one move
SECONDS_OF_ROUND = 0.05
SHARE_OF_COARSER = 0.3  # of the moves ...
COARSER_LEVELS = 2  # ... take groups of one of so many coarser levels
AT_THE_BOUND = 1 + 1e-6

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Temperatures:
    """Between which temperatures annealing cools, in parts of the cost where it begins."""

    first: float
    last: float

    def at(self, share: float) -> float:
        """Return the temperature after a share of the way, from 0 to 1."""
        return float(self.first * (self.last / self.first) ** share)


class MultilevelSearch:
    """Anneals the groups of coarse levels first, then those of finer ones, from where it is.

    Two walks go side by side. One starts from a random placement of the coarsest level, the other
    of the level of about 128 groups: where memory is scarce, coarse groups do not fit. Once the
    first has come to that level, too, the better placement goes on, in both walks, to the next
    levels. The levels have equal shares of the budget. On the first one of a walk the temperature
    falls from where nearly every move is accepted, on all others it is low from the beginning, so
    that what coarse moves have found is kept; some moves still take groups of coarser levels. What
    is minimised is the memory-penalised runtime.

    It is an anytime search: `KeyboardInterrupt` ends it with the best placement so far, and so does
    reaching a bound that is known. Where there are few placements, all are evaluated. Multilevel
    search is how graphs are partitioned (Hendrickson and Leland 1995, Karypis and Kumar 1998), with
    a simulated step instead of a cut.

    Parameters
    ----------
    seconds
        Seconds that it searches; None for as long as ``evaluations`` last.
    evaluations
        Number of placements that are evaluated, at most; None for as many as ``seconds`` allow.
        With this alone a seed gives one result.
    bound
        Seconds that no placement beats, such as `lower_bound` says: reaching them ends the search.
    report
        Function that gets the number of evaluations and the lowest cost, seconds, between rounds.
    clock
        Function that returns the time in seconds; ``time.process_time`` leaves out what other
        processes take.

    Raises
    ------
    BaselineError
        When neither budget is given, or one is too small. In `place` a `StoppedSearchError`, when
        the evaluator fails after some placements; it has the best of them.

    Examples
    --------
    >>> result = MultilevelSearch(evaluations=200).place(problem, evaluator)
    >>> result.runtime
    1.0
    """

    name = "multilevel"

    walks = 2
    coarsest = 32
    meeting = 128  # groups of the level at which the walks meet
    hot = Temperatures(0.03, 1e-3)
    warm = Temperatures(3e-3, 3e-4)  # from a placement that is given
    cold = Temperatures(3e-4, 3e-5)

    def __init__(
        self,
        seconds: float | None = None,
        evaluations: int | None = None,
        *,
        bound: float = 0.0,
        report: Report | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if seconds is None and evaluations is None:
            raise BaselineError("seconds, evaluations: expected one of the two, got neither")
        if evaluations is not None:
            check_at_least("evaluations", evaluations, 1)
        if seconds is not None and not 0 < seconds < math.inf:
            raise BaselineError(f"seconds: expected a number above 0, got {seconds}")
        self.seconds = seconds
        self.evaluations = evaluations
        self.bound = bound
        self.report = report
        self.clock = clock

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,
        start: NDArray[np.int32] | None = None,
    ) -> PlacementResult:
        """Return the best placement of all that were evaluated.

        Parameters
        ----------
        problem
            Problem to place.
        evaluator
            Evaluator of its placements.
        seed
            Fixes every random choice.
        start : int32[G]
            A placement to start from, such as that of a policy: no result is worse than it, and the
            second walk goes on from there, at a lower temperature than from a random one.
        """
        trials = Trials(problem, evaluator)
        seconds = math.inf if self.seconds is None else self.seconds
        evaluations = math.inf if self.evaluations is None else self.evaluations
        budget = _Budget(trials, seconds, evaluations, self.bound, self.clock)
        try:
            if start is not None:
                trials.evaluate(np.asarray(start)[None])
            _start_on_one_device(trials, budget)
            if num_placements(problem) <= min(FEW_PLACEMENTS, budget.evaluations_left):
                _enumerate(trials, budget)
            else:
                self._search(trials, budget, seed, start)
        except KeyboardInterrupt:
            if not trials.count:
                raise
        return trials.result()

    def _search(
        self,
        trials: Trials,
        budget: "_Budget",
        seed: int,
        start: NDArray[np.int32] | None,
    ) -> None:
        sets = move_sets(trials.problem, self.coarsest)
        meeting = max(
            number for number, size in enumerate(sets.sizes) if number == 0 or size <= self.meeting
        )
        first_level = [0 if walk % 2 == 0 else meeting for walk in range(self.walks)]
        first_cooling = [self.hot, self.hot if start is None else self.warm]
        walkers = _Walkers(sets, trials, budget, np.random.default_rng(seed), self.report)
        walkers.start(first_level, start)
        shares = (np.arange(sets.num_levels) + 1) / sets.num_levels
        for walk, first in enumerate(first_level):
            walkers.cool(walk, first, first_cooling[walk], shares[first])
        for level, share in enumerate(shares.tolist()):
            for walk, first in enumerate(first_level):
                if level > first:
                    walkers.cool(walk, level, self.cold, share)
            walkers.walk(share)
            if level >= meeting:
                walkers.gather()


class _Budget:
    """How much of the seconds and evaluations is spent, and whether anything better can come."""

    def __init__(
        self,
        trials: Trials,
        seconds: float,
        evaluations: float,
        bound: float,
        clock: Callable[[], float],
    ) -> None:
        self.trials = trials
        self.seconds = seconds
        self.evaluations = evaluations
        self.bound = bound
        self.clock = clock
        self.start = clock()

    @property
    def share(self) -> float:
        """The share that is spent, from 0 to 1."""
        elapsed = self.clock() - self.start if self.seconds < math.inf else 0.0
        return min(1.0, max(elapsed / self.seconds, self.trials.count / self.evaluations))

    @property
    def is_spent(self) -> bool:
        return self.share >= 1 or self.trials.best_cost <= self.bound * AT_THE_BOUND

    @property
    def evaluations_left(self) -> float:
        return self.evaluations - self.trials.count


class _Walkers:
    """The placements of all walks, their levels, and their temperatures."""

    def __init__(
        self,
        sets: MoveSets,
        trials: Trials,
        budget: _Budget,
        generator: np.random.Generator,
        report: Report | None,
    ) -> None:
        self.sets = sets
        self.trials = trials
        self.budget = budget
        self.generator = generator
        self.report = report
        self.num_moves = MOVES_OF_FIRST_ROUND

    def start(self, levels: list[int], given: NDArray[np.int32] | None) -> None:
        """Go to random placements of some levels, and the last walk to one that is given."""
        self.placements = np.array(
            [self.sets.random_placement(level, self.generator) for level in levels]
        )
        if given is not None:
            self.placements[-1] = given
        self.best = self.placements.copy()
        self.best_cost = np.full(len(levels), np.inf)
        paid = int(min(len(levels), self.budget.evaluations_left))
        self.best_cost[:paid] = self.trials.evaluate(self.placements[:paid])
        self.level = list(levels)
        self.cooling = [Temperatures(1.0, 1.0)] * len(levels)
        self.begin = np.zeros(len(levels))
        self.end = np.ones(len(levels))

    def cool(self, walk: int, level: int, cooling: Temperatures, end: float) -> None:
        """Let a walk cool from its best placement on, until a share of the budget is spent."""
        self.placements[walk] = self.best[walk]
        self.level[walk], self.cooling[walk] = level, cooling
        self.begin[walk], self.end[walk] = self.budget.share, end

    def walk(self, until: float) -> None:
        """Try moves until a share of the budget is spent."""
        while self.budget.share < until and self._can_walk:
            began = self.budget.clock()
            self._round()
            if self.budget.seconds < math.inf:
                self._pace(self.budget.clock() - began)
            if self.report:
                self.report(self.trials.count, self.trials.best_cost)

    def gather(self) -> None:
        """Let all walks go on from the best placement of all that were evaluated."""
        self.placements[:] = self.best[:] = self.trials.best_placement
        self.best_cost[:] = self.trials.best_cost

    @property
    def _can_walk(self) -> bool:
        return not self.budget.is_spent and self.budget.evaluations_left >= FEWEST_OF_WALK

    def _round(self) -> None:
        left = self.budget.evaluations_left
        walks = len(self.placements) if left >= len(self.placements) * FEWEST_OF_WALK else 1
        moves = self._moves(walks, int(min(self.num_moves, left // walks - 1)))
        walked = self.trials.walk(self.placements[:walks], moves)
        self.placements[:walks] = walked.placement
        for walk, cost in enumerate(self.trials.cost_of_best(walked)):
            if cost < self.best_cost[walk]:
                self.best_cost[walk] = cost
                self.best[walk] = walked.best_placement[walk]

    def _moves(self, walks: int, num_moves: int) -> Moves:
        share = self.budget.share
        set_of = np.empty((walks, num_moves), np.int32)
        device = np.empty((walks, num_moves), np.int32)
        allowance = np.empty((walks, num_moves))
        for walk in range(walks):
            levels = self._levels_of_moves(self.level[walk], num_moves)
            set_of[walk], device[walk] = self.sets.draw(levels, self.generator)
            begin, end = self.begin[walk], self.end[walk]
            way = (share - begin) / (end - begin) if end > begin else 1.0
            temperature = self.best_cost[walk] * self.cooling[walk].at(min(max(way, 0.0), 1.0))
            allowance[walk] = temperature * self.generator.exponential(size=num_moves)
        return Moves(
            set_of=set_of,
            device=device,
            allowance=allowance,
            first_member=self.sets.first_member,
            members=self.sets.members,
        )

    def _levels_of_moves(self, level: int, num_moves: int) -> NDArray[np.int64]:
        """Return int64[N]: the level of a walk, and for some moves one of the next coarser ones."""
        levels = np.full(num_moves, level)
        first = max(0, level - COARSER_LEVELS)
        if first < level:
            coarser = self.generator.random(num_moves) < SHARE_OF_COARSER
            levels[coarser] = self.generator.integers(first, level, int(coarser.sum()))
        return levels

    def _pace(self, seconds: float) -> None:
        """Let a round take about as long as a person waits for Ctrl-C."""
        wanted = self.num_moves * SECONDS_OF_ROUND / max(seconds, 1e-6)
        self.num_moves = int(np.clip(wanted, self.num_moves / 2, 2 * self.num_moves))
        self.num_moves = min(max(self.num_moves, 1), MOST_MOVES_OF_ROUND)


def _start_on_one_device(trials: Trials, budget: _Budget) -> None:
    """Evaluate everything on one device, for each that can run it."""
    problem = trials.problem
    runs_all = np.isfinite(problem.group_graph.compute_time).all(axis=0)
    devices = np.flatnonzero(runs_all)[: int(min(budget.evaluations_left, problem.num_devices))]
    if len(devices):
        placements = np.repeat(devices.astype(np.int32)[:, None], problem.num_groups, axis=1)
        trials.evaluate(placements)


def _enumerate(trials: Trials, budget: _Budget) -> None:
    for placements in all_placements(trials.problem):
        if budget.is_spent:
            return
        trials.evaluate(placements)
