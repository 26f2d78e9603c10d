"""The search from coarse to fine beside local search.

``python -m placeto_experiments.tables.search_table`` prints it.
Seconds are those that the process computes, on each core that it uses, so that other processes
change little.
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.placements import search_problem
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto_baselines import LocalSearch, MultilevelSearch, lower_bound
from placeto_graphs import PlacementProblem, Placer
from placeto_simulator import Simulator

# The rows of the paper's table 1, then members of the families that no policy is trained on.
PROBLEMS = (
    "nasnet/4xk80",
    "nasnet/2xk80",
    "inception-v3/4xk80",
    "inception-v3/2xk80",
    "nmt-4/4xk80",
    "nmt-2/2xk80",
    "cifar10:3/2xk80",
    "cifar10:18/2xk80",
    "cifar10:24/2xk80",
    "ptb:3/2xk80",
    "ptb:11/2xk80",
    "ptb:22/2xk80",
    "nmt:20/2xk80",
    "nmt:6/2xk80",
    "nmt:29/2xk80",
)
SHARE = 20  # the short search has that part of the seconds of local search
BATCH = 256  # placements
COLUMNS = (
    "problem",
    "lower bound",
    "local search",
    "its seconds",
    f"coarse to fine, 1/{SHARE} of them",
    "in {seconds:g} s",
    "gain",
    "over the bound",
    "evaluations/s: local search, coarse to fine, simulator",
)


@dataclass(frozen=True)
class Runs:
    """What one scheme came to with several seeds.

    Attributes
    ----------
    costs : floats
        Memory-penalised runtimes in seconds.
    seconds : floats
        How long each took.
    evaluations : ints
        How many placements each evaluated.
    """

    costs: Sequence[float]
    seconds: Sequence[float]
    evaluations: Sequence[int]

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


def local_search(problem: PlacementProblem, evaluations: int, seeds: int) -> Runs:
    """Place a problem in its own groups."""
    simulator = Simulator(problem, num_threads=1)
    LocalSearch(2).place(problem, simulator)  # compiles
    return _runs(problem, LocalSearch(evaluations), simulator, seeds)


def coarse_to_fine(
    problem: PlacementProblem, seconds: float, bound: float, seeds: int, threads: int = 1
) -> Runs:
    """Place a problem from its coarsest groups to the finest ones of a search."""
    simulator = Simulator(problem, num_threads=threads)
    MultilevelSearch(evaluations=10).place(problem, simulator)  # compiles
    placer = MultilevelSearch(seconds, bound=bound, clock=lambda: time.process_time() / threads)
    return _runs(problem, placer, simulator, seeds)


def simulator_rate(problem: PlacementProblem, seconds: float = 0.5) -> float:
    """Return how many placements a second are simulated in batches, near a good placement."""
    simulator = Simulator(problem, num_threads=1)
    generator = np.random.default_rng(0)
    good = MultilevelSearch(evaluations=2000).place(problem, simulator).placement
    batch = np.repeat(good[None], BATCH, axis=0)
    for row in batch:
        row[generator.integers(problem.num_groups)] = good[0]
    count, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        simulator.evaluate(batch)
        count += BATCH
    return count / elapsed


def _runs(problem: PlacementProblem, placer: Placer, simulator: Simulator, seeds: int) -> Runs:
    results, seconds = [], []
    for seed in range(seeds):
        start = time.process_time()
        results.append(placer.place(problem, simulator, seed=seed))
        seconds.append(time.process_time() - start)
    costs = [cost_of_result(problem, result) for result in results]
    return Runs(costs, seconds, [result.evaluations for result in results])


def main(arguments: Sequence[str] | None = None) -> None:
    """Place problems with both searches, and print a row for each as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_experiments.tables.search_table", description=__doc__
    )
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="SOURCE/CLUSTER each")
    parser.add_argument("--evaluations", type=int, default=50_000, help="of local search")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the longer search")
    parser.add_argument("--seeds", type=int, default=5, help="of the search from coarse to fine")
    parser.add_argument("--local-search-seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of the longer search")
    options = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    print("| " + " | ".join(COLUMNS).format(seconds=options.seconds) + " |")
    print("|---" + "|---:" * (len(COLUMNS) - 1) + "|", flush=True)
    logs = []
    for name in options.problems:
        source, _, cluster = name.rpartition("/")
        print(f"{name} ...", file=sys.stderr)
        problem = read_problem(source, ProblemOptions(cluster=cluster))
        fine = search_problem(problem)
        bound = lower_bound(fine)
        usual = local_search(problem, options.evaluations, options.local_search_seeds)
        seconds = float(np.median(usual.seconds))
        short = coarse_to_fine(fine, seconds / SHARE, bound, options.seeds)
        long = coarse_to_fine(fine, options.seconds, bound, options.seeds, options.threads)
        logs.append(np.log(long.median / usual.median))
        cells = [
            f"{name}, {problem.num_groups} groups",
            f"{bound:.3f}",
            str(usual),
            f"{seconds:.0f}",
            str(short),
            str(long),
            f"{1 - long.median / usual.median:.1%}",
            f"{long.median / bound - 1:.1%}",
            f"{usual.rate:,.0f}, {long.rate:,.0f}, {simulator_rate(fine):,.0f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nGain on the mean: {1 - np.exp(np.mean(logs)):.1%}.")


if __name__ == "__main__":
    main()
