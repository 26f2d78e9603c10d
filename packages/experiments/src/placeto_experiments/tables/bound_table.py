"""How far placements are from what none can beat.

``python -m placeto_experiments.tables.bound_table`` prints it. With ``--exact``, graphs in so few
groups that all placements can be tried: whether the bound or the search is loose.
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.placements import search_problem
from placeto.problems.making import read_problem
from placeto.problems.options import GroupingOptions, ProblemOptions
from placeto_baselines import MultilevelSearch, bound_parts, exhaustive_search, lower_bound
from placeto_experiments.tables.search_table import PROBLEMS
from placeto_simulator import Simulator

COLUMNS = (
    "problem",
    "path",
    "work",
    "split",
    "crowding",
    "seconds",
    "best known",
    "over the bound without crowding",
    "over the bound",
)

GROUPS_TO_TRY_ALL = {"2xk80": 16, "4xk80": 8}  # in which there are 65,536 placements
EVALUATIONS_OF_SEARCH = 2000
EXACT_COLUMNS = (
    "problem",
    "groups",
    "bound",
    "optimum",
    "optimum over the bound",
    f"search, {EVALUATIONS_OF_SEARCH:,} evaluations, over the optimum",
)


def exact_row(name: str) -> list[str]:
    """Try all placements of a problem in few groups, and return the cells of its row."""
    source, _, cluster = name.rpartition("/")
    if cluster not in GROUPS_TO_TRY_ALL:
        clusters = " or ".join(GROUPS_TO_TRY_ALL)
        raise SystemExit(f"{name}: expected {clusters} behind the last /, got {cluster!r}")
    groups = GroupingOptions(num_groups=GROUPS_TO_TRY_ALL[cluster])
    problem = read_problem(source, ProblemOptions(cluster=cluster, grouping=groups))
    simulator = Simulator(problem)
    best = cost_of_result(problem, exhaustive_search(problem, simulator))
    bound = lower_bound(problem)
    search = MultilevelSearch(evaluations=EVALUATIONS_OF_SEARCH)
    found = cost_of_result(problem, search.place(problem, simulator))
    return [
        name,
        str(problem.num_groups),
        f"{bound:.3f}",
        f"{best:.3f}",
        f"{best / bound - 1:.1%}",
        f"{found / best - 1:.1%}",
    ]


def row(name: str, seconds: float, seeds: int) -> list[str]:
    """Bound a problem, search for placements of it, and return the cells of its row."""
    source, _, cluster = name.rpartition("/")
    problem = search_problem(read_problem(source, ProblemOptions(cluster=cluster)))
    bound_parts(problem)  # compiles
    start = time.process_time()
    parts = bound_parts(problem)
    taken = time.process_time() - start
    simulator = Simulator(problem)
    placer = MultilevelSearch(seconds, bound=max(parts.values()), clock=time.process_time)
    found = [placer.place(problem, simulator, seed=seed) for seed in range(seeds)]
    best = min(cost_of_result(problem, result) for result in found)
    without = max(bound for part, bound in parts.items() if part != "crowding")
    return [
        name,
        *(f"{parts[part]:.3f}" for part in COLUMNS[1:5]),
        f"{taken:.1f}",
        f"{best:.3f}",
        f"{best / without - 1:.1%}",
        f"{best / max(parts.values()) - 1:.1%}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each problem as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_experiments.tables.bound_table", description=__doc__
    )
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="SOURCE/CLUSTER each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--exact", action="store_true", help="try all placements in few groups")
    options = parser.parse_args(arguments)
    columns = EXACT_COLUMNS if options.exact else COLUMNS
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    print("| " + " | ".join(columns) + " |")
    print("|---" + "|---:" * (len(columns) - 1) + "|", flush=True)
    for name in options.problems:
        print(f"{name} ...", file=sys.stderr)
        cells = exact_row(name) if options.exact else row(name, options.seconds, options.seeds)
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
