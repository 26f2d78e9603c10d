"""How a policy places the test part of the corpus, alone and with a search, as a table."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placeto.placing.costs import cost_of, first_as_good, fits
from placeto.placing.placers import SAMPLES_OF_PRETRAINED, pretrained, start_of_search
from placeto.texts import TextTable
from placeto_baselines import MultilevelSearch
from placeto_experiments.pretraining.searched import Searched
from placeto_graphs import PlacementResult, Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer
from placeto_simulator import Simulator

BUDGETS = (100, 500, 2000)  # evaluations
COLUMNS = (
    "problem",
    ">groups",
    ">devices",
    ">best known, s",
    ">greedy",
    f">best of {1 + SAMPLES_OF_PRETRAINED}",
    ">and two sweeps",
    ">search as long",
    *(f">search {budget:,}" for budget in BUDGETS),
    *(f">policy, search {budget:,}" for budget in BUDGETS),
    ">search until as good as greedy",
    ">until as good as swept",
    ">greedy, s",
    ">swept, s",
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
    swept, as_long
        Of two sweeps from there, and of a search with as many evaluations as all that.
    swept_evaluations
        How many these are.
    search, search_from_policy
        Of searches with `BUDGETS`, from nothing, and with what the policy took and found.
    until_as_good, until_as_swept
        How many placements the longest search evaluated until it was as good as the greedy one, and
        as the swept one; None if it never was.
    seconds, swept_seconds
        How long the greedy pass, and all to the end of the sweeps took, with what is computed once
        for a problem.
    fits_where_search_fits
        Whether the swept placement fits the memory; True where the long search found none.
    """

    name: str
    groups: int
    devices: int
    best_known: float
    greedy: float
    best_of_some: float
    swept: float
    as_long: float
    swept_evaluations: int
    search: tuple[float, ...]
    search_from_policy: tuple[float, ...]
    until_as_good: int | None
    until_as_swept: int | None
    seconds: float
    swept_seconds: float
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
    greedy, seconds = _placed(PlacetoPlacer(policy=policy), each, simulator, seed)
    some, _ = _placed(start_of_search(policy), each, simulator, seed)
    swept, swept_seconds = _placed(pretrained(problem, policy), each, simulator, seed)
    as_long, *alone = [
        MultilevelSearch(evaluations=budget).place(problem, simulator, seed=seed)
        for budget in (swept.evaluations, *BUDGETS)
    ]
    behind = [
        MultilevelSearch(evaluations=budget - SAMPLES_OF_PRETRAINED - 1).place(
            problem, simulator, seed=seed, start=some.placement
        )
        for budget in BUDGETS
    ]
    costs = [
        cost_of(simulator, found.placement)
        for found in (greedy, some, swept, as_long, *alone, *behind)
    ]
    best = min(*costs, cost_of(simulator, each.placement))
    ratios = [cost / best for cost in costs]
    searched = simulator.evaluate(each.placement[None])
    search_fits = fits(problem, searched.peak_memory[0])
    return Judged(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        greedy=ratios[0],
        best_of_some=ratios[1],
        swept=ratios[2],
        as_long=ratios[3],
        swept_evaluations=swept.evaluations,
        search=tuple(ratios[4 : 4 + len(BUDGETS)]),
        search_from_policy=tuple(ratios[4 + len(BUDGETS) :]),
        until_as_good=first_as_good(alone[-1].curve, costs[0]),
        until_as_swept=first_as_good(alone[-1].curve, costs[2]),
        seconds=seconds,
        swept_seconds=swept_seconds,
        fits_where_search_fits=not search_fits or swept.fits(problem.cluster),
    )


def _placed(
    placer: Placer, each: Searched, simulator: Simulator, seed: int
) -> tuple[PlacementResult, float]:
    """Return what a placer finds, and in how many seconds of the process."""
    began = time.process_time()
    found = placer.place(each.problem, simulator, seed=seed)
    return found, time.process_time() - began


def row(judged: Judged) -> str:
    """Return the row of the table."""
    until = [
        f"{count:,}" if count else f"over {BUDGETS[-1]:,}"
        for count in (judged.until_as_good, judged.until_as_swept)
    ]
    cells = [
        judged.name,
        f"{judged.groups}",
        f"{judged.devices}",
        f"{judged.best_known:.4g}",
        *(f"{ratio:.3f}" for ratio in _ratios(judged)),
        *until,
        f"{judged.seconds:.2f}",
        f"{judged.swept_seconds:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def header() -> str:
    """Return the first two lines of the table."""
    return TextTable("", COLUMNS, ()).markdown()


def summary(judged: Sequence[Judged]) -> str:
    """Return what the whole table says, as lines."""
    ratios = np.array([_ratios(each) for each in judged])
    until = np.array([each.until_as_good or BUDGETS[-1] for each in judged])
    looked = np.array([each.swept_evaluations for each in judged])
    statistics = (
        ("median", np.median(ratios, axis=0)),
        ("geometric mean", np.exp(np.log(ratios).mean(axis=0))),
        ("within 5 % of the best known", (ratios <= 1.05).mean(axis=0)),
    )
    rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in statistics]
    lines = [TextTable("", ("", *COLUMNS[4:-4]), rows).markdown()]
    count = len(BUDGETS)
    alone, behind = ratios[:, 4 : 4 + count], ratios[:, 4 + count :]
    for index, budget in enumerate(BUDGETS):
        worse = float((alone[:, index] > behind[:, index]).mean())
        lines.append(f"\nWith {budget:,} evaluations, search alone is worse on {worse:.0%}.")
    fits = float(np.mean([each.fits_where_search_fits for each in judged]))
    lines += [
        f"\nSearch alone needs {np.median(until):,.0f} evaluations for the runtime of the greedy "
        f"pass (median), and at least 10 on {(until >= 10).mean():.0%}.",
        f"\nTo the end of the sweeps {np.median(looked):,.0f} placements are evaluated (median); a "
        f"search with as many is worse on {(ratios[:, 3] > ratios[:, 2]).mean():.0%}, and one with "
        f"{BUDGETS[-1]:,} never as good on "
        f"{np.mean([each.until_as_swept is None for each in judged]):.0%}.",
        f"\nOf the swept placements, {fits:.1%} fit where search finds one that does.",
        f"\nA greedy pass takes {_seconds([each.seconds for each in judged])}, all to the end of "
        f"the sweeps {_seconds([each.swept_seconds for each in judged])}.",
    ]
    return "\n".join(lines)


def _seconds(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} s (median, {max(values):.2f} s at most)"


def _ratios(judged: Judged) -> list[float]:
    return [
        judged.greedy,
        judged.best_of_some,
        judged.swept,
        judged.as_long,
        *judged.search,
        *judged.search_from_policy,
    ]
