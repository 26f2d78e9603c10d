"""Multilevel search: simulated annealing at coarse levels of groups first, then at finer ones.

Read `MultilevelSearch.place` and `_search` first, then how `_Chains` move.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.search.local_search import (
    FEW_PLACEMENTS,
    all_placements,
    num_placements,
)
from placeto_baselines.search.move_sets import MoveSets, move_sets
from placeto_baselines.trials import Trials
from placeto_graphs import (
    SECONDS_PER_BYTE,
    CriticalEvaluator,
    Evaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
)

MOVES_OF_FIRST_ROUND = 64
MOST_MOVES_OF_ROUND = 4096
FEWEST_OF_WALK = 2  # evaluations: where it starts, and one move
SECONDS_OF_ROUND = 0.05
SHARE_OF_COARSER = 0.3  # of the moves ...
COARSER_LEVELS = 2  # ... take groups of one of so many coarser levels
AT_THE_BOUND = 1 + 1e-6
SHARE_OF_CRITICAL = 0.6  # of the moves, where the evaluator says which groups are critical
USUAL_UPHILL = 0.01  # part of the cost, where no move uphill was seen
RISE_OF_PENALTY = 2.0  # for memory, at each level at the end of which nothing fits

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Temperatures:
    """First and last temperature, in units of the mean cost of a random uphill move."""

    first: float
    last: float

    def at(self, share: float) -> float:  # of the cooling
        return float(self.first * (self.last / self.first) ** share)


class MultilevelSearch:
    """Anneals groups of coarse levels first, then those of finer ones, from the best placement.

    An annealing chain begins at a random placement of the level of about 128 groups, as coarser
    groups do not fit if memory is scarce. That level cools for half of the budget. Then the best
    placement of all continues at the finer levels, which have equal shares of the rest and low
    temperatures. Some moves still take groups of coarser levels. If the evaluator names critical
    groups (`CriticalEvaluator`), most moves take one of these to the device of a neighbour. The
    search minimises the memory-penalised runtime among placements that fit the memory. As long as
    none is known, the penalty rises.

    `KeyboardInterrupt` ends the search with the best placement so far, and so does a placement that
    reaches a given bound. If there are few placements, all are evaluated. Graph partitioners are
    multilevel, too (Hendrickson and Leland 1995, Karypis and Kumar 1998); they minimise a cut
    instead of a simulated step.

    Parameters
    ----------
    seconds
        Seconds that it searches; None for as long as ``evaluations`` last.
    evaluations
        Number of placements that are evaluated, at most; None for as many as ``seconds`` allow.
        With this alone a seed gives one result.
    bound
        Seconds that no placement beats, such as `lower_bound` says: a placement that fits the
        memory and reaches them ends the search.
    report
        Function that gets the number of evaluations and the lowest cost, seconds, between rounds.
    clock
        Function that returns the time in seconds; ``time.process_time`` leaves out what other
        processes take.
    chains
        Number of annealing chains in parallel, which an evaluator with as many threads runs at
        once. Two chains find in the same time what one finds in twice the time.

    Raises
    ------
    BaselineError
        When neither budget is given, or one is too small, or there is no chain. In `place` a
        `StoppedSearchError`, when the evaluator fails after some placements; it has the best.

    Examples
    --------
    >>> result = MultilevelSearch(evaluations=200).place(problem, evaluator)
    >>> result.runtime
    1.0
    """

    name = "multilevel"

    coarsest = 32
    first = 128  # groups of the level at which chains begin
    hot_share = 0.5  # of the budget
    hot = Temperatures(3.0, 0.03)
    warm = Temperatures(0.3, 0.03)  # from a placement that is given
    cold = Temperatures(0.03, 3e-3)

    def __init__(
        self,
        seconds: float | None = None,
        evaluations: int | None = None,
        *,
        bound: float = 0.0,
        report: Report | None = None,
        clock: Callable[[], float] = time.perf_counter,
        chains: int = 1,
    ) -> None:
        check_at_least("chains", chains, 1)
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
        self.chains = chains

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
            Seed of all random choices.
        start : int32[G]
            Placement to start from, such as that of a policy. No result is worse. A chain begins
            there, the last of several or a second one, at a lower temperature than from a random
            placement.
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
                for placements in all_placements(problem):
                    if budget.is_spent:
                        break
                    trials.evaluate(placements)
            else:
                self._search(trials, budget, seed, start)
        except KeyboardInterrupt:
            if not trials.count:
                raise
        return trials.result()

    def _search(
        self, trials: Trials, budget: "_Budget", seed: int, start: NDArray[np.int32] | None
    ) -> None:
        sets = move_sets(trials.problem, self.coarsest)
        first = max(n for n, size in enumerate(sets.sizes) if n == 0 or size <= self.first)
        chains = _Chains(sets, trials, budget, np.random.default_rng(seed), self.report)
        num_random = self.chains if start is None else max(1, self.chains - 1)
        chains.start(first, num_random, start)
        chains.measure(first)
        chains.anneal(first, [self.hot] * num_random + [self.warm], self.hot_share)
        finer = range(first + 1, sets.num_levels) or [first]
        for number, level in enumerate(finer, start=1):
            chains.gather(self.chains)
            share = self.hot_share + (1 - self.hot_share) * number / len(finer)
            chains.anneal(level, [self.cold] * self.chains, share)


@dataclass
class _Budget:
    """The budget of seconds and evaluations, and the bound."""

    trials: Trials
    seconds: float
    evaluations: float
    bound: float
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def share(self) -> float:  # that is spent
        elapsed = self.clock() - self.start if self.seconds < math.inf else 0.0
        return min(1.0, max(elapsed / self.seconds, self.trials.count / self.evaluations))

    @property
    def is_spent(self) -> bool:
        trials = self.trials  # what does not fit may cost less than all that does
        is_best = trials.best.fits and trials.best.cost <= self.bound * AT_THE_BOUND
        return self.share >= 1 or is_best

    @property
    def evaluations_left(self) -> float:
        return self.evaluations - self.trials.count


@dataclass
class _Chains:
    """The placements of all chains, their level, and their temperatures."""

    sets: MoveSets
    trials: Trials
    budget: _Budget
    generator: np.random.Generator
    report: Report | None

    def __post_init__(self) -> None:
        self.num_moves = MOVES_OF_FIRST_ROUND
        self.uphill = USUAL_UPHILL
        self.seconds_per_byte = SECONDS_PER_BYTE
        edges = self.trials.problem.group_graph.edges
        self.neighbours = np.concatenate([edges, edges[:, ::-1]])
        knows_critical = isinstance(self.trials.evaluator, CriticalEvaluator)
        self.share_of_critical = SHARE_OF_CRITICAL if knows_critical else 0.0

    def start(self, level: int, num_random: int, given: NDArray[np.int32] | None) -> None:
        """Go to random placements of a level, and to one that is given."""
        self.placements = np.stack(
            [self.sets.random_placement(level, self.generator) for _ in range(num_random)]
        )
        if given is not None:
            self.placements = np.append(self.placements, given[None], axis=0)

    def measure(self, level: int) -> None:
        """Find out by how much random moves uphill raise the cost, on average, in parts of it."""
        if not self._can_walk:
            return
        num_moves = int(min(MOVES_OF_FIRST_ROUND, self.budget.evaluations_left - 1))
        moves = self._moves(level, [math.inf], num_moves)
        costs = self.trials.walk(self.placements[:1], moves).cost[0]
        costs = costs[np.isfinite(costs)]
        steps = np.diff(costs)
        if (steps > 0).any():
            self.uphill = float(steps[steps > 0].mean() / costs.mean())

    def gather(self, num_chains: int) -> None:
        """Go on in some chains, all from the best placement of all that were evaluated."""
        best = self.trials.result().placement
        self.placements = np.repeat(best[None], num_chains, axis=0)

    def anneal(self, level: int, cooling: Sequence[Temperatures], until: float) -> None:
        """Try moves at a level, cooling, until a share of the budget is spent."""
        begin = self.budget.share
        while self.budget.share < until and self._can_walk:
            began = self.budget.clock()
            way = (self.budget.share - begin) / (until - begin)
            self._round(level, [each.at(way) for each in cooling[: len(self.placements)]])
            if self.budget.seconds < math.inf:
                self._pace(self.budget.clock() - began)
            if self.report:
                self.report(self.trials.count, self.trials.best.cost)
        if not self.trials.best.fits:
            self.seconds_per_byte *= RISE_OF_PENALTY

    @property
    def _can_walk(self) -> bool:
        return not self.budget.is_spent and self.budget.evaluations_left >= FEWEST_OF_WALK

    def _round(self, level: int, temperatures: list[float]) -> None:
        left = self.budget.evaluations_left
        chains = len(self.placements) if left >= len(self.placements) * FEWEST_OF_WALK else 1
        num_moves = int(min(self.num_moves, left // chains - 1))
        moves = self._moves(level, temperatures[:chains], num_moves)
        walked = self.trials.walk(self.placements[:chains], moves)
        self.placements[:chains] = walked.placement

    def _moves(self, level: int, temperatures: list[float], num_moves: int) -> Moves:
        shape = len(temperatures), num_moves
        levels = self._levels_of_moves(level, shape)
        set_of, device = self.sets.draw(levels, self.generator)
        is_critical = self.generator.random(shape) < self.share_of_critical
        return Moves(
            set_of=np.where(is_critical, levels, set_of),
            device=device,
            allowance=np.multiply(temperatures, self.uphill * self.trials.best.cost)[:, None]
            * self.generator.exponential(size=shape),
            first_member=self.sets.first_member,
            members=self.sets.members,
            pick=np.where(is_critical, self.generator.random(shape), np.inf),
            neighbours=self.neighbours,
            set_with=self.sets.set_with,
            seconds_per_byte=self.seconds_per_byte,
        )

    def _levels_of_moves(self, level: int, shape: tuple[int, int]) -> NDArray[np.int64]:
        """Return int64[C, N]: a level, and for some moves one of the next coarser ones."""
        levels = np.full(shape, level)
        first = max(0, level - COARSER_LEVELS)
        if first < level:
            coarser = self.generator.random(shape) < SHARE_OF_COARSER
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
