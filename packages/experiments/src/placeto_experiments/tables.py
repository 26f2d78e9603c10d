"""Tables of the pages on bounds and searches: ``python -m placeto_experiments.tables bounds``.

``bounds`` prints how far placements are from the lower bound, ``search`` how multilevel search
compares with local search, ``policy-search`` the effect of a policy on multilevel search. Each
problem is SOURCE/CLUSTER. Seconds are CPU time of the process, on each core that it uses.
"""

import argparse
import math
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.placements import GROUPS_OF_POLICY, search_problem
from placeto.placing.placers import start_of_search
from placeto.problems.making import read_problem
from placeto.problems.options import GroupingOptions, ProblemOptions
from placeto.training.run_folder import read_policy
from placeto.trials.curves import evaluations_until
from placeto_baselines import (
    LocalSearch,
    MultilevelSearch,
    bound_parts,
    exhaustive_search,
    lower_bound,
)
from placeto_graphs import PlacementProblem, PlacementResult, Placer
from placeto_policy import PlacementPolicy, load_pretrained
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
    return read_problem(
        source, ProblemOptions(cluster=cluster, grouping=grouping or GroupingOptions())
    )


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
    """Print the parts of the lower bound of problems, and how far search is above it."""
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
    """Try all placements of a problem in few groups: whether the bound or the search is loose."""
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
    """Return how many placements a second are simulated in batches, near a good placement."""
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
    """Print what multilevel search and local search find for problems."""
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


# Multilevel search with and without a policy

NO_POLICY, BUNDLED = "none", "bundled"


class Row(NamedTuple):
    """What one policy does for one problem; costs are medians over seeds, in seconds.

    The factor is how often as many evaluations the search alone needs for the cost of the search
    from the policy in the first budget: the least over its own budgets, as a longer one is hot for
    longer; infinity if it reaches that cost in none.
    """

    problem: str
    policy: str
    costs: list[float]  # zero-shot, NaN without a policy, and for each budget of seconds
    factor: float
    best_known: float

    def cells(self, names: Sequence[str], costs: Sequence[float], digits: str) -> list[str]:
        """Return names, costs and factor as texts; without a policy some are empty."""
        zero_shot, *searched = (format(cost, digits) for cost in costs)
        if self.policy == NO_POLICY:
            return [*names, "", *searched, ""]
        factor = f"{self.factor:.1f}" if math.isfinite(self.factor) else "not reached"
        return [*names, zero_shot, *searched, factor]


def _policy_rows(
    name: str,
    problem: PlacementProblem,
    policies: Mapping[str, PlacementPolicy],
    options: argparse.Namespace,
) -> list[Row]:
    """Search a problem at one level, alone and from where policies place it."""
    coarse = search_problem(problem, GROUPS_OF_POLICY)
    simulator = Simulator(problem, num_threads=1)
    coarse_simulator = Simulator(coarse, num_threads=1)
    MultilevelSearch(evaluations=10).place(problem, simulator)  # compiles

    def rollouts(policy: PlacementPolicy, seed: int) -> PlacementResult:
        return start_of_search(policy).place(coarse, coarse_simulator, seed=seed)

    def search(policy: PlacementPolicy | None, seconds: float, seed: int) -> PlacementResult:
        if policy is None:
            return _search(seconds).place(problem, simulator, seed=seed)
        began = time.process_time()
        placed = rollouts(policy, seed)
        start = problem.placement_of_ops(coarse.expand(placed.placement))
        left = max(seconds - (time.process_time() - began), 1e-3)
        result = _search(left).place(problem, simulator, seed=seed, start=start)
        curve = np.add(result.curve, [placed.evaluations, 0.0])
        return replace(result, curve=np.concatenate([placed.curve, curve]))

    def median(results: Iterable[tuple[PlacementProblem, PlacementResult]]) -> float:
        return float(np.median([cost_of_result(*each) for each in results]))

    seeds = range(options.seeds)
    tried: dict[str, PlacementPolicy | None] = {NO_POLICY: None, **policies}
    found = {
        each: [[search(policy, seconds, seed) for seed in seeds] for seconds in options.seconds]
        for each, policy in tried.items()
    }
    every = [run for runs in found.values() for of_seeds in runs for run in of_seeds]
    if options.reference:
        every.append(search(None, options.reference, options.seeds))
    best = min(cost_of_result(problem, run) for run in every)
    rows = []
    for each, policy in tried.items():
        zero_shot, factor = math.nan, 1.0
        if policy is not None:
            zero_shot = median((coarse, rollouts(policy, seed)) for seed in seeds)
            goals = [cost_of_result(problem, run) for run in found[each][0]]
            factors = [
                min(evaluations_until(alone[seed].curve, goal) for alone in found[NO_POLICY])
                / evaluations_until(found[each][0][seed].curve, goal)
                for seed, goal in enumerate(goals)
            ]
            factor = float(np.median(factors))
        searched = [median((problem, run) for run in of_seeds) for of_seeds in found[each]]
        rows.append(Row(name, each, [zero_shot, *searched], factor, best))
    return rows


