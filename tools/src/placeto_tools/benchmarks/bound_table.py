"""How far placements are from what none can beat.

``python -m placeto_tools.benchmarks.bound_table`` prints it.
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence

import numpy as np

from placeto_baselines import CoarseToFine
from placeto_baselines import bound_parts
from placeto_simulator import Simulator
from placeto_tools.benchmarks.search_table import PROBLEMS
from placeto_tools.placing.costs import cost_of_result
from placeto_tools.placing.placements import search_problem
from placeto_tools.problems.making import read_problem
from placeto_tools.problems.problem_options import ProblemOptions

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


def row(name: str, seconds: float, seeds: int) -> list[str]:
    """Bound a problem, search for placements of it, and return the cells of its row."""
    source, _, cluster = name.rpartition("/")
    problem = search_problem(read_problem(source, ProblemOptions(cluster=cluster)))
    bound_parts(problem)  # compiles
    start = time.process_time()
    parts = bound_parts(problem)
    taken = time.process_time() - start
    simulator = Simulator(problem)
    placer = CoarseToFine(seconds, bound=max(parts.values()), clock=time.process_time)
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
        prog="placeto_tools.benchmarks.bound_table", description=__doc__
    )
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="SOURCE/CLUSTER each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" + "|---:" * (len(COLUMNS) - 1) + "|", flush=True)
    for name in options.problems:
        print(f"{name} ...", file=sys.stderr)
        print("| " + " | ".join(row(name, options.seconds, options.seeds)) + " |", flush=True)


if __name__ == "__main__":
    main()
