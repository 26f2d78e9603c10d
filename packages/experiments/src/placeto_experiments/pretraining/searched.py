"""Problems of the set with good placements, found by a long search."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, reading, writing
from placeto.json_files import read_json, write_json
from placeto.placing.placements import search_problem
from placeto.texts import counted
from placeto_baselines import MultilevelSearch
from placeto_experiments.problem_set import ProblemEntry, problem_set
from placeto_experiments.problem_set.problems import Part
from placeto_experiments.problem_set.random_steps import SHAPES
from placeto_graphs import OpGraph, PlacementProblem, load_placement, save_placement
from placeto_simulator import Simulator

BUDGET = "budget.json"  # in the folder of a part


@dataclass(frozen=True)
class Budget:
    """Evaluations or CPU seconds of the search of each problem: one of the two is None."""

    evaluations: int | None
    seconds: float | None

    def __str__(self) -> str:
        if self.evaluations is not None:
            return counted(self.evaluations, "evaluation")
        return f"{self.seconds:g} s"


@dataclass(frozen=True, eq=False)
class Searched:
    """A problem of the set, and the placement that a search found.

    In the test part the search is at the finest level of at most 1,024 groups, for the best known
    placement. In other parts it is at the problem's own level, to learn from.
    """

    name: str
    problem: PlacementProblem
    searched: PlacementProblem  # the same with the G groups of the search
    placement: NDArray[np.int32]  # [G], the device of each of them


def search_part(
    folder: Path,
    part: Part,
    budget: Budget,
    *,
    variants: int,
    jobs: int,
    limit: int | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Search problems of the set that have no placement in the folder yet.

    Each placement is kept as soon as it is found, so that the same call resumes. A call with
    another budget is refused. The order of problems is fixed, and mixes their kinds.

    Parameters
    ----------
    folder
        Folder of the placements, with a folder for each part.
    variants
        Number of problems of each graph.
    jobs
        Number of processes that search; with one it is this process.
    limit
        Number of problems to search; by default all.
    report
        Function that is called with a line for each problem.
    """
    _keep_budget(folder / part, budget)
    missing = [
        entry
        for entry in _mixed(part, variants)[:limit]
        if not _file(folder, part, entry.name).exists()
    ]
    for number, line in enumerate(_searches(folder, missing, budget, jobs), 1):
        report(f"{number} of {len(missing)}: {line}")


def _searches(
    folder: Path, missing: Sequence[ProblemEntry], budget: Budget, jobs: int
) -> Iterator[str]:
    """Yield a line for each problem as soon as it is searched; one job is done in this process."""
    if jobs == 1:
        yield from (_search(folder, entry, budget) for entry in missing)
        return
    spawning = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, max(1, len(missing))), mp_context=spawning) as pool:
        tasks = [pool.submit(_search, folder, entry, budget) for entry in missing]
        try:
            for task in as_completed(tasks):
                yield task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def searched_problems(folder: Path, part: Part, *, variants: int) -> Iterator[Searched]:
    """Yield the problems of a part that have a placement in the folder, in the mixed order."""
    graphs: dict[str, OpGraph] = {}
    for entry in _mixed(part, variants):
        path = _file(folder, part, entry.name)
        if path.exists():
            problem = _problem(entry, graphs)
            searched = _at_level_of_search(problem, part)
            with reading(path):
                placement = load_placement(path, searched)
            yield Searched(entry.name, problem, searched, placement)


def training_problems(
    variants: int, random_graphs: int | None, *, report: Callable[[str], None] = print
) -> Iterator[tuple[str, PlacementProblem]]:
    """Yield the problems of the training part that can be built, by name, in the mixed order.

    Of each random shape there are at most ``random_graphs`` graphs. A line is reported for each
    problem that cannot be built.
    """
    graphs: dict[str, OpGraph] = {}
    for entry in _mixed("training", variants):
        shape, _, number = entry.graph.name.rpartition("-")
        if shape in SHAPES and random_graphs is not None and int(number) >= random_graphs:
            continue
        try:
            yield entry.name, _problem(entry, graphs)
        except Exception as error:  # a model of a library may fail in any way
            report(_left_out(entry.name, error))


def _problem(entry: ProblemEntry, graphs: dict[str, OpGraph]) -> PlacementProblem:
    """Return a problem; its graph has several, and may take seconds to build."""
    name = entry.graph.name
    if name not in graphs:
        graphs[name] = entry.graph.build()
    return entry.problem_of(graphs[name])


def _at_level_of_search(problem: PlacementProblem, part: Part) -> PlacementProblem:
    return search_problem(problem) if part == "test" else problem


def _left_out(name: str, error: Exception) -> str:
    return f"{name}: left out: {type(error).__name__}: {' '.join(str(error).split())}"


def _keep_budget(folder: Path, budget: Budget) -> None:
    """Store the budget of the placements of a folder; refuse another one."""
    path = folder / BUDGET
    if not path.exists():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(path, budget)
    begun = read_json(path, Budget, "`demonstrate`")
    if begun != budget:
        raise InputError(f"{path}: begun with {begun}, not {budget}; name another folder")


def _mixed(part: Part, variants: int) -> list[ProblemEntry]:
    entries = problem_set(part, variants=variants)
    return [entries[index] for index in np.random.default_rng(0).permutation(len(entries))]


def _file(folder: Path, part: Part, name: str) -> Path:
    return folder / part / f"{name}.json"


def _search(folder: Path, entry: ProblemEntry, budget: Budget) -> str:
    """Search one problem, and return a line about it."""
    try:
        problem = _at_level_of_search(entry.problem(), entry.graph.part)
    except Exception as error:  # a model of a library may fail in any way
        return _left_out(entry.name, error)
    began = time.process_time()
    placer = MultilevelSearch(budget.seconds, budget.evaluations, clock=time.process_time)
    result = placer.place(problem, Simulator(problem, num_threads=1))
    path = _file(folder, entry.graph.part, entry.name)
    with writing(path):
        save_placement(result.placement, problem, path)
    seconds = time.process_time() - began
    return (
        f"{entry.name}: {problem.num_groups} groups, {problem.num_devices} devices, "
        f"{result.runtime:.6g} s, {result.evaluations:,} placements in {seconds:.1f} s"
    )
