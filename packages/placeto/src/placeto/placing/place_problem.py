"""One way to place a problem: `place_problem`, for Python and for the command.

`run_placer` runs a single placer, also in a comparison. `place_scheduled` places a pipeline, whose
waits depend on the stages.
"""

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, check_count, check_seconds
from placeto.placing.choices import chosen
from placeto.placing.evaluators import ONE_F_ONE_B, STEP, STEP_OF_STAGES, EvaluatorSpec
from placeto.placing.own import PLACER_PLUGINS, is_own
from placeto.placing.placers import (
    DEFAULT_REFINEMENT_ROUNDS,
    MULTILEVEL,
    PLACERS,
    PlacerSpec,
    placer_spec,
    start_of_search,
    warm_up,
    warm_up_evaluator,
)
from placeto.problems.making import placement_by_copies
from placeto.progress import Progress, StopRequest, cpu_seconds, progress_text, time_left_text
from placeto_baselines import Choice, LayerChain, Limits, PortfolioSearch, bounds_in_turn
from placeto_baselines.placement_trials import (
    SpentError,
    WatchedEvaluator,
    evaluated,
    rank_of_result,
)
from placeto_baselines.search.chains import chain_placement
from placeto_baselines.search.layers import layers_of_groups
from placeto_baselines.search.subsets import CHAIN, SEARCHED
from placeto_graphs import (
    BatchDivision,
    BestSoFar,
    Evaluator,
    Phase,
    PlacementProblem,
    PlacementResult,
    Placer,
    device_and_group_stages,
    load_placement_of_any_level,
    scheduled,
)
from placeto_simulator import Simulator

if TYPE_CHECKING:
    from placeto_policy import PlacementPolicy, UpdateSummary

DEFAULT_SECONDS = 10.0  # of a search without another limit
STARTS = NOTHING, PRETRAINED = ("nothing", "pretrained")
# Of the levels that a search goes through, the finest has at most so many groups.
MOST_GROUPS_OF_SEARCH = 1024
# The bundled policy takes groups as those of its training; it also takes more of them, if there are
# no coarser ones, up to where it takes many seconds.
GROUPS_OF_POLICY = 128
MOST_GROUPS_OF_POLICY = 2048
CHAINS = 2  # annealing chains of a search, if there are as many cores
# A search with fewer evaluations does without the policy, whose sixteen would be a large part.
EVALUATIONS_OF_POLICY = 100
# Lower bounds that take at most these fractions of the seconds of a search are computed: before it,
# so that it ends when it reaches one, or else after it.
SHARE_OF_FIRST_BOUNDS = 0.1
SHARE_OF_LAST_BOUNDS = 1 / 3
QUICK_BOUNDS = 3  # the first of `bounds_in_turn`: all but the fork-join bound
SECONDS_PER_EDGE = 3e-5  # that all quick bounds together take for each edge of a graph
SECONDS_PER_OP = 3e-4  # that the fork-join bound takes for each op


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

    def __post_init__(self) -> None:
        check_count("max_evaluations", self.max_evaluations)
        check_seconds(self.seconds)


@dataclass(frozen=True, eq=False)
class PlacedProblem:
    """A problem at the level that was placed, with its placement."""

    problem: PlacementProblem
    result: PlacementResult
    placer: str  # name of what placed it
    bound: float = 0.0  # cost that no placement beats, if a search took place and one is known
    choices: list[Choice] = field(default_factory=list)  # placements on fewer devices, and copies
    copies: BatchDivision | None = None  # of the model, if there are several
    one_copy: "PlacedProblem | None" = None  # what the bound is of, besides copies
    no_copies: str = ""  # why not all are tried, where they could be


