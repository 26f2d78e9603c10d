"""Search from starts: placements on fewer devices, the best chain of layers, and other placers'.

Read `PortfolioSearch` first; `MultilevelSearch` then continues from the starts that lead.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError, StoppedSearchError
from placeto_baselines.partitioning import MetisPlacer, ScotchPlacer
from placeto_baselines.placement_trials import (
    Limits,
    Report,
    SpentError,
    WatchedEvaluator,
    check_budget,
    evaluated,
    rank_of_result,
)
from placeto_baselines.scheduling.baechi import MSct
from placeto_baselines.scheduling.list_schedulers import CriticalPathPlacer, Heft
from placeto_baselines.search.chains import (
    MOST_EVALUATIONS,
    LayerChain,
    Stages,
    best_chain,
    chain_placement,
)
from placeto_baselines.search.contracted_search import LEAST_SECONDS, ContractedSearch
from placeto_baselines.search.layers import layers_of_groups
from placeto_baselines.search.local_search import num_placements
from placeto_baselines.search.multilevel_search import MultilevelSearch
from placeto_baselines.search.subsets import (
    CHAIN,
    SEARCHED,
    Choice,
    placements_without_search,
    restricted,
    subsets_to_search,
)
from placeto_graphs import Evaluator, GeneralEvaluator, PlacementProblem, PlacementResult

FEWEST_OPS = 60_000  # of a graph that is searched in blocks of ops first
ALL_TRIED = 4_096  # placements; the search tries all where there are no more, and needs no start
SPEED_OF_WALKS = 2.0  # evaluations of a walk in the time of a single one
SHARE_OF_CHAIN = 0.08  # of the evaluations of a search, at the most; more if the chain leads
SHARE_OF_LEADING_CHAIN = 0.15
FEWEST_OF_LEADING_CHAIN = 100  # evaluations, without which a chain that leads gets no more
SHARE_OF_SUBSETS = 0.1  # of the budget, for the searches on all subsets together
FEWEST_EVALUATIONS = 64  # of the search on a subset
FEWEST_OF_GROUP = 1 / 2  # of these evaluations, for each group
# Placers whose placements the search starts from, and the number of evaluations from which on they
# are worth what they cost: list schedulers take as long as 700 evaluations, m-SCT as 4,000.
PLACERS_OF_STARTS = (
    (MetisPlacer(), 1_000),
    (ScotchPlacer(), 3_000),
    (Heft(), 7_500),
    (CriticalPathPlacer(), 7_500),
    (MSct(), 40_000),
)


@dataclass(kw_only=True)
class PortfolioSearch:
    """Multilevel search that starts from placements that a person or another placer would make.

    It evaluates placements on fewer devices, the best chain of layers, and placements of other
    placers, as far as their seconds are a small part of the budget. With three devices or more,
    short searches on some of them take a tenth of the budget, if that is enough for each. Then
    `MultilevelSearch` continues from those that lead. It is the search of ``placeto place``, and
    the placer ``multilevel`` of the command.

    `KeyboardInterrupt` ends the search with the best placement so far.

    Parameters
    ----------
    seconds
        Seconds that it searches; None for as long as ``max_evaluations`` last.
    max_evaluations
        Maximum number of evaluations, those of starts included; None for as many as ``seconds``
        allow. With this alone a seed gives one result.
    bound
        Seconds that no placement beats, such as `lower_bound` returns: a placement that fits the
        memory and reaches them ends the search.
    report
        Function that is called with the best placement so far, at most five times a second.
    update
        Function that is called with a text that says which devices are searched now.
    clock
        Function that returns the time in seconds.
    chains
        Number of annealing chains in parallel, as of `MultilevelSearch`.
    stopped
        Function that returns True to end the search before its next part.
    contracts
        True if graphs of 60,000 ops or more are searched in blocks of ops first (`contracted`),
        where the evaluator is a `GeneralEvaluator`: few placements of the whole graph can be
        evaluated.

    Attributes
    ----------
    choices : list of `Choice`
        Placements on fewer devices, and the best chain, of the last call of `place`.

    Raises
    ------
    BaselineError
        If neither budget is given, or one is too small. In `place` a `StoppedSearchError`, if the
        evaluator fails after some placements; it has the best.

    Examples
    --------
    >>> search = PortfolioSearch(max_evaluations=200)
    >>> search.place(problem, evaluator).runtime
    1.0
    >>> [choice.kind for choice in search.choices]
    ['alone', 'alone', 'in-order', 'balanced']
    """

    name = "portfolio"

    seconds: float | None = None
    max_evaluations: int | None = None
    bound: float = 0.0
    report: Report = lambda *_: None
    update: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter
    chains: int = 1
    stopped: Callable[[], bool] = lambda: False
    contracts: bool = True
    choices: list[Choice] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_budget(self.max_evaluations, self.seconds)

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,
        start: NDArray[np.int32] | None = None,
    ) -> PlacementResult:
        """Return the best placement of all that were evaluated.

        No result is worse than ``start`` int32[G], a placement to start from.
        """
        began, self.choices = self.clock(), []
        watched = WatchedEvaluator(evaluator, self.report, Limits(self.max_evaluations))
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
        is_large = problem.graph.num_ops >= FEWEST_OPS
        if self.contracts and is_large and isinstance(watched, GeneralEvaluator):
            ContractedSearch(self, problem, watched, seed, began).search(results)
            return
        self.choices.extend(placements_without_search(problem, watched))
        affordable = self._affordable(watched, began)
        layers, are_modules = layers_of_groups(problem)
        chain = LayerChain(problem, watched, layers)
        if problem.num_devices > 1:
            self._add_chain(chain, watched, affordable)
        results += self._results_of_placers(problem, watched, seed, affordable)
        self._search_subsets(chain, watched, seed, affordable)
        results += [choice.result for choice in self.choices]
        seconds, max_evaluations = self.seconds, self.max_evaluations
        if seconds is not None:
            seconds = max(seconds - (self.clock() - began), LEAST_SECONDS)
        if max_evaluations is not None:
            max_evaluations -= watched.evaluations
        if self.stopped() or max_evaluations == 0:
            return
        search = MultilevelSearch(
            seconds, max_evaluations, bound=self.bound, clock=self.clock, chains=self.chains
        )
        search.place(
            problem,
            watched,
            seed=seed,
            starts=np.stack([result.placement for result in results]) if results else None,
            layers=layers if are_modules else None,  # coarse groups are levels already
        )

    def _affordable(self, watched: WatchedEvaluator, began: float) -> float:
        """Return the number of evaluations of the budget, as fast as they were so far."""
        if self.seconds is None:
            return self.max_evaluations or 0
        rate = max(watched.evaluations, 1) * self.chains / max(self.clock() - began, 1e-9)
        rate *= SPEED_OF_WALKS
        return min(self.max_evaluations or math.inf, self.seconds * rate)

    def _add_chain(self, chain: LayerChain, watched: WatchedEvaluator, affordable: float) -> None:
        """Add the best chain on all devices, which takes a larger share if it leads."""
        problem, starts = chain.problem, list[Stages]()
        best_rank = min(rank_of_result(problem, choice.result) for choice in self.choices)
        for share in (SHARE_OF_CHAIN, SHARE_OF_LEADING_CHAIN):
            evaluations = int(min(affordable * share, MOST_EVALUATIONS))
            if starts and evaluations < FEWEST_OF_LEADING_CHAIN:
                break
            stages = best_chain(chain, range(problem.num_devices), starts, evaluations)
            if stages is None or len(stages.devices) == 1:
                break  # one device has been evaluated alone
            starts = [stages]
            result = evaluated(watched, stages.device_of_layer()[chain.layer_of_group])
            if rank_of_result(problem, result) >= best_rank:
                break
        if starts:
            self.choices.append(Choice(tuple(sorted(starts[0].devices)), CHAIN, result))

    def _results_of_placers(
        self, problem: PlacementProblem, watched: WatchedEvaluator, seed: int, affordable: float
    ) -> list[PlacementResult]:
        """Return what the placers find that are worth their seconds."""
        if num_placements(problem) <= min(ALL_TRIED, affordable):
            return []
        results = []
        for placer, fewest_evaluations in PLACERS_OF_STARTS:
            if affordable >= fewest_evaluations and not self.stopped():
                try:
                    results.append(placer.place(problem, watched, seed=seed))
                except BaselineError:  # a library that cannot be used is no start
                    if watched.failures:
                        raise
        return results

    def _search_subsets(
        self, chain: LayerChain, watched: WatchedEvaluator, seed: int, affordable: float
    ) -> None:
        """Add the results of short searches on some of the devices, if each gets enough."""
        problem = chain.problem
        subsets = subsets_to_search(problem)
        share = SHARE_OF_SUBSETS / max(len(subsets), 1)
        evaluations = affordable * share
        if evaluations < max(FEWEST_EVALUATIONS, FEWEST_OF_GROUP * problem.num_groups):
            return
        seconds = None if self.seconds is None else self.seconds * share
        max_evaluations = None
        if self.max_evaluations is not None:
            max_evaluations = int(self.max_evaluations * share)
        search = MultilevelSearch(seconds, max_evaluations, clock=self.clock)
        for devices in subsets:
            if self.stopped():
                return
            names = [problem.cluster.device_names[device] for device in devices]
            self.update(f"on {'+'.join(names)} ...")
            # The chain gets the same share of the search on a subset as these of the whole one.
            near = chain_placement(chain, devices, evaluations * SHARE_OF_SUBSETS)
            smaller = restricted(problem, devices)
            starts = None if near is None else near[None]
            result = search.place(smaller, watched.of(smaller), seed=seed, starts=starts)
            self.choices.append(Choice(devices, SEARCHED, result))
