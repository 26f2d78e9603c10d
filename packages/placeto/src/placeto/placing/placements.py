"""From what a user names to a placement."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading
from placeto.placing.placers import PLACER_NAMES, make_placer, start_of_search
from placeto.placing.warming import warm_up, warm_up_placer
from placeto.placing.watching import WatchedSchedulingEvaluator
from placeto.problems.making import make_problem
from placeto.problems.sources import Source
from placeto.progress import PlainProgress, Progress, Shows, how_far, left_text
from placeto.texts import seconds_text
from placeto_baselines import MultilevelSearch, lower_bound
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
# A pass of the policy in the box takes groups as those of its training; it also takes more of them,
# if there are no coarser ones, up to where it takes many seconds.
GROUPS_OF_POLICY = 128
MOST_GROUPS_OF_POLICY = 2048
EVALUATIONS_OF_POLICY = 100  # of fewer, its sixteen would be too large a part

if TYPE_CHECKING:
    from placeto_policy import PlacetoPlacer, UpdateSummary


def find_placement(
    text: str, problem: PlacementProblem, progress: Progress
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return the placement that a user named, int32[G], and the problem at its level.

    Parameters
    ----------
    text
        A placement file, of any level of the problem or op by op, the name of a device, or the
        name of a placer.
    problem
        What is placed.
    progress
        Shows how far a placer is.

    Raises
    ------
    InputError
        When it is nothing of that.
    """
    names = problem.cluster.device_names
    if Path(text).is_file() or text.endswith(".json"):
        with reading(text):
            return load_placement_of_any_level(text, problem)
    if text in names:
        return problem, np.full(problem.num_groups, names.index(text), np.int32)
    if text in PLACER_NAMES:
        return problem, run_placer(make_placer(text, problem), problem, progress).placement
    raise InputError(
        f"{text}: expected a placement file, a device ({', '.join(names)}) or a placer "
        f"({', '.join(PLACER_NAMES)})"
    )


def search_problem(
    problem: PlacementProblem, finest: int = MOST_GROUPS_OF_SEARCH
) -> PlacementProblem:
    """Return a problem at the level that a search ends at.

    Parameters
    ----------
    problem
        The problem, at any level.
    finest
        How many groups that level has, at most. If no level has so few, it is that of the problem.
    """
    levels = [number for number, level in enumerate(problem.levels) if level.num_groups <= finest]
    return problem.at_level(levels[-1]) if levels else problem


def search(
    problem: PlacementProblem,
    progress: Progress,
    *,
    seconds: float | None,
    evaluations: int | None = None,
    seed: int = 0,
    start: NDArray[np.int32] | None = None,
) -> tuple[PlacementResult, float]:
    """Search from coarse to fine with the simulator as the evaluator, and show how far it is.

    Parameters
    ----------
    problem
        What is placed, at the level that the search ends at.
    progress
        Where it is shown.
    seconds, evaluations
        How long it searches, and how many placements it evaluates, at most.
    seed
        Fixes every random choice.
    start : int32[G]
        A placement to start from; what it found is no worse.

    Returns
    -------
    PlacementResult, float
        What it found, and the seconds that no placement beats. Ctrl-C ends it early.
    """
    progress.update("lower bound ...")
    bound = lower_bound(problem)
    simulator = Simulator(problem)
    began = time.monotonic()

    def report(count: int, best: float) -> None:
        far = how_far(count, evaluations, time.monotonic() - began)
        progress.update(f"best {seconds_text(best)}, evaluated {far}")

    placer = MultilevelSearch(seconds, evaluations, bound=bound, report=report)
    return placer.place(problem, simulator, seed=seed, start=start), bound