def place_problem(
    problem: PlacementProblem,
    settings: PlaceSettings,
    progress: Progress,
    start: NDArray[np.int32] | None = None,
) -> PlacedProblem:
    """Place a problem with a placer, a policy, or a search; show progress.

    A search that has no other start has ``start``, int32[V], the device of each op. Ctrl-C ends it
    with the best placement that was evaluated until then.
    """
    if settings.placer not in (None, MULTILEVEL):
        spec = placer_spec(settings.placer)
        limits = Limits(settings.max_evaluations, settings.seconds)
        result = _run_interruptibly(spec, problem, settings, progress, limits)
        return PlacedProblem(problem, result, spec.name)
    if settings.policy is not None:
        return _place_by_policy(problem, settings.policy, settings, progress)
    return _place_by_search(problem, settings, progress, start)


def _run_interruptibly(
    spec: PlacerSpec,
    problem: PlacementProblem,
    settings: PlaceSettings,
    progress: Progress,
    limits: Limits | None = None,
) -> PlacementResult:
    return run_placer(
        spec,
        problem,
        progress.update,
        seed=settings.seed,
        evaluator=settings.evaluator,
        limits=limits,
        interruptible=True,
    )


def _place_by_policy(
    problem: PlacementProblem,
    policy: "PlacementPolicy",
    settings: PlaceSettings,
    progress: Progress,
) -> PlacedProblem:
    """Place by a policy, and search from its placement as long as the settings have seconds."""
    spec = _policy_spec(problem, policy, settings)
    with StopRequest(1, (signal.SIGINT,)) as interrupt:
        result = _run_interruptibly(spec, problem, settings, progress)
    if settings.seconds is None or interrupt.requested:
        return PlacedProblem(problem, result, spec.name)
    limits = Limits(seconds=settings.seconds)
    finest = problem if settings.keeps_groups else search_problem(problem)
    name = f"{spec.name}, {MULTILEVEL}"
    return _search(finest, settings, progress, name, limits, (problem, result))


def _place_by_search(
    problem: PlacementProblem,
    settings: PlaceSettings,
    progress: Progress,
    start: NDArray[np.int32] | None,
) -> PlacedProblem:
    """Search from ``start``, or from what the bundled policy places before."""
    finest = problem if settings.keeps_groups else search_problem(problem)
    limits = Limits(settings.max_evaluations, settings.seconds)
    if limits == Limits():
        limits = Limits(seconds=DEFAULT_SECONDS)
        if settings.placer:  # named as a placer, it has the evaluations of comparisons
            limits = Limits(PLACERS[MULTILEVEL].default_evaluations)
    if settings.start != PRETRAINED:
        return _search(finest, settings, progress, MULTILEVEL, limits, None, start)
    name = f"{PRETRAINED}, {MULTILEVEL}"
    seconds, max_evaluations = limits.seconds, limits.max_evaluations
    policy_run = None
    if max_evaluations is None or max_evaluations > EVALUATIONS_OF_POLICY:
        policy_run = zero_shot(finest, progress, seed=settings.seed)
    if policy_run is not None:
        _, policy_result = policy_run
        if max_evaluations is not None:
            max_evaluations -= policy_result.evaluations
        if seconds is not None:
            seconds = max(seconds - policy_result.seconds, seconds / 2)
        limits = Limits(max_evaluations, seconds)
    return _search(finest, settings, progress, name, limits, policy_run, start)


