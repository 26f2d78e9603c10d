"""Search of a graph so large that few placements can be evaluated: on smaller graphs first."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import random_placements
from placeto_baselines.errors import BaselineError
from placeto_baselines.partitioning import MetisPlacer, ScotchPlacer
from placeto_baselines.placement_trials import WatchedEvaluator, evaluated, rank_of_result
from placeto_baselines.scheduling.list_schedulers import CriticalPathPlacer
from placeto_baselines.search.layers import layers_of_groups
from placeto_baselines.search.multilevel_search import MultilevelSearch
from placeto_baselines.search.subsets import SEARCHED, Choice
from placeto_graphs import (
    Evaluator,
    PlacementProblem,
    PlacementResult,
    contracted,
)

if TYPE_CHECKING:
    from placeto_baselines.search.portfolio import PortfolioSearch

SIZES = (2_048, 16_384)  # most ops of the smaller graphs
# Parts of the budget that are spent after the searches of the smaller graphs, and after what they
# found has been evaluated on the whole one.
SPENT = (0.15, 0.35, 0.85)
PARTITIONERS = (MetisPlacer(), ScotchPlacer())
SECONDS_OF_SCHEDULED_OP = 3e-5  # that the critical-path placer takes for each op
MOST_STARTS = 4
LEAST_SECONDS = 1e-3  # of a search, also if its share is spent


class _Budget(TypedDict):
    seconds: float | None
    max_evaluations: int | None


@dataclass
class ContractedSearch:
    """A `PortfolioSearch` of a large problem.

    The smallest graph (`contracted`) is searched as any problem is. Its best placement, and those
    on fewer devices, of chains and of other placers, are starts on a larger one. The best of these
    are evaluated on the whole graph, where the search continues from the best of all.
    """

    settings: "PortfolioSearch"
    problem: PlacementProblem
    watched: WatchedEvaluator
    seed: int
    began: float

    def search(self, results: list[PlacementResult]) -> None:
        """Search; ``results`` are placements that were evaluated before."""
        problem, settings = self.problem, self.settings
        small = contracted(problem, SIZES[1])
        smallest = contracted(small, SIZES[0])
        choices = self._search_smallest(smallest)
        choices = self._search_small(small, smallest, choices)
        results += self._evaluated_on_whole(small, smallest, choices)
        if not self._is_over(1):
            best = min(results, key=lambda result: rank_of_result(problem, result))
            search = MultilevelSearch(
                **self._budget(1, problem),
                bound=settings.bound,
                clock=settings.clock,
                chains=settings.chains,
            )
            search.refine(problem, self.watched, best.placement[None], seed=self.seed)

    def _evaluated_on_whole(
        self, small: PlacementProblem, smallest: PlacementProblem, choices: list[Choice]
    ) -> Iterator[PlacementResult]:
        """Yield the costs of choices, of a random placement and of partitions, until it is time."""
        first, *others = choices
        yield self._evaluated_choice(small, first)
        if self._is_over(SPENT[2]):
            return
        # Where blocks mislead, as they do if ops of many groups take turns, this one may lead.
        shuffled = random_placements(smallest, 1, np.random.default_rng(self.seed))
        yield evaluated(self.watched, finer(self.problem, smallest, shuffled)[0])
        for placer in PARTITIONERS:
            if self._is_over(SPENT[2]):
                return
            with suppress(BaselineError):  # a library that cannot be used is no start
                yield placer.place(self.problem, self.watched, seed=self.seed)
        if self._can_schedule:
            yield CriticalPathPlacer().place(self.problem, self.watched, seed=self.seed)
        for choice in others:
            if self._is_over(SPENT[2]):
                return
            yield self._evaluated_choice(small, choice)

    def _evaluated_choice(self, small: PlacementProblem, choice: Choice) -> PlacementResult:
        placement = finer(self.problem, small, choice.result.placement[None])[0]
        result = evaluated(self.watched, placement)
        if choice.kind != SEARCHED:
            self.settings.choices.append(replace(choice, result=result))
        return result

    def _search_smallest(self, smallest: PlacementProblem) -> list[Choice]:
        """Return the choices of a search, the best placement of all among them."""
        self.settings.update(f"on {smallest.graph.num_ops:,} blocks of ops ...")
        search = replace(
            self.settings,
            **self._budget(SPENT[0], smallest),
            bound=0.0,
            report=lambda *_: None,
            contracts=False,
        )
        result = search.place(smallest, self._evaluator(smallest), seed=self.seed)
        devices = tuple(range(smallest.num_devices))
        return [*search.choices, Choice(devices, SEARCHED, result)]

    def _search_small(
        self, small: PlacementProblem, smallest: PlacementProblem, choices: list[Choice]
    ) -> list[Choice]:
        """Return what a search from choices finds, and these with their costs, the best first."""
        self.settings.update(f"on {small.graph.num_ops:,} blocks of ops ...")
        evaluator = self._evaluator(small)
        placements = finer(
            small, smallest, np.stack([choice.result.placement for choice in choices])
        )
        evaluated_choices = [
            replace(choice, result=evaluated(evaluator, placement))
            for choice, placement in zip(choices, placements, strict=True)
        ]
        for placer in PARTITIONERS * (not self.settings.stopped()):
            with suppress(BaselineError):
                result = placer.place(small, evaluator, seed=self.seed)
                evaluated_choices.append(Choice(evaluated_choices[0].devices, SEARCHED, result))
        evaluated_choices.sort(key=lambda choice: rank_of_result(small, choice.result))
        if self.settings.stopped():
            return evaluated_choices
        search = MultilevelSearch(
            **self._budget(SPENT[1], small), clock=self.settings.clock, chains=self.settings.chains
        )
        layers, are_modules = layers_of_groups(small)
        result = search.refine(
            small,
            evaluator,
            np.stack([choice.result.placement for choice in evaluated_choices[:MOST_STARTS]]),
            seed=self.seed,
            layers=layers if are_modules else None,
        )
        return [Choice(evaluated_choices[0].devices, SEARCHED, result), *evaluated_choices]

    def _evaluator(self, problem: PlacementProblem) -> Evaluator:
        return self.watched.for_problem(problem)

    def _is_over(self, share: float) -> bool:
        return self._share >= share or self.settings.stopped()

    @property
    def _share(self) -> float:
        """Share of the budget that is spent."""
        settings, shares = self.settings, [0.0]
        if settings.seconds is not None:
            shares.append((settings.clock() - self.began) / settings.seconds)
        if settings.max_evaluations is not None:
            shares.append(self.watched.evaluations / settings.max_evaluations)
        return max(shares)

    @property
    def _can_schedule(self) -> bool:
        """True if every op of the whole graph can be scheduled until it is time."""
        scheduling = SECONDS_OF_SCHEDULED_OP * self.problem.graph.num_ops
        share = scheduling / (self.settings.seconds or np.inf)
        return not self._is_over(SPENT[2] - share)

    def _budget(self, share: float, problem: PlacementProblem) -> _Budget:
        """Return what is left until a share is spent; evaluations of small graphs cost less."""
        seconds, max_evaluations = self.settings.seconds, self.settings.max_evaluations
        if seconds is not None:
            elapsed = self.settings.clock() - self.began
            seconds = max(share * seconds - elapsed, LEAST_SECONDS)
        if max_evaluations is not None:
            whole = share * max_evaluations - self.watched.evaluations
            max_evaluations = int(whole * self.problem.graph.num_ops / problem.graph.num_ops)
            max_evaluations = max(max_evaluations, 1)
        return {"seconds": seconds, "max_evaluations": max_evaluations}


def finer(
    problem: PlacementProblem, coarse: PlacementProblem, placements: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return int32[B, G], placements of a problem that was contracted from this one."""
    (level,) = (level for level in problem.levels if level.num_groups == coarse.num_groups)
    return placements[:, level.group_of[problem.grouping.first_ops]]
