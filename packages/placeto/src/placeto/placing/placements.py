"""One way to place a problem: `place_problem`, for Python and for the command.

`run_placer` runs a single placer, also in a comparison.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading
from placeto.placing.choices import (
    SEARCHED,
    Choice,
    best_of,
    placements_without_search,
    restricted,
    subsets_to_search,
)
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.placing.own import PLACER_PLUGINS, is_own
from placeto.placing.placers import (
    PLACERS,
    Budget,
    PlacerSpec,
    placer_spec,
    start_of_search,
    warm_up,
    warm_up_evaluator,
)
from placeto.placing.watching import Limits, SpentError, WatchedEvaluator
from placeto.progress import InterruptNote, Progress, Shows, how_far, left_text
from placeto_baselines import MultilevelSearch
from placeto_graphs import (
    Evaluator,
    PlacementProblem,
    PlacementResult,
    Placer,
    load_placement_of_any_level,
)
from placeto_simulator import Simulator

if TYPE_CHECKING:
    from placeto_policy import PlacementPolicy, UpdateSummary

DEFAULT_SECONDS = 10.0  # of a search without another limit
DEFAULT_REFINEMENT_ROUNDS = 10  # most placements need fewer; one gains more than a rollout
STARTS = NOTHING, PRETRAINED = ("nothing", "pretrained")
# Of the levels that a search goes through, the finest has at most so many groups.
MOST_GROUPS_OF_SEARCH = 1024
# The bundled policy takes groups as those of its training; it also takes more of them, if there are
# no coarser ones, up to where it takes many seconds.
GROUPS_OF_POLICY = 128
MOST_GROUPS_OF_POLICY = 2048
CHAINS = 2  # of a search, where there are as many cores
EVALUATIONS_OF_POLICY = 100  # of fewer, its sixteen would be too large a part
SHARE_OF_SUBSETS = 0.25  # of the seconds or evaluations of a search
FEWEST_EVALUATIONS = 16  # of the search on a subset


@dataclass(frozen=True, kw_only=True)
class PlaceSettings:
    """How a problem is placed: by default with a search of 10 seconds."""

    seconds: float | None = None  # of a search, and CPU seconds of a placer
    max_evaluations: int | None = None  # of a search or a placer; of the training of a policy
    seed: int = 0
    start: str = NOTHING  # of the search, one of `STARTS`
    placer: str | Placer | None = None  # instead of the search
    policy: "PlacementPolicy | None" = None  # before a search of `seconds`, or instead of one
    rollouts: int = 0  # of the policy, besides the greedy one
    refinement_rounds: int | None = None  # after the policy; None for those that suit
    evaluator: EvaluatorSpec = STEP
    keeps_groups: bool = False  # whether a search stays at the level of the problem


@dataclass(frozen=True, eq=False)
class PlacedProblem:
    """A problem at the level that was placed, with its placement."""

    problem: PlacementProblem
    result: PlacementResult
    placer: str  # name of what placed it
    bound: float = 0.0  # cost that no placement beats, if a search took place and one is known
    choices: list[Choice] = field(default_factory=list)  # placements on fewer devices


def place_problem(
    problem: PlacementProblem, settings: PlaceSettings, progress: Progress
) -> PlacedProblem:
    """Place a problem with a placer, a policy, or a multilevel search, and show progress.

    A search also evaluates placements on fewer devices, each alone and all filled in order. With
    three devices or more, a part of its seconds and evaluations goes to searches on some of them,
    and it begins at the best placement of these. No choice is better than the result. Ctrl-C ends
    a search, with the best so far. The code of the evaluator is compiled before seconds count.
    """
    evaluator, seed = settings.evaluator, settings.seed
    limits = Limits(settings.max_evaluations, settings.seconds)
    if settings.placer is not None:
        spec = placer_spec(settings.placer)
        result = run_placer(spec, problem, progress, seed=seed, evaluator=evaluator, limits=limits)
        return PlacedProblem(problem, result, spec.name)
    finest = problem if settings.keeps_groups else search_problem(problem)
    name = MultilevelSearch.name
    if settings.policy is not None:
        spec = _policy_spec(problem, settings.policy, settings)
        found = run_placer(spec, problem, progress, seed=seed, evaluator=evaluator)
        if settings.seconds is None:
            return PlacedProblem(problem, found, spec.name)
        search = _Search(finest, settings, progress)
        result = search.after(problem, found, Limits(seconds=settings.seconds))
        return PlacedProblem(finest, result, f"{spec.name}, {name}", search.bound)
    if limits == Limits():
        limits = Limits(seconds=DEFAULT_SECONDS)
    search = _Search(finest, settings, progress)
    choices = placements_without_search(finest, search.priced)
    if settings.start == PRETRAINED:
        name = f"{PRETRAINED}, {name}"
        result = search.from_pretrained(limits)
        results = [result]
    else:
        searched, whole = search.with_subsets(limits)
        choices += searched
        results = [choice.result for choice in searched] + ([whole] if whole else [])
        result = whole or best_of(finest, results)
    best = best_of(finest, [result, *(choice.result for choice in choices)])
    result = replace(
        result,
        placement=best.placement,
        runtime=best.runtime,
        peak_memory=best.peak_memory,
        evaluations=sum(one.evaluations for one in results),
        seconds=sum(one.seconds for one in results),
    )
    return PlacedProblem(finest, result, name, search.bound, choices)


def resolve_placement(
    text: str, problem: PlacementProblem, progress: Progress
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return the placement that a user named, int32[G], and the problem at its level.

    The text is a placement file, a device, or a placer that trains no policy. A file may be of any
    level of the problem, or op by op.
    """
    names = problem.cluster.device_names
    if Path(text).is_file() or text.endswith(".json"):
        with reading(text):
            return load_placement_of_any_level(text, problem)
    if text in names:
        return problem, np.full(problem.num_groups, names.index(text), np.int32)
    if text in PLACERS and PLACERS[text].trains:
        raise InputError(
            f"{text}: trains a policy, which takes minutes: give the file that "
            f"`placeto place PROBLEM --placer {text} -o FILE` writes"
        )
    if text in PLACERS or is_own(text, PLACER_PLUGINS):
        return problem, run_placer(placer_spec(text), problem, progress).placement
    raise InputError(
        f"{text}: expected a placement file, a device ({', '.join(names)}) or a placer "
        f"({', '.join(name for name, spec in PLACERS.items() if not spec.trains)})"
    )