def _search(
    problem: PlacementProblem,
    settings: PlaceSettings,
    progress: Progress,
    name: str,
    limits: Limits,
    policy_run: tuple[PlacementProblem, PlacementResult] | None,
    start: NDArray[np.int32] | None = None,
) -> PlacedProblem:
    """Search from ``start``, or from the result of a policy, which ran at a level of its own.

    The result then counts the evaluations and seconds of both. Lower bounds that take a small part
    of the seconds are computed before the search, which ends at them. Others that take up to a
    third are computed after it.
    """
    evaluator, graph = settings.evaluator, problem.graph
    priced = evaluator.make(problem, None)
    progress.update("loading the simulator; compiling it the first time takes about 10 s ...")
    warm_up_evaluator(priced)  # a first search would spend all its seconds on this
    began, seconds = time.monotonic(), limits.seconds
    quick_seconds = graph.num_edges * SECONDS_PER_EDGE
    fork_join_seconds = graph.num_ops * SECONDS_PER_OP
    bounds_left = bounds_in_turn(problem) if evaluator.simulates else iter(())
    bounds = [0.0]
    if seconds is None or quick_seconds <= SHARE_OF_FIRST_BOUNDS * seconds:
        progress.update("lower bound ...")
        bounds += [bound for _, bound in islice(bounds_left, QUICK_BOUNDS)]
    if seconds is not None:
        seconds = max(seconds - (time.monotonic() - began), seconds / 2)

    def report(best: BestSoFar) -> None:
        far = progress_text(best.evaluations, limits.max_evaluations, time.monotonic() - began)
        progress.update(f"{best_text(best, evaluator)}, evaluated {far}")

    # A second core costs no time, but its evaluations count.
    cores = priced.num_threads if isinstance(priced, Simulator) else 1
    with StopRequest(1, (signal.SIGINT,)) as interrupt:  # which the search may swallow
        search = PortfolioSearch(
            max_evaluations=limits.max_evaluations,
            seconds=seconds,
            bound=max(bounds),
            report=report,
            update=progress.update,
            chains=1 if limits.max_evaluations else min(CHAINS, cores),
            stopped=lambda: interrupt.requested,
        )
        if policy_run:
            policy_problem, policy_result = policy_run
            start = policy_problem.expand(policy_result.placement)
        groups = None if start is None else problem.placement_of_ops(start)
        result = search.place(problem, priced, seed=settings.seed, start=groups)
    bound_seconds = SHARE_OF_LAST_BOUNDS * (seconds or math.inf)
    if quick_seconds <= bound_seconds and not interrupt.requested:
        progress.update("lower bound ...")
        # All bounds that are left, or only the quick ones among them.
        num_quick = QUICK_BOUNDS + 1 - len(bounds)
        num_bounds = None if fork_join_seconds <= bound_seconds else num_quick
        with suppress(KeyboardInterrupt):  # the search has its result
            bounds += [bound for _, bound in islice(bounds_left, num_bounds)]
    if policy_run:
        result = replace(
            result,
            evaluations=policy_result.evaluations + result.evaluations,
            seconds=policy_result.seconds + result.seconds,
            curve=np.concatenate(
                [policy_result.curve, np.add(result.curve, [policy_result.evaluations, 0.0])]
            ),
        )
    best = chosen(problem, result, search.choices)
    if not np.array_equal(best.placement, result.placement):  # a split that gains too little
        devices = tuple(np.unique(result.placement).tolist())
        search.choices.append(Choice(devices, SEARCHED, result))
    return PlacedProblem(problem, best, name, max(bounds), search.choices)


def search_problem(
    problem: PlacementProblem, finest: int = MOST_GROUPS_OF_SEARCH
) -> PlacementProblem:
    """Return a problem at its finest level of at most ``finest`` groups, or as it is."""
    levels = [index for index, level in enumerate(problem.levels) if level.num_groups <= finest]
    return problem.at_level(levels[-1]) if levels else problem


def zero_shot(
    problem: PlacementProblem, progress: Progress, *, seed: int = 0
) -> tuple[PlacementProblem, PlacementResult] | None:
    """Place a problem by the bundled policy, at a level like its training's; None if too fine."""
    coarse = search_problem(problem, GROUPS_OF_POLICY)
    if coarse.num_groups > MOST_GROUPS_OF_POLICY:
        return None
    progress.update("policy ...")
    warm_up(PRETRAINED)
    return coarse, start_of_search().place(coarse, Simulator(coarse, num_threads=1), seed=seed)


def best_text(best: BestSoFar, evaluator: EvaluatorSpec) -> str:
    """Return the runtime of the best placement so far, and whether it lacks memory."""
    has_own_waits = evaluator == STEP_OF_STAGES or not evaluator.schedule
    waits = "" if has_own_waits else " in the schedule of the best chain"
    return f"best {evaluator.text(best.runtime)}{waits}{'' if best.fits else ', out of memory'}"