def print_policy_search(options: argparse.Namespace) -> None:
    """Print what multilevel search finds with and without policies."""
    given = [text.partition("=")[::2] for text in options.policy]
    budgets = [f"in {seconds:g} s" for seconds in options.seconds]
    _print_head(["problem", "policy", "alone", *budgets, "evaluations", "best known"], num_texts=2)
    rows: list[Row] = []
    for name in options.problems:
        problem = _read(name)
        policies = {
            prefix: read_policy(Path(file)) for prefix, file in given if name.startswith(prefix)
        }
        policies[BUNDLED] = load_pretrained()
        for level in (search_problem(problem, GROUPS_OF_POLICY), search_problem(problem)):
            for row in _policy_rows(name, level, policies, options):
                rows.append(row)
                names = [f"{name}, {level.num_groups} groups", row.policy]
                _print_row([*row.cells(names, row.costs, ".4g"), f"{row.best_known:.4g}"])
    print()
    _print_head(["over the best known", "policy", "alone", *budgets, "evaluations"], num_texts=2)
    for family, policy in dict.fromkeys((r.problem.partition(":")[0], r.policy) for r in rows):
        some = [r for r in rows if r.policy == policy and r.problem.partition(":")[0] == family]
        means = np.exp(np.mean([np.log(np.array(r.costs) / r.best_known) for r in some], axis=0))
        summary = some[0]._replace(factor=float(np.median([r.factor for r in some])))
        _print_row(summary.cells([family, policy], means.tolist(), ".3f"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables, a row for each problem as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_experiments.tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    tables = {"bounds": print_bounds, "search": print_search, "policy-search": print_policy_search}
    for name, run in tables.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        problems = OF_FAMILIES if name == "policy-search" else OF_TABLE_1 + OF_FAMILIES
        command.add_argument("problems", nargs="*", default=problems, metavar="SOURCE/CLUSTER")
        command.set_defaults(run=run)
        if name == "bounds":
            command.add_argument("--seconds", type=float, default=10.0, help="of each search")
            command.add_argument("--seeds", type=int, default=3)
            command.add_argument("--exact", action="store_true", help="try all, in few groups")
        elif name == "search":
            command.add_argument("--evaluations", type=int, default=50_000, help="of local search")
            command.add_argument("--seconds", type=float, default=10.0, help="of longer searches")
            command.add_argument("--seeds", type=int, default=5, help="of multilevel search")
            command.add_argument("--local-search-seeds", type=int, default=1)
            command.add_argument("--threads", type=int, default=1, help="of longer searches")
        else:
            command.add_argument(
                "--policy",
                action="append",
                default=[],
                metavar="SOURCE=FILE",
                help="policy for problems whose SOURCE begins so, with the bundled one",
            )
            command.add_argument(
                "--seconds", type=float, nargs="+", default=(0.5, 1.0, 5.0), help="of searches"
            )
            command.add_argument("--reference", type=float, default=0.0, help="of a longer search")
            command.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