def search_problem(
    problem: PlacementProblem, finest: int = MOST_GROUPS_OF_SEARCH
) -> PlacementProblem:
    """Return a problem at its finest level with at most ``finest`` groups, where a search ends.

    If all levels have more groups, it is the level of the problem.
    """
    levels = [number for number, level in enumerate(problem.levels) if level.num_groups <= finest]
    return problem.at_level(levels[-1]) if levels else problem


def zero_shot(
    problem: PlacementProblem, progress: Progress, *, seed: int = 0
) -> tuple[PlacementProblem, PlacementResult] | None:
    """Place a problem with the bundled pretrained policy, in groups as it was trained on.

    The problem is returned at the level that was placed. It is None if even the coarsest level has
    so many groups that the policy takes many seconds.
    """
    coarse = search_problem(problem, GROUPS_OF_POLICY)
    if coarse.num_groups > MOST_GROUPS_OF_POLICY:
        return None
    progress.update("policy ...")
    warm_up(PRETRAINED)
    return coarse, start_of_search().place(coarse, Simulator(coarse, num_threads=1), seed=seed)


def run_placer(
    spec: PlacerSpec,
    problem: PlacementProblem,
    progress: Shows,
    *,
    seed: int = 0,
    budget: int | None = None,
    label: str = "",
    evaluator: EvaluatorSpec = STEP,
    priced: Evaluator | None = None,
    limits: Limits | None = None,
) -> PlacementResult:
    """Place a problem, by default with the simulator as the evaluator, and show progress.

    The costs of the result are those that the evaluator returns for its placement. For a placer of
    the user, evaluations, seconds and curve are also counted here.

    A ``budget`` is a number of evaluations, by default that of the limits or the placer's own. At
    the ``limits`` it is stopped; the best placement that it evaluated is the result then. If the
    evaluator was made before, it is ``priced``.
    """
    name = label or spec.name
    limits = limits or Limits()
    budget = budget or limits.evaluations or spec.budget or 0
    most = None if limits.seconds else budget or None
    progress.update(f"{name}: compiling, once ...")
    warm_up(spec.warms_as or spec.name, evaluator)
    began = time.monotonic()
    updates = ""

    def report(evaluations: int, best: float) -> None:
        far = updates or how_far(evaluations, most, time.monotonic() - began)
        progress.update(f"{name}: best {evaluator.text(best)}, evaluated {far}")

    def on_update(summary: "UpdateSummary", total: int) -> None:
        nonlocal updates
        left = left_text(summary.update, total, time.monotonic() - began)
        updates = f"{summary.evaluations:,}, update {summary.update:,} of {total:,}{left}"

    progress.update(f"{name} ...")
    priced = priced or evaluator.make(problem, None)
    placer = spec.make(problem, Budget(budget, limits.seconds, limits.evaluations, on_update))
    watched = WatchedEvaluator(priced, report, limits)
    try:
        result = placer.place(problem, watched, seed=seed)
    except SpentError:
        result = watched.result()
    costs = priced.evaluate(result.placement[None])
    result = replace(
        result, runtime=float(costs.runtime[0]), peak_memory=costs.peak_memory[0].copy()
    )
    return watched.counted(result) if spec.modules else result