def run_placer(
    spec: PlacerSpec,
    problem: PlacementProblem,
    show: Callable[[str], None],
    *,
    seed: int = 0,
    label: str = "",
    evaluator: EvaluatorSpec = STEP,
    priced: Evaluator | None = None,
    limits: Limits | None = None,
    interruptible: bool = False,
) -> PlacementResult:
    """Place a problem, and show progress; the costs of the result are those of the evaluator.

    The ``limits``, and Ctrl-C if it is ``interruptible``, stop the placer; the result is then the
    best placement that it evaluated. Limits without a number of evaluations get the default one of
    the placer. ``priced`` is the evaluator of the problem, if it was made before. Evaluations and
    seconds of a placer of the user are counted here, not taken from its result.
    """
    name = label or spec.name
    limits = spec.with_default(limits or Limits())
    total = None if limits.seconds else limits.max_evaluations
    show(f"{name}: loading; compiling the first time takes about 10 s ...")
    warm_up(spec.warms_as or spec.name, evaluator)
    began = time.monotonic()
    updates = ""

    def report(best: BestSoFar) -> None:
        far = updates or progress_text(best.evaluations, total, time.monotonic() - began)
        show(f"{name}: {best_text(best, evaluator)}, evaluated {far}")

    def on_update(summary: "UpdateSummary", num_updates: int) -> None:
        nonlocal updates
        time_left = time_left_text(summary.update, num_updates, time.monotonic() - began)
        updates = (
            f"{summary.evaluations:,}, update {summary.update:,} of {num_updates:,}{time_left}"
        )

    show(f"{name} ...")
    priced = priced or evaluator.make(problem, None)
    placer = spec.make(problem, limits, on_update)
    watched = WatchedEvaluator(priced, report, limits, cpu_seconds)
    try:
        result = placer.place(problem, watched, seed=seed)
    except (SpentError, KeyboardInterrupt) as stop:
        can_end = interruptible and watched.evaluations
        if isinstance(stop, KeyboardInterrupt) and not can_end:
            raise
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
        max_evaluations=settings.max_evaluations or 0,
        num_rollouts=settings.rollouts,
        refinement_rounds=rounds,
    )
    # A policy for any number of devices that is not trained further needs no code of a training.
    stays_as_it_is = policy.num_devices is None and not settings.max_evaluations
    return PlacerSpec(
        placer.name,
        placer.name,
        lambda _problem, _limits, on_update: replace(placer, on_update=on_update),
        default_evaluations=placer.most_evaluations(problem),
        warms_as=PRETRAINED if stays_as_it_is else "",
    )


