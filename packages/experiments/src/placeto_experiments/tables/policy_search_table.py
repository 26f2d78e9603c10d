"""What a policy is worth to the search from coarse to fine: the same seconds with and without it.

``python -m placeto_experiments.tables.policy_search_table`` prints it.
Seconds are those that the process computes on one core, those of the policy's passes included.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from placeto.placing.costs import cost_of, first_as_good
from placeto.placing.placements import GROUPS_OF_POLICY, search_problem
from placeto.placing.placers import start_of_search
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.training.run_folder import read_policy
from placeto_baselines import MultilevelSearch
from placeto_graphs import PlacementProblem, PlacementResult
from placeto_policy import PlacementPolicy, load_pretrained
from placeto_simulator import Simulator

SECONDS = (0.5, 1.0, 5.0)
NO_POLICY, IN_THE_BOX = "none", "in the box"
# Members of the families that no policy is trained on.
PROBLEMS = tuple(
    f"{family}:{number}/2xk80"
    for family, numbers in (("nmt", (6, 20, 29)), ("ptb", (3, 11, 22)), ("cifar10", (3, 18, 24)))
    for number in numbers
)


@dataclass(frozen=True)
class Found:
    """What one run came to.

    Attributes
    ----------
    cost : float
        The memory-penalised runtime, seconds.
    curve : float64[N, 2]
        Evaluations and the least cost so far.
    """

    cost: float
    curve: np.ndarray[tuple[int, int], np.dtype[np.float64]]

    def until(self, cost: float) -> float:
        """Return after how many evaluations it was as good; infinity if it never was."""
        evaluations = first_as_good(self.curve, cost)
        return math.inf if evaluations is None else float(evaluations)


class Searching:
    """Searches a problem at one level, alone or from where a policy puts it.

    Parameters
    ----------
    problem
        What is placed, at the level that the search ends at.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.coarse = search_problem(problem, GROUPS_OF_POLICY)
        self.simulator = Simulator(problem, num_threads=1)
        self.coarse_simulator = Simulator(self.coarse, num_threads=1)
        MultilevelSearch(evaluations=10).place(problem, self.simulator)  # compiles

    def alone(self, seconds: float, seed: int) -> Found:
        """Search from nothing."""
        placer = MultilevelSearch(seconds, clock=time.process_time)
        result = placer.place(self.problem, self.simulator, seed=seed)
        return Found(cost_of(self.simulator, result.placement), np.array(result.curve))

    def policy_alone(self, policy: PlacementPolicy, seed: int) -> Found:
        """Take the best of some passes."""
        result = self._passes(policy, seed)
        return Found(cost_of(self.coarse_simulator, result.placement), np.array(result.curve))

    def from_policy(self, policy: PlacementPolicy, seconds: float, seed: int) -> Found:
        """Search from the best of some passes, in the seconds that these leave."""
        began = time.process_time()
        placed = self._passes(policy, seed)
        start = self.problem.placement_of_ops(self.coarse.expand(placed.placement))
        left = max(seconds - (time.process_time() - began), 1e-3)
        search = MultilevelSearch(left, clock=time.process_time)
        result = search.place(self.problem, self.simulator, seed=seed, start=start)
        curve = np.add(result.curve, [placed.evaluations, 0.0])
        cost = cost_of(self.simulator, result.placement)
        return Found(cost, np.concatenate([placed.curve, curve]))

    def _passes(self, policy: PlacementPolicy, seed: int) -> PlacementResult:
        return start_of_search(policy).place(self.coarse, self.coarse_simulator, seed=seed)


@dataclass(frozen=True)
class Row:
    """What one policy is worth on one problem; costs are medians over seeds, in seconds.

    Attributes
    ----------
    problem, policy : text
        Their names; `NO_POLICY` for the search alone.
    groups : int
        At the level that the search ends at.
    zero_shot : float
        The cost of the policy alone; NaN without one.
    searched : floats
        What the search came to in each of some seconds.
    factor : float
        How often as many evaluations the search alone needs for what the search from the policy
        came to in the first of these seconds: the least of all its budgets, as a longer one is hot
        for longer; infinity where it comes there in none.
    best_known : float
        What the longest search found, or a better one of the row.
    """

    problem: str
    policy: str
    groups: int
    zero_shot: float
    searched: tuple[float, ...]
    factor: float
    best_known: float


@dataclass(frozen=True)
class Budgets:
    """How long, and how often, problems are searched.

    Attributes
    ----------
    seconds : floats
        Of each search.
    reference : float
        Seconds of one long search more; 0 for none.
    seeds : int
        How often each search runs, but for the long one.
    """

    seconds: Sequence[float]
    reference: float
    seeds: int


