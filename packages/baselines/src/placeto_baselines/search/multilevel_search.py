"""Multilevel search: simulated annealing at coarse levels of groups first, then at finer ones.

Read `MultilevelSearch.place` and `_search` first, then how the chains of a `_Search` move.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import DeviceChoices, allowed_devices
from placeto_baselines.errors import check_at_least
from placeto_baselines.placement_trials import PlacementTrials, check_budget
from placeto_baselines.search.local_search import MAX_PLACEMENTS, all_placements, num_placements
from placeto_graphs import (
    MEMORY_PENALTY,
    BestSoFar,
    CriticalEvaluator,
    Evaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
)

MOVES_OF_FIRST_ROUND = 64
MOST_MOVES_OF_ROUND = 4096
SHARE_OF_MEASURING = 0.05  # of the budget, at the most
SHARE_OF_ONE_DEVICE = 0.2  # of the seconds
LEAST_OF_MEASURING = 1.0  # evaluations
MOST_RESTARTS = 64
FEWEST_OF_WALK = 2  # evaluations: of the start, and of one move
SECONDS_OF_ROUND = 0.05
SHARE_OF_COARSER = 0.3  # of the moves ...
COARSER_LEVELS = 2  # ... take groups of one of so many coarser levels
SHARE_OF_LAYERS = 0.1  # of the moves, where layers are given
AT_THE_BOUND = 1 + 1e-6
SHARE_OF_CRITICAL = 0.6  # of the moves, where the evaluator says which groups are critical
USUAL_UPHILL = 0.01  # rise as a fraction of the cost, as long as no move uphill was measured
RISE_OF_PENALTY = 2.0  # for memory, at each level at the end of which nothing fits

# First and last temperature, in units of the mean cost of a random uphill move.
Temperatures = tuple[float, float]


class MultilevelSearch:
    """Anneals groups of coarse levels first, then those of finer ones, from the best placement.

    An annealing chain begins at a random placement of the level of about 128 groups, as coarser
    groups do not fit if memory is scarce. It cools for a fifth of the budget. For another fifth,
    chains at a lower temperature continue from the placements that lead: the best of the starts and
    of the ends of random chains; with 4,000 evaluations or more there are two such chains. Then the
    best placement continues at the finer levels, which have equal shares of the rest and low
    temperatures. If the budget allows 3 G^2 evaluations several times, for G groups at the finest
    level, the search restarts with equal shares of it.

    Some moves still take groups of coarser levels, or given layers. If the evaluator names critical
    groups (`CriticalEvaluator`), most moves take one of these to the device of a neighbour. The
    search keeps the placement of the least rank (`placement_ranks`). As long as none that fits the
    memory is known, the penalty rises.

    `KeyboardInterrupt` ends the search with the best placement so far, and so does a placement that
    reaches a given bound. If there are at most 200,000 placements, and the budget suffices for all,
    all are evaluated. Graph partitioners are multilevel, too (Hendrickson and Leland 1995, Karypis
    and Kumar 1998); they minimise a cut instead of a simulated step.

    Parameters
    ----------
    seconds
        Seconds that it searches; None for as long as ``max_evaluations`` last.
    max_evaluations
        Maximum number of evaluations; None for as many as ``seconds`` allow.
        With this alone a seed gives one result.
    bound
        Seconds that no placement beats, such as `lower_bound` says: a placement that fits the
        memory and reaches them ends the search.
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
    >>> result = MultilevelSearch(max_evaluations=200).place(problem, evaluator)
    >>> result.runtime
    1.0
    """

    name = "multilevel"

    coarsest = 32  # groups of the coarsest level whose groups move
    first = 128  # groups of the level at which chains begin
    evaluations_of_pair = 3  # a restart has 3 G^2 evaluations, if the budget allows several
    evaluations_of_two = 4_000  # of the budget, from which on chains follow two leaders
    random_share = 0.2  # of the budget
    coarse_share = 0.4  # at the first level, the random chains included
    hot = 3.0, 0.03  # from random placements
    warm = 0.1, 0.01  # from the placements that lead
    cold = 0.02, 1e-3

    def __init__(
        self,
        seconds: float | None = None,
        max_evaluations: int | None = None,
        *,
        bound: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        chains: int = 1,
    ) -> None:
        check_at_least("chains", chains, 1)
        check_budget(max_evaluations, seconds)
        self.seconds = seconds
        self.max_evaluations = max_evaluations
        self.bound = bound
        self.clock = clock
        self.chains = chains

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,
        starts: NDArray[np.int32] | None = None,
        layers: NDArray[np.integer] | None = None,
    ) -> PlacementResult:
        """Return the best placement of all that were evaluated.

        ``starts`` int32[B, G] are placements to start from, such as those of other placers. No
        result is worse. Chains continue from the best of them and of the ends of random chains.
        ``layers`` int[G] are numbers of groups that some moves take together.
        """
        search = _Search(self, PlacementTrials(problem, evaluator), seed, layers)
        trials = search.trials
        try:
            if starts is not None:
                search.compare(starts)
            search.start_on_one_device()
            search.pace(self.clock() - search.began, trials.evaluations)
            if num_placements(problem) <= min(MAX_PLACEMENTS, search.affordable):
                search.try_all()
            else:
                self._search(search)
        except KeyboardInterrupt:
            if not trials.evaluations:
                raise
        return trials.result()

    def refine(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        starts: NDArray[np.int32],
        *,
        seed: int = 0,
        layers: NDArray[np.integer] | None = None,
    ) -> PlacementResult:
        """Return the best placement that chains reach from starts alone, as `place` continues.

        ``starts`` are int32[B, G], ``layers`` those of `place`.
        """
        search = _Search(self, PlacementTrials(problem, evaluator), seed, layers)
        try:
            search.compare(starts)
            search.pace(self.clock() - search.began, search.trials.evaluations)
            self._follow(search, lambda share: share, self.chains)
        except KeyboardInterrupt:
            if not search.trials.evaluations:
                raise
        return search.trials.result()

    def _search(self, search: "_Search") -> None:
        evaluations_of_restart = self.evaluations_of_pair * search.sets.sizes[-1] ** 2
        restarts = int(np.clip(search.affordable / evaluations_of_restart, 1, MOST_RESTARTS))
        leaders = max(self.chains, 2 if search.affordable >= self.evaluations_of_two else 1)
        for restart in range(restarts):
            self._restart(search, restart / restarts, 1 / restarts, leaders)

    def _restart(
        self, search: "_Search", share_before: float, budget_share: float, leaders: int
    ) -> None:
        """Search from new random placements, until another share of the budget is spent."""

        def until(share: float) -> float:
            return share_before + budget_share * share

        first = search.first_level
        if share_before:  # only the first restart has the placements that are given
            search.forget()
        search.placements = np.stack([search.random_placement(first) for _ in range(self.chains)])
        search.measure(first)
        search.anneal(first, self.hot, until(self.random_share))
        search.compare(search.placements)
        self._follow(search, until, leaders)

    def _follow(self, search: "_Search", until: Callable[[float], float], leaders: int) -> None:
        """Continue from the placements that lead: at the first level, then at finer ones."""
        first = search.first_level
        search.follow_leaders(leaders)
        search.anneal(first, self.warm, until(self.coarse_share))
        finer = range(first + 1, len(search.sets.sizes)) or [first]
        for position, level in enumerate(finer, start=1):
            search.follow_best(self.chains)
            share = self.coarse_share + (1 - self.coarse_share) * position / len(finer)
            search.anneal(level, self.cold, until(share))


class _Search:
    """One search: what is left of its budget, the placements of its chains, and their moves."""

    def __init__(
        self,
        settings: MultilevelSearch,
        trials: PlacementTrials,
        seed: int,
        layers: NDArray[np.integer] | None = None,
    ) -> None:
        self.settings, self.trials, self.layers = settings, trials, layers
        problem = trials.problem
        self.generator = np.random.default_rng(seed)
        self.seconds = math.inf if settings.seconds is None else settings.seconds
        self.max_evaluations = (
            math.inf if settings.max_evaluations is None else settings.max_evaluations
        )
        self.num_moves = MOVES_OF_FIRST_ROUND
        self.uphill = USUAL_UPHILL
        self.memory_penalty = MEMORY_PENALTY
        edges = problem.group_graph.edges
        self.neighbours = np.concatenate([edges, edges[:, ::-1]])
        knows_critical = isinstance(trials.evaluator, CriticalEvaluator)
        self.share_of_critical = SHARE_OF_CRITICAL if knows_critical else 0.0
        self.began = settings.clock()
        # Of this start: placements that may lead, with their ranks, and the best of its chains.
        self.ranked: list[tuple[tuple[bool, float], tuple[int, ...]]] = []
        self.best = BestSoFar(problem)
        self.placements = np.zeros((1, problem.num_groups), np.int32)  # of the chains

    @cached_property
    def sets(self) -> "MoveSets":
        return move_sets(self.trials.problem, self.settings.coarsest, self.layers)

    @property
    def first_level(self) -> int:
        """The level at which chains begin."""
        sizes, most = self.sets.sizes, self.settings.first
        return max(level for level, size in enumerate(sizes) if level == 0 or size <= most)

    @cached_property
    def choices(self) -> DeviceChoices:
        return DeviceChoices(self.sets.allowed)

    @property
    def share(self) -> float:  # of the budget that is spent
        elapsed = self.settings.clock() - self.began if self.seconds < math.inf else 0.0
        return min(1.0, max(elapsed / self.seconds, self.trials.evaluations / self.max_evaluations))

    @property
    def is_spent(self) -> bool:
        best = self.trials.best  # what does not fit may cost less than all that does
        return self.share >= 1 or (best.fits and best.cost <= self.settings.bound * AT_THE_BOUND)

    @property
    def evaluations_left(self) -> float:
        return self.max_evaluations - self.trials.evaluations

    @property
    def affordable(self) -> float:
        """Number of evaluations that the budget allows if they stay as fast as they were."""
        return min(self.evaluations_left, self.in_seconds)

    @property
    def in_seconds(self) -> float:
        """Number of evaluations in the seconds of the budget, as fast as they were."""
        elapsed = self.settings.clock() - self.began
        rate = self.trials.evaluations * self.settings.chains / elapsed if elapsed > 0 else math.inf
        return self.seconds * rate if self.trials.evaluations else math.inf

    @property
    def can_walk(self) -> bool:
        return not self.is_spent and self.evaluations_left >= FEWEST_OF_WALK

    def start_on_one_device(self) -> None:
        """Evaluate everything on one device, for each that can run it."""
        problem = self.trials.problem
        devices = np.flatnonzero(allowed_devices(problem).all(axis=0)).astype(np.int32)
        rows = np.repeat(devices[:, None], problem.num_groups, axis=1)
        rows = rows[: int(min(self.evaluations_left, len(rows)))]
        if len(rows):
            self.trials.costs(rows[:1])  # which tells how many of the others the seconds allow
            affordable = int(min(self.in_seconds * SHARE_OF_ONE_DEVICE, len(rows)))
            if affordable > 1:
                self.trials.costs(rows[1:affordable])

    def try_all(self) -> None:
        """Evaluate all placements, as far as the budget goes."""
        began = self.settings.clock()
        for placements in all_placements(self.trials.problem, lambda: self.num_moves):
            if self.is_spent:
                break
            self.trials.costs(placements)
            self.pace(self.settings.clock() - began, len(placements))
            began = self.settings.clock()

    def random_placement(self, level: int) -> NDArray[np.int32]:
        """Return int32[G]: each set of a level on a device that can run it, all equally likely."""
        first, end = self.sets.first_set[level : level + 2]
        device = self.choices.draw(np.arange(first, end), self.generator)
        placement: NDArray[np.int32] = device[self.sets.set_with[level] - first]
        return placement

    def measure(self, level: int) -> None:
        """Set ``uphill``, by how much random uphill moves raise the cost, as a mean fraction."""
        if not self.can_walk:
            return
        num_affordable = min(MOVES_OF_FIRST_ROUND, self.affordable * SHARE_OF_MEASURING)
        if num_affordable < LEAST_OF_MEASURING:
            return
        num_moves = int(min(max(num_affordable, FEWEST_OF_WALK), self.evaluations_left - 1))
        moves = self._moves(level, np.ones((1, num_moves)))
        moves = replace(moves, allowance=np.full((1, num_moves), np.inf))
        costs = self.trials.try_moves(self.placements[:1], moves).cost[0]
        costs = costs[np.isfinite(costs)]
        steps = np.diff(costs)
        if (steps > 0).any():
            self.uphill = float(steps[steps > 0].mean() / costs.mean())

    def compare(self, placements: NDArray[np.int32]) -> None:
        """Evaluate int32[B, G] that may lead, as many as the budget allows."""
        placements = placements[: int(min(self.evaluations_left, len(placements)))]
        if len(placements):
            ranks = self.trials.ranks(placements)
            self.ranked += zip(ranks, map(tuple, placements.tolist()), strict=True)

    def follow_leaders(self, count: int) -> None:
        """Continue with chains from the best of the placements that were compared."""
        leaders = sorted(set(self.ranked))[:count]
        if leaders:
            self.placements = np.array([placement for _, placement in leaders], np.int32)

    def follow_best(self, count: int) -> None:
        """Continue with all chains from the best placement of this start."""
        if self.best.placement is not None:
            self.placements = np.repeat(self.best.placement[None], count, axis=0)

    def forget(self) -> None:
        """Start again, with none of the placements that lead."""
        self.best, self.ranked = BestSoFar(self.trials.problem), []

    def anneal(self, level: int, cooling: Temperatures, until: float) -> None:
        """Try moves at a level, cooling, until a share of the budget is spent."""
        first_share, (hottest, coldest) = self.share, cooling
        while (share := self.share) < until and self.can_walk:
            round_start = self.settings.clock()
            budget = min(self.evaluations_left, np.ceil((until - share) * self.max_evaluations))
            chains = len(self.placements) if budget >= len(self.placements) * FEWEST_OF_WALK else 1
            num_moves = int(min(self.num_moves, max(budget / chains, FEWEST_OF_WALK) - 1))
            share_of_move = max(
                chains / self.max_evaluations, SECONDS_OF_ROUND / self.seconds / self.num_moves
            )
            shares = share - first_share + share_of_move * np.arange(num_moves)
            progress = np.minimum(shares / (until - first_share), 1.0)
            temperatures = hottest * (coldest / hottest) ** progress
            moves = self._moves(level, np.tile(temperatures, (chains, 1)))
            walks = self.trials.try_moves(self.placements[:chains], moves)
            self.best.add_walks(walks, moves)
            self.placements[:chains] = walks.placement
            self.pace(self.settings.clock() - round_start, chains * num_moves)
        if not self.trials.best.fits:
            self.memory_penalty *= RISE_OF_PENALTY

    def _moves(self, level: int, temperatures: NDArray[np.float64]) -> Moves:
        """Return random moves, one for each of float64[C, N] temperatures."""
        shape = temperatures.shape
        levels = self._levels_of_moves(level, shape)
        first_set = self.sets.first_set
        set_of = self.generator.integers(first_set[levels], first_set[levels + 1]).astype(np.int32)
        device = self.choices.draw(set_of, self.generator)
        is_critical = self.generator.random(shape) < self.share_of_critical
        return Moves(
            set_of=np.where(is_critical, levels, set_of),
            device=device,
            # That of Metropolis: -log(u) of a uniform u is exponential (`Moves`).
            allowance=temperatures
            * (self.uphill * self.trials.best.cost)
            * self.generator.exponential(size=shape),
            first_member=self.sets.first_member,
            members=self.sets.members,
            pick=np.where(is_critical, self.generator.random(shape), np.inf),
            neighbours=self.neighbours,
            set_with=self.sets.set_with,
            memory_penalty=self.memory_penalty,
        )

    def _levels_of_moves(self, level: int, shape: tuple[int, int]) -> NDArray[np.int64]:
        """Return int64[C, N]: a level, for some moves one of the next coarser ones, or layers."""
        levels = np.full(shape, level)
        first = max(0, level - COARSER_LEVELS)
        if first < level:
            coarser = self.generator.random(shape) < SHARE_OF_COARSER
            levels[coarser] = self.generator.integers(first, level, int(coarser.sum()))
        if self.layers is not None:
            levels[self.generator.random(shape) < SHARE_OF_LAYERS] = len(self.sets.sizes)
        return levels

    def pace(self, seconds: float, evaluations: int) -> None:
        """Let a round take `SECONDS_OF_ROUND`, by how long one took: Ctrl-C ends it soon."""
        if self.seconds < math.inf and evaluations:
            num_moves = evaluations / len(self.placements) * SECONDS_OF_ROUND / max(seconds, 1e-6)
            max_moves = min(2 * self.num_moves, MOST_MOVES_OF_ROUND)
            self.num_moves = int(np.clip(num_moves, 1, max_moves))


class MoveSets(NamedTuple):
    """The groups of L levels, from coarse to fine: S sets of the groups of the finest one.

    Layers are one more level, behind the finest.
    """

    sizes: tuple[int, ...]  # number of groups of each level, without the layers
    first_set: NDArray[np.int64]  # [L + 1], of each level
    first_member: NDArray[np.int32]  # [S + 1], start of each set in the members: see `Moves`
    members: NDArray[np.int32]
    set_with: NDArray[np.int32]  # [L, G], the set of each level with each group
    allowed: NDArray[np.bool_]  # [S, D], where all groups of a set can run


def move_sets(
    problem: PlacementProblem, coarsest: int = 1, layers: NDArray[np.integer] | None = None
) -> MoveSets:
    """Return the sets of the levels of a problem, from a coarse one to its own, and of layers.

    Coarse levels of fewer groups than ``coarsest`` are left out. Groups of a layer that no device
    can run whole are sets of their own.
    """
    levels = [
        level
        for index, level in enumerate(problem.levels[: problem.level + 1])
        if index == problem.level or level.num_groups >= coarsest
    ]
    of_level = [level.group_of[problem.grouping.first_ops] for level in levels]
    first_set = np.cumsum([0, *(level.num_groups for level in levels)])
    if layers is not None:
        runs = np.ones((int(layers.max()) + 1, problem.num_devices), np.bool_)
        np.logical_and.at(runs, layers, allowed_devices(problem))
        alone = len(runs) + np.arange(len(layers))
        whole = np.where(runs[layers].any(axis=1), layers, alone)
        layers = np.unique(whole, return_inverse=True)[1]
        of_level.append(layers.astype(np.int32))
        first_set = np.append(first_set, first_set[-1] + layers.max() + 1)
    set_with = np.stack(of_level) + first_set[:-1, None]
    first_member = np.append(0, np.cumsum(np.bincount(set_with.ravel())))
    members = np.concatenate([np.argsort(group_of, kind="stable") for group_of in of_level])
    can_run = allowed_devices(problem)[members]
    return MoveSets(
        tuple(level.num_groups for level in levels),
        first_set,
        first_member.astype(np.int32),
        members.astype(np.int32),
        set_with.astype(np.int32),
        np.logical_and.reduceat(can_run, first_member[:-1], axis=0),
    )
