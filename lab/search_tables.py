"""Tables of the pages on bounds and searches: ``python lab/search_tables.py bounds``.

``bounds`` prints the ratios of placements to the lower bound, ``search`` what the search finds with
equal evaluations. Each problem is SOURCE/CLUSTER. Seconds are CPU seconds of the process.
"""

import argparse
import math
import platform
import sys
import time
from collections.abc import Sequence

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.place_problem import search_problem
from placeto.problems.making import read_problem
from placeto.problems.options import GroupingOptions
from placeto_baselines import (
    MultilevelSearch,
    PortfolioSearch,
    bound_parts,
    exhaustive_search,
    lower_bound,
)
from placeto_graphs import PlacementProblem
from placeto_simulator import Simulator

# The rows of the paper's table 1, then graphs of the families that no policy is trained on.
OF_TABLE_1 = (
    *("nasnet/4xk80", "nasnet/2xk80", "inception-v3/4xk80", "inception-v3/2xk80"),
    *("nmt-4/4xk80", "nmt-2/2xk80"),
)
OF_FAMILIES = tuple(
    f"{family}:{member}/2xk80"
    for family, members in (("cifar10", (3, 18, 24)), ("ptb", (3, 11, 22)), ("nmt", (20, 6, 29)))
    for member in members
)


def _read(name: str, grouping: GroupingOptions | None = None) -> PlacementProblem:
    """Read a problem, and say so, as each may take a while."""
    print(f"{name} ...", file=sys.stderr)
    source, _, cluster = name.rpartition("/")
    return read_problem(source, cluster, **vars(grouping or GroupingOptions()))


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _print_head(columns: Sequence[str], num_texts: int = 1) -> None:
    _print_row(columns)
    print("|---" * num_texts + "|---:" * (len(columns) - num_texts) + "|", flush=True)


# Bounds

GROUPS_TO_TRY_ALL = {"2xk80": 16, "4xk80": 8}  # in which there are 65,536 placements
EVALUATIONS_OF_SEARCH = 2000


def print_bounds(options: argparse.Namespace) -> None:
    """Print the parts of the lower bound of problems, and the ratio of search to it."""
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
        bounds = bound_parts(problem)
        seconds = time.process_time() - began
        bound = max(bounds.values())
        last_name = list(bounds)[-1]
        bound_without_last = max(bounds[name] for name in bounds if name != last_name)
        if index == 0:
            columns = ["problem", *bounds, "seconds", "best known"]
            _print_head([*columns, f"over the bound without {last_name}", "over the bound"])
        simulator = Simulator(problem)
        placer = MultilevelSearch(options.seconds, bound=bound, clock=time.process_time)
        results = [placer.place(problem, simulator, seed=seed) for seed in range(options.seeds)]
        best = min(cost_of_result(problem, result) for result in results)
        cells = [name, *(f"{value:.3f}" for value in bounds.values())]
        cells += [f"{seconds:.1f}", f"{best:.3f}"]
        _print_row([*cells, f"{best / bound_without_last - 1:.1%}", f"{best / bound - 1:.1%}"])


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
    search = MultilevelSearch(max_evaluations=EVALUATIONS_OF_SEARCH)
    searched = cost_of_result(problem, search.place(problem, simulator))
    cells = [name, str(problem.num_groups), f"{bound:.3f}", f"{best:.3f}"]
    return [*cells, f"{best / bound - 1:.1%}", f"{searched / best - 1:.1%}"]


# The search of `placeto place`


def print_search(options: argparse.Namespace) -> None:
    """Print the costs of searches with equal evaluations, as means of some seeds."""
    searches = [f"{max_evaluations:,} evaluations" for max_evaluations in options.evaluations]
    _print_head(["problem", "lower bound", *searches, "over the bound", "seconds"])
    for name in options.problems:
        problem = search_problem(_read(name))
        bound, simulator = lower_bound(problem), Simulator(problem, num_threads=1)
        MultilevelSearch(max_evaluations=10).place(problem, simulator)  # compiles
        cells, best, seconds = [], math.inf, 0.0
        for max_evaluations in options.evaluations:
            placer = PortfolioSearch(max_evaluations=max_evaluations, bound=bound)
            began = time.process_time()
            results = [placer.place(problem, simulator, seed=seed) for seed in range(options.seeds)]
            seconds = (time.process_time() - began) / options.seeds
            costs = [cost_of_result(problem, result) for result in results]
            best = min(best, *costs)
            cells.append(f"{np.mean(costs):.4f} ({min(costs):.4f} to {max(costs):.4f})")
        _print_row([name, f"{bound:.4f}", *cells, f"{best / bound - 1:.1%}", f"{seconds:.0f}"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables, a row for each problem as soon as it is there."""
    parser = argparse.ArgumentParser(prog="search_tables", description=__doc__)
    commands = parser.add_subparsers(required=True)
    bounds = commands.add_parser("bounds", help=print_bounds.__doc__)
    bounds.set_defaults(run=print_bounds)
    bounds.add_argument("--seconds", type=float, default=10.0, help="of each search")
    bounds.add_argument("--exact", action="store_true", help="try all, in few groups")
    search = commands.add_parser("search", help=print_search.__doc__)
    search.set_defaults(run=print_search)
    search.add_argument("--evaluations", type=int, nargs="+", default=[10_000, 100_000])
    for command in (bounds, search):
        problems = OF_TABLE_1 + OF_FAMILIES
        command.add_argument("problems", nargs="*", default=problems, metavar="SOURCE/CLUSTER")
        command.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    options.run(options)


if __name__ == "__main__":
    main()
