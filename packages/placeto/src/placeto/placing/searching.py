"""The multilevel search of `place_problem` and of comparisons, with the starts of other placers."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

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
from placeto.placing.watching import Limits, SpentError, WatchedEvaluator
from placeto_baselines import (
    BaselineError,
    CriticalPathPlacer,
    Heft,
    LayerChain,
    MetisPlacer,
    MSct,
    MultilevelSearch,
    ScotchPlacer,
    StoppedSearchError,
    best_chain,
)
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

ALL_TRIED = 4_096  # placements; the search tries all where there are no more, and needs no start
SHARE_OF_CHAIN = 0.25  # of the evaluations of a search, at the most
MOST_OF_CHAIN = 2_000
SHARE_OF_SUBSETS = 0.25
FEWEST_EVALUATIONS = 16  # of the search on a subset
FEWEST_OF_GROUP = 1 / 8  # of these, for each group
# Placers whose placements the search starts from, and the number of evaluations from which on they
# are worth what they cost: list schedulers take as long as 700 evaluations, m-SCT as 4,000.
PLACERS_OF_STARTS = (
    (MetisPlacer(), 1_000),
    (ScotchPlacer(), 3_000),
    (Heft(), 7_500),
    (CriticalPathPlacer(), 7_500),
    (MSct(), 40_000),
)


class PortfolioSearch:
    """A multilevel search that starts from what a person or another placer would place.

    It evaluates placements on fewer devices, the best chain of layers, and placements of other
    placers, as far as their seconds are a small part of the budget. With three devices or more the
    best of short searches on some of them take a quarter. Ctrl-C ends it, with the best so far.
    Parameters are those of `MultilevelSearch`; ``evaluations`` also count what is not searched.
    """

    name = MultilevelSearch.name

    def __init__(
        self,
        seconds: float | None = None,
        evaluations: int | None = None,
        *,
        bound: float = 0.0,
        report: Callable[[int, float], None] = lambda *_: None,
        update: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        chains: int = 1,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limits, self.bound, self.report = Limits(evaluations, seconds), bound, report
        self.update, self.clock, self.chains, self.stopped = update, clock, chains, stopped
        self.choices: list[Choice] = []  # of the last call of `place`

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
        if start is not None:
            watched.evaluate(start[None])
        self.choices.extend(placements_without_search(problem, watched))
        affordable = self._affordable(watched, began)
        layers, are_modules = layers_of_groups(problem)
        chain = LayerChain(problem, watched, layers)
        if problem.num_devices > 1:
            best = chain_placement(chain, range(problem.num_devices), affordable * SHARE_OF_CHAIN)
            if best is not None and np.ptp(best) > 0:
                devices = tuple(np.unique(best).tolist())
                self.choices.append(Choice(devices, CHAIN, evaluated(watched, best)))
        needs_starts = problem.num_devices**problem.num_groups > ALL_TRIED
        for placer, least in PLACERS_OF_STARTS if needs_starts else ():
            if affordable >= least and not self.stopped():
                try:
                    placer.place(problem, watched, seed=seed)
                except BaselineError:  # a library that cannot be used is no start
                    if watched.failures:
                        raise
        subsets = subsets_to_search(problem)
        each = affordable * SHARE_OF_SUBSETS / max(len(subsets), 1)
        fewest = max(FEWEST_EVALUATIONS, FEWEST_OF_GROUP * problem.num_groups)
        for devices in subsets if each >= fewest else []:
            if self.stopped():
                return
            self.update(
                f"on {'+'.join(problem.cluster.device_names[each] for each in devices)} ..."
            )
            near = chain_placement(chain, devices, each * SHARE_OF_SUBSETS)
            smaller = restricted(problem, devices)
            part = self.limits.part(SHARE_OF_SUBSETS / len(subsets))
            result = MultilevelSearch(part.seconds, part.evaluations, clock=self.clock).place(
                smaller,
                watched.of(smaller),
                seed=seed,
                starts=None if near is None else near[None],
            )
            self.choices.append(Choice(devices, SEARCHED, result))
        left = self.limits.evaluations and self.limits.evaluations - watched.evaluations
        if self.stopped() or left == 0:
            return
        seconds = self.limits.seconds
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
            starts=watched.result().placement[None] if watched.evaluations else None,
            layers=layers if are_modules else None,  # coarse groups are levels already
        )

    def _affordable(self, watched: WatchedEvaluator, began: float) -> float:
        """Return the number of evaluations of the budget, as fast as they were so far."""
        evaluations, seconds = self.limits.evaluations, self.limits.seconds
        if seconds is None:
            return evaluations or 0
        rate = max(watched.evaluations, 1) * self.chains / max(self.clock() - began, 1e-9)
        return min(evaluations or math.inf, seconds * rate)


def chain_placement(
    chain: LayerChain, devices: Sequence[int], evaluations: float
) -> NDArray[np.int32] | None:
    """Return int32[G], the best chain of layers on some devices, if there is one."""
    found = best_chain(chain, devices, evaluations=int(min(evaluations, MOST_OF_CHAIN)))
    return None if found is None else found.device_of_layer()[chain.layer_of_group]