def place_scheduled(
    problem: PlacementProblem, schedule: str | None, settings: PlaceSettings, progress: Progress
) -> PlacedProblem:
    """Place a problem as `place_problem` does, by a schedule if it is a step in micro-batches.

    By GPipe all placements have the same waits. By 1F1B the waits depend on the stages: the search
    has those of the best chain of layers. Afterwards its choices and the chains are compared, each
    with the waits of its own stages; Ctrl-C leaves out the choices that are not compared yet.
    """
    evaluator = replace(settings.evaluator, schedule=schedule)
    if schedule != ONE_F_ONE_B:
        anywhere = np.zeros(problem.num_groups, np.int32)
        start = placement_by_copies(problem)
        return place_problem(evaluator.scheduled(problem, anywhere), settings, progress, start)
    finest = problem if settings.keeps_groups else search_problem(problem)
    chain = LayerChain(finest, evaluator.of_stages(finest), layers_of_groups(finest)[0])
    max_chains: float = evaluator.num_chains(problem)
    progress.update("chain of layers ...")
    start = chain_placement(chain, range(problem.num_devices), max_chains)
    if start is None:  # each group on the first device that can run it
        start = np.isfinite(finest.group_graph.compute_time).argmax(axis=1).astype(np.int32)
    waiting = replace(problem, graph=evaluator.scheduled(finest, start).graph)
    settings = replace(settings, evaluator=evaluator)
    placed = place_problem(waiting, settings, progress, finest.expand(start))
    unscheduled = replace(placed.problem, graph=problem.graph)
    priced_by = evaluator.of_stages(unscheduled)

    def cheapest(*placements: NDArray[np.int32] | None) -> PlacementResult:
        results = [evaluated(priced_by, row) for row in placements if row is not None]
        return min(results, key=partial(rank_of_result, unscheduled))

    progress.update("schedule of each choice ...")
    searches = placed.choices  # none by a placer or a policy alone
    best = cheapest(placed.result.placement, start if searches else None)
    choices: list[Choice] = []
    # The choices share the number of chains that may be evaluated.
    max_chains /= max(1, sum(choice.kind == SEARCHED for choice in searches))
    with suppress(KeyboardInterrupt):  # the search has its result
        for choice in searches:
            devices, chained = choice.devices, None
            if choice.kind == CHAIN:
                chained = start
            elif choice.kind == SEARCHED:
                chained = chain_placement(chain, devices, max_chains)
            result = cheapest(choice.result.placement, chained)
            if choice.kind == CHAIN:  # the best chain of all may use others than the one found
                devices = tuple(np.unique(result.placement).tolist())
            choices.append(Choice(devices, choice.kind, result))
    searched = placed.result
    best = replace(
        chosen(unscheduled, best, choices),
        evaluations=searched.evaluations,
        seconds=searched.seconds,
        curve=searched.curve,
    )
    scheduled_problem = evaluator.scheduled(unscheduled, best.placement)
    return replace(placed, problem=scheduled_problem, result=best, bound=0.0, choices=choices)


def resolve_placement(
    text: str, problem: PlacementProblem, progress: Progress, schedule: str | None = None
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return the placement that a user named, and the problem at its level and schedule."""
    names = problem.cluster.device_names
    if text.endswith(".json") or (Path(text).is_file() and not text.endswith(".toml")):
        problem, placement = load_placement_of_any_level(text, problem)
    elif text in names:
        placement = np.full(problem.num_groups, names.index(text), np.int32)
    elif text in PLACERS and PLACERS[text].trains:
        raise InputError(
            f"{text}: trains a policy, which takes minutes: give the file that "
            f"`placeto place PROBLEM --placer {text} -o FILE` writes"
        )
    elif text in PLACERS or is_own(text, PLACER_PLUGINS):
        placed = place_scheduled(problem, schedule, PlaceSettings(placer=text), progress)
        return placed.problem, placed.result.placement
    else:
        raise InputError(
            f"{text}: expected a placement file, a device ({', '.join(names)}) or a placer "
            f"({', '.join(name for name, spec in PLACERS.items() if not spec.trains)})"
        )
    return scheduled(problem, schedule, placement) if schedule else problem, placement


def sent_back_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return that a stage of a pipeline sends forward tensors to an earlier one; else nothing."""
    graph, micro_batch = problem.graph, problem.graph.micro_batch
    if micro_batch.max() < 1:
        return ""
    devices = problem.expand(placement)
    stages = device_and_group_stages(problem, placement)[0][devices]
    producers, read = graph.edge_producers, graph.edge_consumers
    works = problem.compute_time[np.arange(graph.num_ops), devices] > 0
    is_forward = (graph.phases == Phase.FORWARD) & (micro_batch == 0) & works
    back = is_forward[producers] & is_forward[read] & (stages[producers] > stages[read])
    if not back.any():
        return ""
    names, first = problem.cluster.device_names, int(np.flatnonzero(back)[0])
    op, reader = producers[first], read[first]
    return (
        f"{names[devices[op]]} sends forward tensors back to {names[devices[reader]]}, an earlier "
        f"stage ({graph.op_names[op]}): each micro-batch crosses the pipeline once more"
    )
