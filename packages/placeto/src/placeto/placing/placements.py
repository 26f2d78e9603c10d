"""From the name of a placement, a device or a placer to a placement."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.placing.own import PLACER_PLUGINS, CheckedPlacer, is_own
from placeto.placing.placers import PLACERS, current_name, make_placer, start_of_search
from placeto.placing.warming import warm_up, warm_up_evaluator, warm_up_placer
from placeto.placing.watching import Limits, SpentError, WatchedEvaluator
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto.progress import PlainProgress, Progress, Shows, how_far, left_text
from placeto_baselines import MultilevelSearch
from placeto_graphs import (
    Cluster,
    OpGraph,
    PlacementProblem,
    PlacementResult,
    Placer,
    load_placement_of_any_level,
)
from placeto_simulator import Simulator

# Of the levels that a search goes through, the finest has at most so many groups.
MOST_GROUPS_OF_SEARCH = 1024
# The bundled policy takes groups as those of its training; it also takes more of them, if there are
# no coarser ones, up to where it takes many seconds.
GROUPS_OF_POLICY = 128
MOST_GROUPS_OF_POLICY = 2048
CHAINS = 2  # of a search, where there are as many cores
EVALUATIONS_OF_POLICY = 100  # of fewer, its sixteen would be too large a part

if TYPE_CHECKING:
    from placeto_policy import PlacetoPlacer, UpdateSummary


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
    placer = current_name(text)
    if placer in PLACERS and PLACERS[placer].trains:
        raise InputError(
            f"{text}: trains a policy, which takes minutes: give the file that "
            f"`placeto place PROBLEM --placer {placer} -o FILE` writes"
        )
    if placer in PLACERS or is_own(placer, PLACER_PLUGINS):
        return problem, run_placer(make_placer(placer, problem), problem, progress).placement
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


def search(
    problem: PlacementProblem,
    progress: Progress,
    *,
    seconds: float | None,
    max_evaluations: int | None = None,
    seed: int = 0,
    start: NDArray[np.int32] | None = None,
    evaluator: EvaluatorSpec = STEP,
    is_warm: bool = False,
) -> tuple[PlacementResult, float]:
    """Run a multilevel search, by default with the simulator as the evaluator, and show progress.

    The problem is at the level where the search ends. Limits are seconds and evaluations. The
    result is no worse than a ``start``, a placement int32[G]. Ctrl-C ends the search early. Unless
    the evaluator ``is_warm``, its code is compiled first.

    Returns
    -------
    PlacementResult, float
        Result, and the cost that no placement beats.
    """
    progress.update("lower bound ...")
    bound = evaluator.lower_bound(problem)
    priced = evaluator.make(problem, None)
    if not is_warm:
        progress.update("compiling, once ...")
        warm_up_evaluator(priced)  # a first search would spend all its seconds on this
    began = time.monotonic()

    def report(count: int, best: float) -> None:
        far = how_far(count, max_evaluations, time.monotonic() - began)
        progress.update(f"best {evaluator.text(best)}, evaluated {far}")

    # A second core costs no time, but its evaluations count.
    chains = 1 if max_evaluations else min(CHAINS, getattr(priced, "num_threads", 1))
    placer = MultilevelSearch(seconds, max_evaluations, bound=bound, report=report, chains=chains)
    return placer.place(problem, priced, seed=seed, start=start), bound


def zero_shot(
    problem: PlacementProblem, progress: Progress, *, seed: int = 0
) -> tuple[PlacementProblem, PlacementResult] | None:
    """Place a problem with the bundled pretrained policy, in groups as it was trained on.

    Returns
    -------
    PlacementProblem, PlacementResult
        Problem at the level that was placed, and the result. None if even the coarsest level has so
        many groups that the policy takes many seconds.
    """
    coarse = search_problem(problem, GROUPS_OF_POLICY)
    if coarse.num_groups > MOST_GROUPS_OF_POLICY:
        return None
    progress.update("policy ...")
    warm_up("pretrained")
    return coarse, start_of_search().place(coarse, Simulator(coarse, num_threads=1), seed=seed)


def search_from_policy(
    problem: PlacementProblem,
    progress: Progress,
    *,
    seconds: float | None,
    max_evaluations: int | None = None,
    seed: int = 0,
) -> tuple[PlacementResult, float]:
    """Place a problem with the bundled pretrained policy, and search from there; see `search`.

    The limits are those of both. The policy is left out if it would leave nothing to the search.
    """
    enough = max_evaluations is None or max_evaluations > EVALUATIONS_OF_POLICY
    placed = zero_shot(problem, progress, seed=seed) if enough else None
    if placed is None:
        return search(
            problem, progress, seconds=seconds, max_evaluations=max_evaluations, seed=seed
        )
    coarse, found = placed
    return search_from(
        found,
        coarse,
        problem,
        progress,
        seconds=None if seconds is None else max(seconds - found.seconds, seconds / 2),
        max_evaluations=None if max_evaluations is None else max_evaluations - found.evaluations,
        seed=seed,
    )


def search_from(
    found: PlacementResult,
    problem: PlacementProblem,
    finer: PlacementProblem,
    progress: Progress,
    *,
    seconds: float | None,
    max_evaluations: int | None = None,
    seed: int = 0,
    evaluator: EvaluatorSpec = STEP,
) -> tuple[PlacementResult, float]:
    """Search from what another placer found, at another level of its problem; see `search`.

    Evaluations, seconds and curve of the result are those of both.
    """
    start = finer.placement_of_ops(problem.expand(found.placement))
    result, bound = search(
        finer,
        progress,
        seconds=seconds,
        max_evaluations=max_evaluations,
        seed=seed,
        start=start,
        evaluator=evaluator,
    )
    both = replace(
        result,
        evaluations=found.evaluations + result.evaluations,
        seconds=found.seconds + result.seconds,
        curve=np.concatenate([found.curve, np.add(result.curve, [found.evaluations, 0.0])]),
    )
    return both, bound


def place_graph(
    name: str,
    graph: OpGraph,
    cluster: Cluster,
    *,
    seconds: float,
    seed: int,
    quiet: bool,
    placer: str | Placer | None = None,
    evaluator: EvaluatorSpec = STEP,
) -> tuple[PlacementProblem, PlacementResult, float]:
    """Make a problem of a graph, and place it with a placer, or by `search`.

    Returns
    -------
    PlacementProblem, PlacementResult, float
        Problem at the level where the search ended, and what `search` returns.
    """
    problem = make_problem(Source(name, graph), cluster)
    progress = PlainProgress(None if quiet else sys.stderr)
    if placer is None:
        problem = search_problem(problem)
        result, bound = search(problem, progress, seconds=seconds, seed=seed, evaluator=evaluator)
        return problem, result, bound
    chosen = make_placer(placer, problem, seconds=seconds)
    limits = Limits(seconds=seconds)
    result = run_placer(chosen, problem, progress, seed=seed, evaluator=evaluator, limits=limits)
    return problem, result, evaluator.lower_bound(problem)


def run_placer(
    placer: Placer,
    problem: PlacementProblem,
    progress: Shows,
    *,
    seed: int = 0,
    budget: int | None = None,
    label: str = "",
    num_threads: int | None = None,
    evaluator: EvaluatorSpec = STEP,
    limits: Limits | None = None,
) -> PlacementResult:
    """Place a problem, by default with the simulator as the evaluator, and show progress.

    The costs of the result are those that the evaluator returns for its placement. For a placer of
    the user, evaluations, seconds and curve are also counted here.

    Parameters
    ----------
    placer, problem, progress, seed
        Placer, problem, display and seed.
    budget
        Number of evaluations of the placer, if that is known.
    label
        Name on the display; by default that of the placer.
    num_threads
        Number of threads of the simulator; by default one for each core.
    evaluator
        Evaluator of placements.
    limits
        Limits at which the placer is stopped; the best placement that it evaluated is the result.
    """
    name = label or placer.name
    progress.update(f"{name}: compiling, once ...")
    warm_up_placer(placer, evaluator)
    began = time.monotonic()
    updates = ""

    def report(evaluations: int, best: float) -> None:
        far = updates or how_far(evaluations, budget, time.monotonic() - began)
        progress.update(f"{name}: best {evaluator.text(best)}, evaluated {far}")

    def on_update(summary: "UpdateSummary", total: int) -> None:
        nonlocal updates
        left = left_text(summary.update, total, time.monotonic() - began)
        updates = f"{summary.evaluations:,}, update {summary.update:,} of {total:,}{left}"

    progress.update(f"{name} ...")
    priced = evaluator.make(problem, num_threads)
    limits = limits or Limits()
    if hasattr(placer, "on_update"):
        learning = replace(cast("PlacetoPlacer", placer), on_update=on_update)
        if limits.evaluations and learning.training_evaluations:  # its last rollout counts, too
            beyond = max(learning.most_evaluations(problem) - limits.evaluations, 0)
            left = max(learning.training_evaluations - beyond, 1)
            learning = replace(learning, training_evaluations=left)
        placer = learning
    watched = WatchedEvaluator(priced, report, limits)
    try:
        result = placer.place(problem, watched, seed=seed)
    except SpentError:
        result = watched.result()
    costs = priced.evaluate(result.placement[None])
    result = replace(
        result, runtime=float(costs.runtime[0]), peak_memory=costs.peak_memory[0].copy()
    )
    return watched.counted(result) if isinstance(placer, CheckedPlacer) else result
