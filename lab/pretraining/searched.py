"""Problems of the set with good placements, found by a long search."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_baselines import MultilevelSearch
from placeto_graphs import (
    Evaluator,
    OpGraph,
    PlacementProblem,
    load_placement,
    memory_penalised_runtime,
    save_placement,
)
from placeto_simulator import Simulator
from pretraining.problems import Part, ProblemEntry, problem_set

MOST_GROUPS_OF_SEARCH = 1024


@dataclass(frozen=True, eq=False)
class Searched:
    """A problem of the set, and the placement that a search found.

    In the test part the search is at the finest level of at most 1,024 groups, for the best known
    placement. In other parts it is at the problem's own level.
    """

    name: str
    problem: PlacementProblem
    searched: PlacementProblem  # the same with the G groups of the search
    placement: NDArray[np.int32]  # [G], the device of each of them


def cost_of(evaluator: Evaluator, placement: NDArray[np.int32]) -> float:
    """Return the memory-penalised runtime of one placement int32[G], in seconds."""
    batch = evaluator.evaluate(placement[None])
    return float(memory_penalised_runtime(batch, evaluator.problem.cluster.memory_bytes)[0])


def search_part(
    folder: Path,
    part: Part,
    *,
    evaluations: int | None,
    seconds: float | None,
    variants: int,
    limit: int | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Search problems of the set that have no placement in the folder yet.

    Each placement is kept as soon as it is found, so that the same call resumes. The order of
    problems is fixed, and mixes their kinds.
    """
    for entry in _mixed(part, variants)[:limit]:
        path = folder / part / f"{entry.name}.json"
        if path.exists():
            continue
        try:
            problem = _at_level_of_search(entry.problem(), part)
        except Exception as error:  # a model of a library may fail in any way
            report(f"{entry.name}: left out: {type(error).__name__}: {error}")
            continue
        began = time.process_time()
        placer = MultilevelSearch(seconds, evaluations, clock=time.process_time)
        result = placer.place(problem, Simulator(problem, num_threads=1))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_placement(result.placement, problem, path)
        report(
            f"{entry.name}: {problem.num_groups} groups, {problem.num_devices} devices, "
            f"{result.runtime:.6g} s, {result.evaluations:,} placements in "
            f"{time.process_time() - began:.1f} s"
        )


def searched_problems(folder: Path, part: Part, *, variants: int) -> Iterator[Searched]:
    """Yield the problems of a part that have a placement in the folder, in the mixed order."""
    graphs: dict[str, OpGraph] = {}
    for entry in _mixed(part, variants):
        path = folder / part / f"{entry.name}.json"
        if path.exists():
            problem = _problem(entry, graphs)
            searched = _at_level_of_search(problem, part)
            yield Searched(entry.name, problem, searched, load_placement(path, searched))


def _problem(entry: ProblemEntry, graphs: dict[str, OpGraph]) -> PlacementProblem:
    """Return a problem; its graph has several, and may take seconds to build."""
    name = entry.graph.name
    if name not in graphs:
        graphs[name] = entry.graph.build()
    return entry.problem_of(graphs[name])


def _at_level_of_search(problem: PlacementProblem, part: Part) -> PlacementProblem:
    if part != "test":
        return problem
    small = [
        number
        for number, level in enumerate(problem.levels)
        if level.num_groups <= MOST_GROUPS_OF_SEARCH
    ]
    return problem.at_level(small[-1]) if small else problem


def _mixed(part: Part, variants: int) -> list[ProblemEntry]:
    entries = problem_set(part, variants=variants)
    return [entries[index] for index in np.random.default_rng(0).permutation(len(entries))]
