"""Tables of a policy on problems: zero-shot and with a search, and after training on each."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of, fits
from placeto.placing.placers import SAMPLES_OF_PRETRAINED, pretrained, start_of_search
from placeto.texts import TextTable
from placeto.trials.curves import evaluations_until
from placeto_baselines import MultilevelSearch
from placeto_experiments.pretraining.searched import Searched
from placeto_graphs import PlacementResult, Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer, preset
from placeto_simulator import Simulator

BUDGETS = (100, 500, 2000)  # evaluations
TRAINING_BUDGETS = (2_000, 5_000, 10_000)  # evaluations
RATIOS = (  # to the best known cost
    ">greedy",
    f">best of {1 + SAMPLES_OF_PRETRAINED}",
    ">and two rounds",
    ">search as long",
    *(f">search {budget:,}" for budget in BUDGETS),
    *(f">policy, search {budget:,}" for budget in BUDGETS),
)
GREEDY, REFINED, AS_LONG = 0, 2, 3  # their places
ALONE, BEHIND = slice(4, 4 + len(BUDGETS)), slice(4 + len(BUDGETS), None)
COLUMNS = (
    *("problem", ">groups", ">devices", ">best known, s", *RATIOS),
    *(">search until as good as greedy", ">until as good as refined", ">greedy, s", ">refined, s"),
)


@dataclass(frozen=True)
class Evaluation:
    """What was found for one problem of G groups on D devices.

    The greedy placement is the policy's most probable one; the refined one comes of two rounds of
    coordinate descent from the best of some rollouts, beside a search with as many evaluations.
    Searches of `BUDGETS` begin from nothing or from the policy; the longest one from nothing took
    ``until_as_good`` evaluations to be as good as the greedy placement, infinity if it never was.
    Seconds are CPU time, with what is computed once for a problem.
    """

    name: str
    groups: int
    devices: int
    best_known: float  # seconds: the least of the long search and of all searches here
    ratios: tuple[float, ...]  # see `RATIOS`
    refined_evaluations: int
    until_as_good: float
    until_as_refined: float
    seconds: float
    refined_seconds: float
    fits_where_search_fits: bool  # of the refined placement's memory


def evaluate(
    policy: PlacementPolicy, problems: Iterable[Searched], seed: int = 0
) -> Iterator[Evaluation]:
    """Yield how a policy places problems that it did not learn from."""
    for each in problems:
        yield _evaluation(policy, each, seed)


def _evaluation(policy: PlacementPolicy, each: Searched, seed: int) -> Evaluation:
    problem, simulator = each.problem, Simulator(each.problem, num_threads=1)
    simulator.evaluate(each.placement[None])  # compiles

    def timed(placer: Placer) -> tuple[PlacementResult, float]:
        began = time.process_time()
        return placer.place(problem, simulator, seed=seed), time.process_time() - began

    greedy, seconds = timed(PlacetoPlacer(policy=policy))
    some, _ = timed(start_of_search(policy))
    refined, refined_seconds = timed(pretrained(problem, policy))
    as_long, *alone = [
        MultilevelSearch(evaluations=budget).place(problem, simulator, seed=seed)
        for budget in (refined.evaluations, *BUDGETS)
    ]
    behind = [
        MultilevelSearch(evaluations=budget - SAMPLES_OF_PRETRAINED - 1).place(
            problem, simulator, seed=seed, start=some.placement
        )
        for budget in BUDGETS
    ]
    costs = [
        cost_of(simulator, found.placement)
        for found in (greedy, some, refined, as_long, *alone, *behind)
    ]
    best = min(*costs, cost_of(simulator, each.placement))
    searched = simulator.evaluate(each.placement[None])
    as_good, as_refined = (
        evaluations_until(alone[-1].curve, costs[place]) for place in (GREEDY, REFINED)
    )
    return Evaluation(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        ratios=tuple(cost / best for cost in costs),
        refined_evaluations=refined.evaluations,
        until_as_good=as_good,
        until_as_refined=as_refined,
        seconds=seconds,
        refined_seconds=refined_seconds,
        fits_where_search_fits=refined.fits(problem.cluster)
        or not fits(problem, searched.peak_memory[0]),
    )


def row(each: Evaluation) -> str:
    """Return the row of the table."""
    cells = [
        each.name,
        f"{each.groups}",
        f"{each.devices}",
        f"{each.best_known:.4g}",
        *(f"{ratio:.3f}" for ratio in each.ratios),
        *map(_until, (each.until_as_good, each.until_as_refined)),
        f"{each.seconds:.2f}",
        f"{each.refined_seconds:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def header() -> str:
    """Return the first two lines of the table."""
    return TextTable("", COLUMNS, ()).markdown()


def summary(evaluations: Sequence[Evaluation]) -> str:
    """Return what the whole table says, as lines."""
    ratios = np.array([each.ratios for each in evaluations])
    until = np.array([each.until_as_good for each in evaluations])
    looked = np.array([each.refined_evaluations for each in evaluations])
    statistics = (
        ("median", np.median(ratios, axis=0)),
        ("geometric mean", np.exp(np.log(ratios).mean(axis=0))),
        ("within 5 % of the best known", (ratios <= 1.05).mean(axis=0)),
    )
    rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in statistics]
    lines = [TextTable("", ("", *RATIOS), rows).markdown()]
    worse = (ratios[:, ALONE] > ratios[:, BEHIND]).mean(axis=0).tolist()
    for budget, share in zip(BUDGETS, worse, strict=True):
        lines.append(f"\nWith {budget:,} evaluations, search alone is worse on {share:.0%}.")
    fitting = float(np.mean([each.fits_where_search_fits for each in evaluations]))
    never = np.mean([math.isinf(each.until_as_refined) for each in evaluations])
    lines += [
        f"\nSearch alone needs {_until(float(np.median(until)))} evaluations for the runtime of "
        f"the greedy rollout (median), and at least 10 on {(until >= 10).mean():.0%}.",
        f"\nTo the end of the rounds {np.median(looked):,.0f} placements are evaluated (median); a "
        f"search with as many is worse on {(ratios[:, AS_LONG] > ratios[:, REFINED]).mean():.0%}, "
        f"and one with {BUDGETS[-1]:,} never as good on {never:.0%}.",
        f"\nOf the refined placements, {fitting:.1%} fit where search finds one that does.",
        f"\nA greedy rollout takes {_seconds([each.seconds for each in evaluations])}, all to the "
        f"end of the rounds {_seconds([each.refined_seconds for each in evaluations])}.",
    ]
    return "\n".join(lines)


def _until(evaluations: float) -> str:
    return f"over {BUDGETS[-1]:,}" if math.isinf(evaluations) else f"{evaluations:,.0f}"


def _seconds(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} s (median, {max(values):.2f} s at most)"


def training_header() -> str:
    """Return the first two lines of the table."""
    columns = [
        *("problem", f">best of {1 + SAMPLES_OF_PRETRAINED}"),
        *(f">trained on, {budget:,}" for budget in TRAINING_BUDGETS),
        *(f">search, {budget:,}" for budget in TRAINING_BUDGETS),
    ]
    return TextTable("", columns, ()).markdown()


def training_rows(
    policy: PlacementPolicy, problems: Iterable[Searched], seed: int = 0
) -> Iterator[str]:
    """Yield a row for each problem: the effect of training on it, with searches as long.

    Costs are ratios to those of the long search.
    """
    for each in problems:
        simulator = Simulator(each.problem, num_threads=1)
        known = cost_of(simulator, each.placement)
        placer = PlacetoPlacer(
            policy=policy,
            training_evaluations=TRAINING_BUDGETS[-1],
            samples=SAMPLES_OF_PRETRAINED,
            settings=preset("fine-tuning"),
        )
        curve = placer.place(each.problem, simulator, seed=seed).curve
        budgets = (1 + SAMPLES_OF_PRETRAINED, *TRAINING_BUDGETS)
        costs = [best_within(curve, budget) for budget in budgets]
        for budget in TRAINING_BUDGETS:
            found = MultilevelSearch(evaluations=budget).place(each.problem, simulator, seed=seed)
            costs.append(cost_of(simulator, found.placement))
        yield f"| {each.name} | " + " | ".join(f"{cost / known:.3f}" for cost in costs) + " |"


def best_within(curve: NDArray[np.float64], evaluations: int) -> float:
    """Return the least cost of a curve float64[K, 2] within so many evaluations.

    Examples
    --------
    >>> best_within(np.array([[1.0, 9.0], [5.0, 7.0], [20.0, 3.0]]), 10)
    7.0
    """
    return float(curve[curve[:, 0] <= evaluations, 1].min())
