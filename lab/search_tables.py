"""Tables of the pages on bounds and searches: ``python lab/search_tables.py bounds``.

``bounds`` prints the ratios of placements to the lower bound, ``search`` a comparison of multilevel
search with local search. Each problem is SOURCE/CLUSTER. Seconds are CPU seconds of the process.
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.placements import search_problem
from placeto.problems.making import read_problem
from placeto.problems.options import GroupingOptions
from placeto_baselines import (
    LocalSearch,
    MultilevelSearch,
    bound_parts,
    exhaustive_search,
    lower_bound,
)
from placeto_graphs import PlacementProblem, Placer
from placeto_simulator import Simulator

# The rows of the paper's table 1, then graphs of the families that no policy is trained on.
OF_TABLE_1 = (
    *("nasnet/4xk80", "nasnet/2xk80", "inception-v3/4xk80", "inception-v3/2xk80"),
    *("nmt-4/4xk80", "nmt-2/2xk80"),
)
OF_FAMILIES = tuple(
    f"{family}:{number}/2xk80"
    for family, numbers in (("cifar10", (3, 18, 24)), ("ptb", (3, 11, 22)), ("nmt", (20, 6, 29)))
    for number in numbers
)


def _read(name: str, grouping: GroupingOptions | None = None) -> PlacementProblem:
    """Read a problem, and say so, as each may take a while."""
    print(f"{name} ...", file=sys.stderr)
    source, _, cluster = name.rpartition("/")
    return read_problem(source, cluster, **vars(grouping or GroupingOptions()))


def _search(seconds: float, threads: int = 1, bound: float = 0.0) -> MultilevelSearch:
    return MultilevelSearch(seconds, bound=bound, clock=lambda: time.process_time() / threads)


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _print_head(columns: Sequence[str], num_texts: int = 1) -> None:
    _print_row(columns)
    print("|---" * num_texts + "|---:" * (len(columns) - num_texts) + "|", flush=True)


def _print_versions() -> None:
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")


# Bounds

GROUPS_TO_TRY_ALL = {"2xk80": 16, "4xk80": 8}  # in which there are 65,536 placements
EVALUATIONS_OF_SEARCH = 2000


def print_bounds(options: argparse.Namespace) -> None:
    """Print the parts of the lower bound of problems, and the ratio of search to it."""
    _print_versions()
    if options.exact:
        search = f"search, {EVALUATIONS_OF_SEARCH:,} evaluations, over the optimum"
        _print_head(["problem", "groups", "bound", "optimum", "optimum over the bound", search])
        for name in options.problems:
            _print_row(_exact_row(name))
        return
    for index, name in enumerate(options.problems):
        problem = search_problem(_read(name))
        bound_parts(problem)  # compiles
        began = time.process_time()
        parts = bound_parts(problem)
        taken = time.process_time() - began
        *others, last = parts
        if index == 0:
            columns = ["problem", *parts, "seconds", "best known", f"over the bound without {last}"]
            _print_head([*columns, "over the bound"])
        simulator = Simulator(problem)
        placer = _search(options.seconds, bound=max(parts.values()))
        found = [placer.place(problem, simulator, seed=seed) for seed in range(options.seeds)]
        best = min(cost_of_result(problem, result) for result in found)
        without = max(parts[part] for part in others)
        numbers = [*(f"{bound:.3f}" for bound in parts.values()), f"{taken:.1f}", f"{best:.3f}"]
        over = [f"{best / bound - 1:.1%}" for bound in (without, max(parts.values()))]
        _print_row([name, *numbers, *over])


def _exact_row(name: str) -> list[str]:
    """Return the row of a problem with few groups, of which all placements are tried."""
    cluster = name.rpartition("/")[2]
    if cluster not in GROUPS_TO_TRY_ALL:
        clusters = " or ".join(GROUPS_TO_TRY_ALL)
        raise SystemExit(f"{name}: expected {clusters} behind the last /, got {cluster!r}")
    problem = _read(name, GroupingOptions(num_groups=GROUPS_TO_TRY_ALL[cluster]))
    simulator = Simulator(problem)
    best = cost_of_result(problem, exhaustive_search(problem, simulator))
    bound = lower_bound(problem)
    search = MultilevelSearch(evaluations=EVALUATIONS_OF_SEARCH)
    found = cost_of_result(problem, search.place(problem, simulator))
    numbers = [str(problem.num_groups), f"{bound:.3f}", f"{best:.3f}"]
    return [name, *numbers, f"{best / bound - 1:.1%}", f"{found / best - 1:.1%}"]


# Multilevel search and local search

SHARE = 20  # the short search has that part of the seconds of local search
BATCH = 256  # placements


class Runs(NamedTuple):
    """Memory-penalised runtimes, CPU seconds and evaluations of a placer with several seeds."""

    costs: list[float]
    seconds: list[float]
    evaluations: list[int]

    @property
    def median(self) -> float:
        """The median cost in seconds."""
        return float(np.median(self.costs))

    @property
    def rate(self) -> float:
        """Evaluations per second."""
        return sum(self.evaluations) / sum(self.seconds)

    def __str__(self) -> str:
        if len(self.costs) == 1:
            return f"{self.median:.3f}"
        return f"{self.median:.3f} ({min(self.costs):.3f} to {max(self.costs):.3f})"


def _runs(problem: PlacementProblem, placer: Placer, seeds: int, threads: int = 1) -> Runs:
    simulator = Simulator(problem, num_threads=threads)
    shorter = (
        LocalSearch(2) if isinstance(placer, LocalSearch) else MultilevelSearch(evaluations=10)
    )
    shorter.place(problem, simulator)  # compiles
    runs = Runs([], [], [])
    for seed in range(seeds):
        began = time.process_time()
        result = placer.place(problem, simulator, seed=seed)
        runs.seconds.append(time.process_time() - began)
        runs.costs.append(cost_of_result(problem, result))
        runs.evaluations.append(result.evaluations)
    return runs


def _simulator_rate(problem: PlacementProblem, seconds: float = 0.5) -> float:
    """Return the simulated placements per second in batches, near a good placement."""
    simulator = Simulator(problem, num_threads=1)
    generator = np.random.default_rng(0)
    good = MultilevelSearch(evaluations=2000).place(problem, simulator).placement
    batch = np.repeat(good[None], BATCH, axis=0)
    for row in batch:
        row[generator.integers(problem.num_groups)] = good[0]
    count, began = 0, time.process_time()
    while (elapsed := time.process_time() - began) < seconds:
        simulator.evaluate(batch)
        count += BATCH
    return count / elapsed


def print_search(options: argparse.Namespace) -> None:
    """Print the results of multilevel search and local search on problems."""
    _print_versions()
    search = [f"multilevel search, 1/{SHARE} of them", f"in {options.seconds:g} s"]
    rates = "evaluations/s: local search, multilevel search, simulator"
    columns = ["problem", "lower bound", "local search", "its seconds", *search]
    _print_head([*columns, "gain", "over the bound", rates])
    logs = []
    for name in options.problems:
        problem = _read(name)
        fine = search_problem(problem)
        bound = lower_bound(fine)
        usual = _runs(problem, LocalSearch(options.evaluations), options.local_search_seeds)
        seconds = float(np.median(usual.seconds))
        short = _runs(fine, _search(seconds / SHARE, bound=bound), options.seeds)
        placer = _search(options.seconds, options.threads, bound)
        long = _runs(fine, placer, options.seeds, options.threads)
        logs.append(np.log(long.median / usual.median))
        _print_row(
            [
                f"{name}, {problem.num_groups} groups",
                f"{bound:.3f}",
                str(usual),
                f"{seconds:.0f}",
                str(short),
                str(long),
                f"{1 - long.median / usual.median:.1%}",
                f"{long.median / bound - 1:.1%}",
                f"{usual.rate:,.0f}, {long.rate:,.0f}, {_simulator_rate(fine):,.0f}",
            ]
        )
    print(f"\nGain on average: {1 - np.exp(np.mean(logs)):.1%}.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables, a row for each problem as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="search_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in {"bounds": print_bounds, "search": print_search}.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        problems = OF_TABLE_1 + OF_FAMILIES
        command.add_argument("problems", nargs="*", default=problems, metavar="SOURCE/CLUSTER")
        command.set_defaults(run=run)
        if name == "bounds":
            command.add_argument("--seconds", type=float, default=10.0, help="of each search")
            command.add_argument("--seeds", type=int, default=3)
            command.add_argument("--exact", action="store_true", help="try all, in few groups")
        else:
            command.add_argument("--evaluations", type=int, default=50_000, help="of local search")
            command.add_argument("--seconds", type=float, default=10.0, help="of longer searches")
            command.add_argument("--seeds", type=int, default=5, help="of multilevel search")
            command.add_argument("--local-search-seeds", type=int, default=1)
            command.add_argument("--threads", type=int, default=1, help="of longer searches")
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
