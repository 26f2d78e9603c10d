"""Problems of the set with good placements, found by a long search."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto.placing.place_problem import search_problem
from placeto_baselines import MultilevelSearch
from placeto_graphs import (
    PlacementProblem,
    load_placement,
    save_placement,
)
from placeto_simulator import Simulator
from pretraining.problems import ProblemEntry, Split, problem_set


@dataclass(frozen=True, eq=False)
class Searched:
    """A problem of the set, and the placement that a search found.

    In the test split the search is at the finest level of at most 1,024 groups, for the best known
    placement. In other splits it is at the problem's own level.
    """

    name: str
    problem: PlacementProblem
    searched: PlacementProblem  # the same with the G groups of the search
    placement: NDArray[np.int32]  # [G], the device of each of them


def search_split(
    folder: Path,
    split: Split,
    evaluations: int | None,
    seconds: float | None,
    limit: int | None,
) -> None:
    """Search problems of the set that have no placement in the folder yet.

    Each placement is kept as soon as it is found, so that the same call resumes. The order of
    problems is fixed, and mixes their kinds.
    """
    for entry in _shuffled(split)[:limit]:
        path = folder / split / f"{entry.name}.json"
        if path.exists():
            continue
        try:
            problem = _at_level_of_search(entry.problem(), split)
        except Exception as error:  # a model of a library may fail in any way
            print(f"{entry.name}: left out: {type(error).__name__}: {error}")
            continue
        began = time.process_time()
        placer = MultilevelSearch(seconds, evaluations, clock=time.process_time)
        result = placer.place(problem, Simulator(problem, num_threads=1))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_placement(result.placement, problem, path)
        print(
            f"{entry.name}: {problem.num_groups} groups, {problem.num_devices} devices, "
            f"{result.runtime:.6g} s, {result.evaluations:,} placements in "
            f"{time.process_time() - began:.1f} s"
        )


def searched_problems(folder: Path, split: Split) -> Iterator[Searched]:
    """Yield the problems of a split that have a placement in the folder, in the same order."""
    for entry in _shuffled(split):
        path = folder / split / f"{entry.name}.json"
        if path.exists():
            problem = entry.problem()
            searched = _at_level_of_search(problem, split)
            yield Searched(entry.name, problem, searched, load_placement(path, searched))


def _at_level_of_search(problem: PlacementProblem, split: Split) -> PlacementProblem:
    return search_problem(problem) if split == "test" else problem


def _shuffled(split: Split) -> list[ProblemEntry]:
    entries = problem_set(split)
    return [entries[index] for index in np.random.default_rng(0).permutation(len(entries))]
