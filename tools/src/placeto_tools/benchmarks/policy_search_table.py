"""What a policy is worth to the search from coarse to fine: the same seconds with and without it.

``python -m placeto_tools.benchmarks.policy_search_table`` prints it.
Seconds are those that the process computes on one core, those of the policy's passes included.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from placeto_baselines import CoarseToFine
from placeto_graphs import PlacementProblem
from placeto_policy import PlacementPolicy
from placeto_policy import PlacetoPlacer
from placeto_policy import load_pretrained
from placeto_simulator import Simulator
from placeto_tools.placing.placements import GROUPS_OF_POLICY
from placeto_tools.placing.placements import search_problem
from placeto_tools.placing.placers import SAMPLES_OF_PRETRAINED
from placeto_tools.pretraining.costs import cost_of
from placeto_tools.problems.making import read_problem
from placeto_tools.problems.problem_options import ProblemOptions
from placeto_tools.training.run_folder import read_policy

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
    evaluations : int
        How many placements were evaluated.
    curve : float64[N, 2]
        Evaluations and the least cost so far.
    """

    cost: float
    evaluations: int
    curve: np.ndarray[tuple[int, int], np.dtype[np.float64]]

    def until(self, cost: float) -> float:
        """Return after how many evaluations it was as good; infinity if it never was."""
        as_good = self.curve[self.curve[:, 1] <= cost]
        return float(as_good[0, 0]) if len(as_good) else math.inf


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
        CoarseToFine(evaluations=10).place(problem, self.simulator)  # compiles

    def alone(self, seconds: float, seed: int) -> Found:
        """Search from nothing."""
        placer = CoarseToFine(seconds, clock=time.process_time)
        result = placer.place(self.problem, self.simulator, seed=seed)
        return Found(
            cost_of(self.simulator, result.placement), result.evaluations, np.array(result.curve)
        )

    def policy_alone(self, policy: PlacementPolicy, seed: int) -> Found:
        """Take the best of some passes."""
        placer = PlacetoPlacer(policy=policy, samples=SAMPLES_OF_PRETRAINED)
        result = placer.place(self.coarse, self.coarse_simulator, seed=seed)
        cost = cost_of(self.coarse_simulator, result.placement)
        return Found(cost, result.evaluations, np.array(result.curve))

    def from_policy(self, policy: PlacementPolicy, seconds: float, seed: int) -> Found:
        """Search from the best of some passes, in the seconds that these leave."""
        began = time.process_time()
        placer = PlacetoPlacer(policy=policy, samples=SAMPLES_OF_PRETRAINED)
        placed = placer.place(self.coarse, self.coarse_simulator, seed=seed)
        start = self.problem.placement_of_ops(self.coarse.expand(placed.placement))
        left = max(seconds - (time.process_time() - began), 1e-3)
        search = CoarseToFine(left, clock=time.process_time)
        result = search.place(self.problem, self.simulator, seed=seed, start=start)
        curve = np.add(result.curve, [placed.evaluations, 0.0])
        return Found(
            cost_of(self.simulator, result.placement),
            placed.evaluations + result.evaluations,
            np.concatenate([placed.curve, curve]),
        )


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
        What the search came to in each of `SECONDS`.
    factor : float
        How often as many evaluations the search alone needs for what the search from the policy
        came to in the second of `SECONDS`; infinity where it does not come there in the last.
    """

    problem: str
    policy: str
    groups: int
    zero_shot: float
    searched: tuple[float, ...]
    factor: float


def rows_of(
    name: str, problem: PlacementProblem, policies: Mapping[str, PlacementPolicy], seeds: int
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
    seeds
        Of each run.
    """
    searching = Searching(problem)
    alone = _runs(searching.alone, seeds)
    rows = [Row(name, NO_POLICY, problem.num_groups, math.nan, _medians(alone), 1.0)]
    for policy_name, policy in policies.items():
        zero_shot = [searching.policy_alone(policy, seed) for seed in range(seeds)]
        behind = _runs(partial(searching.from_policy, policy), seeds)
        factors = [
            without.until(found.cost) / found.until(found.cost)
            for without, found in zip(alone[-1], behind[1], strict=True)
        ]
        cost = float(np.median([found.cost for found in zero_shot]))
        rows.append(
            Row(
                name,
                policy_name,
                problem.num_groups,
                cost,
                _medians(behind),
                float(np.median(factors)),
            )
        )
    return rows


def _runs(search: Callable[[float, int], Found], seeds: int) -> list[list[Found]]:
    return [[search(seconds, seed) for seed in range(seeds)] for seconds in SECONDS]


def _medians(runs: Sequence[Sequence[Found]]) -> tuple[float, ...]:
    return tuple(float(np.median([found.cost for found in some])) for some in runs)


def _line(row: Row) -> str:
    cells = [
        f"{row.problem}, {row.groups} groups",
        row.policy,
        "" if math.isnan(row.zero_shot) else f"{row.zero_shot:.4g}",
        *(f"{cost:.4g}" for cost in row.searched),
        "" if row.policy == NO_POLICY else _factor_text(row.factor),
    ]
    return "| " + " | ".join(cells) + " |"


def _factor_text(factor: float) -> str:
    return f"{factor:.1f}" if math.isfinite(factor) else "not reached"


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a line for each family of problems, policy and level, such as the table is read by."""
    alone = {(row.problem, row.groups): row for row in rows if row.policy == NO_POLICY}
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.policy != NO_POLICY:
            grouped.setdefault((row.problem.partition(":")[0], row.policy), []).append(row)
    lines = []
    for (family, policy), some in grouped.items():
        ratios = np.array(
            [
                np.array([row.zero_shot, *row.searched])
                / np.array([alone[row.problem, row.groups].searched[-1], *_searched(alone, row)])
                for row in some
            ]
        )
        means = np.exp(np.log(ratios).mean(axis=0))
        gains = ", ".join(
            f"{mean:.3f} in {seconds:g} s" for mean, seconds in zip(means[1:], SECONDS, strict=True)
        )
        factor = _factor_text(float(np.median([row.factor for row in some])))
        lines.append(
            f"{family}, policy {policy}: alone {means[0]:.3f} of the search in {SECONDS[-1]:g} s; "
            f"with search over search alone {gains}; evaluations {factor} (median)"
        )
    return lines


def _searched(alone: Mapping[tuple[str, int], Row], row: Row) -> tuple[float, ...]:
    return alone[row.problem, row.groups].searched


def main(arguments: Sequence[str] | None = None) -> None:
    """Search problems with and without policies, and print a row for each as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.policy_search_table", description=__doc__
    )
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="SOURCE/CLUSTER each")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="SOURCE=FILE",
        help="a policy for problems whose SOURCE begins so, beside the one in the box",
    )
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    given = [text.partition("=")[::2] for text in options.policy]
    columns = ["problem", "policy", "alone", *(f"in {seconds:g} s" for seconds in SECONDS)]
    print("| " + " | ".join([*columns, "evaluations of search alone"]) + " |")
    print("|---|---" + "|---:" * (len(columns) - 1) + "|", flush=True)
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
            found = rows_of(name, level, policies, options.seeds)
            rows += found
            print("\n".join(map(_line, found)), flush=True)
    print("\n" + "\n".join(f"- {line}" for line in summary(rows)))


if __name__ == "__main__":
    main()
