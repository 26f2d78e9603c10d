"""How a policy places the test part of the corpus, alone and with a search, as a table."""

import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto_baselines import CoarseToFine
from placeto_policy import PlacementPolicy
from placeto_policy import PlacetoPlacer
from placeto_simulator import Simulator
from placeto_tools.placing.costs import cost_of
from placeto_tools.placing.costs import fits
from placeto_tools.placing.placers import SAMPLES_OF_PRETRAINED
from placeto_tools.pretraining.searched import Searched
from placeto_tools.tables import TextTable

BUDGETS = (100, 500, 2000)  # evaluations
COLUMNS = (
    "problem",
    ">groups",
    ">devices",
    ">best known, s",
    ">greedy",
    f">best of {1 + SAMPLES_OF_PRETRAINED}",
    *(f">search {budget:,}" for budget in BUDGETS),
    *(f">policy, search {budget:,}" for budget in BUDGETS),
    ">search until as good as greedy",
    ">greedy, s",
)


@dataclass(frozen=True)
class Judged:
    """What was found for one problem; costs are in parts of the best one that is known.

    Attributes
    ----------
    name
        Of the problem in the corpus.
    groups, devices
        G and D.
    best_known
        The least cost that the long search or anything here found, seconds.
    greedy, best_of_some
        Of the policy's most probable placement, and of the best of it and of some drawn ones.
    search, search_from_policy
        Of searches with `BUDGETS`, from nothing, and with what the policy took and found.
    until_as_good
        How many placements the longest search evaluated until it was as good as the greedy one;
        None if it never was.
    seconds
        How long the greedy pass took, with what is computed once for a problem.
    fits_where_search_fits
        Whether the best of the policy's fits the memory; True where the long search found none.
    """

    name: str
    groups: int
    devices: int
    best_known: float
    greedy: float
    best_of_some: float
    search: tuple[float, ...]
    search_from_policy: tuple[float, ...]
    until_as_good: int | None
    seconds: float
    fits_where_search_fits: bool


def judge(policy: PlacementPolicy, problems: Iterable[Searched], seed: int = 0) -> Iterator[Judged]:
    """Yield how a policy places each problem.

    Parameters
    ----------
    policy
        The policy.
    problems
        What it did not learn from.
    seed
        Of all random choices.
    """
    for each in problems:
        yield _judged(policy, each, seed)


def _judged(policy: PlacementPolicy, each: Searched, seed: int) -> Judged:
    problem, simulator = each.problem, Simulator(each.problem, num_threads=1)
    simulator.evaluate(each.placement[None])  # compiles
    began = time.process_time()
    greedy = PlacetoPlacer(policy=policy).place(problem, simulator, seed=seed)
    seconds = time.process_time() - began
    best_of_some = PlacetoPlacer(policy=policy, samples=SAMPLES_OF_PRETRAINED)
    some = best_of_some.place(problem, simulator, seed=seed)
    alone = [
        CoarseToFine(evaluations=budget).place(problem, simulator, seed=seed) for budget in BUDGETS
    ]
    behind = [
        CoarseToFine(evaluations=budget - SAMPLES_OF_PRETRAINED - 1).place(
            problem, simulator, seed=seed, start=some.placement
        )
        for budget in BUDGETS
    ]
    costs = [cost_of(simulator, found.placement) for found in (greedy, some, *alone, *behind)]
    best = min(*costs, cost_of(simulator, each.placement))
    ratios = [cost / best for cost in costs]
    curve = alone[-1].curve
    as_good = curve[curve[:, 1] <= costs[0]]
    searched = simulator.evaluate(each.placement[None])
    search_fits = fits(problem, searched.peak_memory[0])
    return Judged(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        greedy=ratios[0],
        best_of_some=ratios[1],
        search=tuple(ratios[2 : 2 + len(BUDGETS)]),
        search_from_policy=tuple(ratios[2 + len(BUDGETS) :]),
        until_as_good=int(as_good[0, 0]) if len(as_good) else None,
        seconds=seconds,
        fits_where_search_fits=not search_fits or some.fits(problem.cluster),
    )


def row(judged: Judged) -> str:
    """Return the row of the table."""
    until = f"{judged.until_as_good:,}" if judged.until_as_good else f"over {BUDGETS[-1]:,}"
    cells = [
        judged.name,
        f"{judged.groups}",
        f"{judged.devices}",
        f"{judged.best_known:.4g}",
        *(f"{ratio:.3f}" for ratio in _ratios(judged)),
        until,
        f"{judged.seconds:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def header() -> str:
    """Return the first two lines of the table."""
    return TextTable("", COLUMNS, ()).markdown()


def summary(judged: Sequence[Judged]) -> str:
    """Return what the whole table says, as lines."""
    ratios = np.array([_ratios(each) for each in judged])
    until = np.array([each.until_as_good or BUDGETS[-1] for each in judged])
    statistics = (
        ("median", np.median(ratios, axis=0)),
        ("geometric mean", np.exp(np.log(ratios).mean(axis=0))),
        ("within 5 % of the best known", (ratios <= 1.05).mean(axis=0)),
    )
    rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in statistics]
    lines = [TextTable("", ("", *COLUMNS[4:-2]), rows).markdown()]
    count = len(BUDGETS)
    alone, behind = ratios[:, 2 : 2 + count], ratios[:, 2 + count :]
    for index, budget in enumerate(BUDGETS):
        worse = float((alone[:, index] > behind[:, index]).mean())
        lines.append(f"\nWith {budget:,} evaluations, search alone is worse on {worse:.0%}.")
    fits = float(np.mean([each.fits_where_search_fits for each in judged]))
    lines += [
        f"\nSearch alone needs {np.median(until):,.0f} evaluations for the runtime of the greedy "
        f"pass (median), and at least 10 on {(until >= 10).mean():.0%}.",
        f"\nOf the placements of the policy, {fits:.1%} fit where search finds one that does.",
        f"\nA greedy pass takes {np.median([each.seconds for each in judged]):.2f} s (median), and "
        f"{max(each.seconds for each in judged):.2f} s at most.",
    ]
    return "\n".join(lines)


def _ratios(judged: Judged) -> list[float]:
    return [judged.greedy, judged.best_of_some, *judged.search, *judged.search_from_policy]