def zero_shot(
    problem: PlacementProblem, progress: Progress, *, seed: int = 0
) -> tuple[PlacementProblem, PlacementResult] | None:
    """Place a problem with the policy in the box, in groups as it was trained on.

    Parameters
    ----------
    problem
        What is placed, at any level.
    progress
        Where it is shown.
    seed
        Fixes every random choice.

    Returns
    -------
    PlacementProblem, PlacementResult
        The problem at the level that was placed, and what was found. None where even the coarsest
        level has more groups than a pass is worth its time for.
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
    evaluations: int | None = None,
    seed: int = 0,
) -> tuple[PlacementResult, float]:
    """Place a problem with the policy in the box, and search on from there.

    Parameters
    ----------
    problem
        What is placed, at the level that the search ends at.
    progress
        Where it is shown.
    seconds, evaluations
        How long both take, and how many placements both evaluate, at most; the policy is left out
        where it would leave nothing to the search.
    seed
        Fixes every random choice.

    Returns
    -------
    PlacementResult, float
        As `search`.
    """
    enough = evaluations is None or evaluations > EVALUATIONS_OF_POLICY
    placed = zero_shot(problem, progress, seed=seed) if enough else None
    if placed is None:
        return search(problem, progress, seconds=seconds, evaluations=evaluations, seed=seed)
    coarse, found = placed
    return search_from(
        found,
        coarse,
        problem,
        progress,
        seconds=None if seconds is None else max(seconds - found.seconds, seconds / 2),
        evaluations=None if evaluations is None else evaluations - found.evaluations,
        seed=seed,
    )


def search_from(
    found: PlacementResult,
    problem: PlacementProblem,
    finer: PlacementProblem,
    progress: Progress,
    *,
    seconds: float | None,
    evaluations: int | None = None,
    seed: int = 0,
) -> tuple[PlacementResult, float]:
    """Search on from what another placer has found, at another level of the problem.

    Parameters
    ----------
    found
        A placement of the problem.
    problem
        What was placed.
    finer
        The same problem at the level that the search ends at.
    progress
        Where it is shown.
    seconds, evaluations
        How long it searches, and how many placements it evaluates, at most.
    seed
        Fixes every random choice.

    Returns
    -------
    PlacementResult, float
        As `search`; its evaluations and seconds are those of both.
    """
    start = finer.placement_of_ops(problem.expand(found.placement))
    result, bound = search(
        finer, progress, seconds=seconds, evaluations=evaluations, seed=seed, start=start
    )
    both = replace(
        result,
        evaluations=found.evaluations + result.evaluations,
        seconds=found.seconds + result.seconds,
        curve=np.concatenate([found.curve, np.add(result.curve, [found.evaluations, 0.0])]),
    )
    return both, bound


def search_graph(
    name: str, graph: OpGraph, cluster: Cluster, *, seconds: float, seed: int, quiet: bool
) -> tuple[PlacementProblem, PlacementResult, float]:
    """Make a problem of a graph, and search it as `search_from_policy` does.

    Parameters
    ----------
    name
        What the graph is called.
    graph, cluster
        What is placed, and on what.
    seconds
        How long it searches.
    seed
        Fixes every random choice.
    quiet
        Whether nothing is shown meanwhile.

    Returns
    -------
    PlacementProblem, PlacementResult, float
        The problem at the level that was searched, and as `search`.
    """
    problem = search_problem(make_problem(Source(name, graph), cluster))
    progress = PlainProgress(None if quiet else sys.stderr)
    result, bound = search_from_policy(problem, progress, seconds=seconds, seed=seed)
    return problem, result, bound


def run_placer(
    placer: Placer,
    problem: PlacementProblem,
    progress: Shows,
    *,
    seed: int = 0,
    budget: int | None = None,
    label: str = "",
    num_threads: int | None = None,
) -> PlacementResult:
    """Place a problem with the simulator as the evaluator, and show how far it is.

    Parameters
    ----------
    placer
        The placer.
    problem
        What it places.
    progress
        Where it is shown.
    seed
        Fixes every random choice.
    budget
        How many placements it may sample, if that is known.
    label
        What it is called there; by default its name.
    num_threads
        Of the simulator; by default as many as there are cores.
    """
    name = label or placer.name
    progress.update(f"{name}: compiling, once ...")
    warm_up_placer(placer)
    began = time.monotonic()
    updates = ""

    def report(evaluations: int, best: float) -> None:
        far = updates or how_far(evaluations, budget, time.monotonic() - began)
        progress.update(f"{name}: best {seconds_text(best)}, evaluated {far}")

    def on_update(summary: "UpdateSummary", total: int) -> None:
        nonlocal updates
        left = left_text(summary.update, total, time.monotonic() - began)
        updates = f"{summary.evaluations:,}, update {summary.update:,} of {total:,}{left}"

    progress.update(f"{name} ...")
    simulator = Simulator(problem, num_threads)
    if hasattr(placer, "on_update"):
        placer = replace(cast("PlacetoPlacer", placer), on_update=on_update)
    return placer.place(problem, WatchedSchedulingEvaluator(simulator, report), seed=seed)