def rows_of(
    name: str,
    problem: PlacementProblem,
    policies: Mapping[str, PlacementPolicy],
    budgets: Budgets,
) -> list[Row]:
    """Search a problem alone and from each policy.

    Parameters
    ----------
    name
        Of the problem.
    problem
        At the level that the search ends at.
    policies
        By name.
    budgets
        How long it is searched.
    """
    searching = Searching(problem)
    alone = _runs(searching.alone, budgets)
    found = {NO_POLICY: (math.nan, alone, 1.0)}
    for policy_name, policy in policies.items():
        zero_shot = [searching.policy_alone(policy, seed).cost for seed in range(budgets.seeds)]
        behind = _runs(partial(searching.from_policy, policy), budgets)
        factors = [
            min(each[seed].until(run.cost) for each in alone) / run.until(run.cost)
            for seed, run in enumerate(behind[0])
        ]
        found[policy_name] = (float(np.median(zero_shot)), behind, float(np.median(factors)))
    costs = [run.cost for _, runs, _ in found.values() for some in runs for run in some]
    if budgets.reference:
        costs.append(searching.alone(budgets.reference, budgets.seeds).cost)
    return [
        Row(name, policy, problem.num_groups, cost, _medians(runs), factor, min(costs))
        for policy, (cost, runs, factor) in found.items()
    ]


def _runs(search: Callable[[float, int], Found], budgets: Budgets) -> list[list[Found]]:
    return [[search(seconds, seed) for seed in range(budgets.seeds)] for seconds in budgets.seconds]


def _medians(runs: Sequence[Sequence[Found]]) -> tuple[float, ...]:
    return tuple(float(np.median([found.cost for found in some])) for some in runs)


def _line(row: Row) -> str:
    has_policy = row.policy != NO_POLICY
    cells = [
        f"{row.problem}, {row.groups} groups",
        row.policy,
        f"{row.zero_shot:.4g}" if has_policy else "",
        *(f"{cost:.4g}" for cost in row.searched),
        _factor_text(row.factor) if has_policy else "",
        f"{row.best_known:.4g}",
    ]
    return "| " + " | ".join(cells) + " |"


def _factor_text(factor: float) -> str:
    return f"{factor:.1f}" if math.isfinite(factor) else "not reached"


def summary(rows: Sequence[Row], seconds: Sequence[float]) -> str:
    """Return a table of geometric means over the best known ones, for each family and policy."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.problem.partition(":")[0], row.policy), []).append(row)
    lines = []
    for (family, policy), some in grouped.items():
        costs = np.array([[row.zero_shot, *row.searched] for row in some])
        known = np.array([row.best_known for row in some])
        means = np.exp(np.log(costs / known[:, None]).mean(axis=0))
        alone = "" if policy == NO_POLICY else f"{means[0]:.3f}"
        factor = float(np.median([row.factor for row in some]))
        cells = [family, policy, alone, *(f"{mean:.3f}" for mean in means[1:])]
        cells.append("" if policy == NO_POLICY else _factor_text(factor))
        lines.append("| " + " | ".join(cells) + " |")
    columns = ["over the best known", "policy", "alone", *_titles(seconds), "evaluations"]
    return "\n".join([_header(columns), *lines])


def _titles(seconds: Sequence[float]) -> list[str]:
    return [f"in {each:g} s" for each in seconds]


def _header(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n|---|---{'|---:' * (len(columns) - 2)}|"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search problems with and without policies, and print a row for each as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_experiments.tables.policy_search_table", description=__doc__
    )
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="SOURCE/CLUSTER each")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="SOURCE=FILE",
        help="a policy for problems whose SOURCE begins so, beside the one in the box",
    )
    parser.add_argument("--seconds", type=float, nargs="+", default=SECONDS, help="of searches")
    parser.add_argument("--reference", type=float, default=0.0, help="seconds of a longer search")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    given = [text.partition("=")[::2] for text in options.policy]
    budgets = Budgets(options.seconds, options.reference, options.seeds)
    titles = _titles(budgets.seconds)
    print(_header(["problem", "policy", "alone", *titles, "evaluations", "best known"]), flush=True)
    rows = []
    for name in options.problems:
        source, _, cluster = name.rpartition("/")
        print(f"{name} ...", file=sys.stderr)
        policies = {
            prefix: read_policy(Path(file)) for prefix, file in given if source.startswith(prefix)
        }
        policies[IN_THE_BOX] = load_pretrained()
        problem = read_problem(source, ProblemOptions(cluster=cluster))
        coarse, fine = search_problem(problem, GROUPS_OF_POLICY), search_problem(problem)
        for level in (coarse, fine):
            found = rows_of(name, level, policies, budgets)
            rows += found
            print("\n".join(map(_line, found)), flush=True)
    print("\n" + summary(rows, budgets.seconds))


if __name__ == "__main__":
    main()