def _policy_spec(
    problem: PlacementProblem, policy: "PlacementPolicy", settings: PlaceSettings
) -> PlacerSpec:
    """Return the placer of a policy, which may be trained further."""
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    rounds = settings.refinement_rounds
    if rounds is None:
        rounds = DEFAULT_REFINEMENT_ROUNDS if settings.seconds is None else 0
    placer = PlacetoPlacer(
        policy=policy,
        training_evaluations=settings.max_evaluations or 0,
        num_rollouts=settings.rollouts,
        refinement_rounds=rounds,
    )
    # One for any number of devices that is not trained needs none of the code of a training.
    as_it_is = policy.num_devices is None and not settings.max_evaluations
    return PlacerSpec(
        placer.name,
        placer.name,
        lambda _problem, budget: replace(placer, on_update=budget.on_update),
        budget=placer.most_evaluations(problem),
        warms_as=PRETRAINED if as_it_is else "",
    )


class _Search:
    """A multilevel search of a problem, whose evaluator is compiled."""

    def __init__(
        self, problem: PlacementProblem, settings: PlaceSettings, progress: Progress
    ) -> None:
        self._evaluator, self._seed, self._progress = settings.evaluator, settings.seed, progress
        progress.update("lower bound ...")
        self.bound = self._evaluator.lower_bound(problem)
        self.priced = self._evaluator.make(problem, None)
        progress.update("compiling, once ...")
        warm_up_evaluator(self.priced)  # a first search would spend all its seconds on this

    def run(self, limits: Limits, start: NDArray[np.int32] | None = None) -> PlacementResult:
        """Search; the result is no worse than a ``start``."""
        began = time.monotonic()

        def report(count: int, best: float) -> None:
            far = how_far(count, limits.evaluations, time.monotonic() - began)
            self._progress.update(f"best {self._evaluator.text(best)}, evaluated {far}")

        # A second core costs no time, but its evaluations count.
        cores = self.priced.num_threads if isinstance(self.priced, Simulator) else 1
        chains = 1 if limits.evaluations else min(CHAINS, cores)
        placer = MultilevelSearch(
            limits.seconds, limits.evaluations, bound=self.bound, report=report, chains=chains
        )
        return placer.place(self.priced.problem, self.priced, seed=self._seed, start=start)

    def after(
        self, problem: PlacementProblem, found: PlacementResult, limits: Limits
    ) -> PlacementResult:
        """Search from what a policy found at another level; the result counts what both did."""
        start = self.priced.problem.placement_of_ops(problem.expand(found.placement))
        result = self.run(limits, start)
        return replace(
            result,
            evaluations=found.evaluations + result.evaluations,
            seconds=found.seconds + result.seconds,
            curve=np.concatenate([found.curve, np.add(result.curve, [found.evaluations, 0.0])]),
        )

    def from_pretrained(self, limits: Limits) -> PlacementResult:
        """Search from the placement of the policy, unless that leaves nothing to the search."""
        placed, seconds, most = None, limits.seconds, limits.evaluations
        if most is None or most > EVALUATIONS_OF_POLICY:
            placed = zero_shot(self.priced.problem, self._progress, seed=self._seed)
        if placed is None:
            return self.run(limits)
        found = placed[1]
        left = Limits(
            most and most - found.evaluations, seconds and max(seconds - found.seconds, seconds / 2)
        )
        return self.after(*placed, left)

    def with_subsets(self, limits: Limits) -> tuple[list[Choice], PlacementResult | None]:
        """Search on some of the devices, and then on all from the best of these.

        Ctrl-C during one of the former ends all of them, and there is no search on all devices.
        """
        problem = self.priced.problem
        subsets = subsets_to_search(problem)
        each = limits.part(SHARE_OF_SUBSETS / max(len(subsets), 1))
        if each.evaluations is not None and each.evaluations < FEWEST_EVALUATIONS:
            subsets = []
        found: list[Choice] = []
        for devices in subsets:
            names = "+".join(problem.cluster.device_names[device] for device in devices)
            self._progress.update(f"on {names} ...")
            placer = MultilevelSearch(each.seconds, each.evaluations)
            with InterruptNote() as interrupt:
                priced = self._evaluator.make(restricted(problem, devices), None)
                result = placer.place(priced.problem, priced, seed=self._seed)
            found.append(Choice(devices, SEARCHED, result))
            if interrupt.noted:
                return found, None
        if not found:
            return [], self.run(limits)
        start = best_of(problem, [choice.result for choice in found]).placement
        return found, self.run(limits.part(1 - SHARE_OF_SUBSETS), start)
