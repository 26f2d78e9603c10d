"""Tables of a policy on problems: zero-shot and with a search, and after training on each."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of, first_as_good, fits
from placeto.placing.placers import SAMPLES_OF_PRETRAINED, pretrained, start_of_search
from placeto.texts import TextTable
from placeto_baselines import MultilevelSearch
from placeto_experiments.pretraining.searched import Searched
from placeto_graphs import PlacementResult, Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer, preset
from placeto_simulator import Simulator

BUDGETS = (100, 500, 2000)  # evaluations
TRAINING_BUDGETS = (2_000, 5_000, 10_000)  # evaluations
COLUMNS = (
    "problem",
    ">groups",
    ">devices",
    ">best known, s",
    ">greedy",
    f">best of {1 + SAMPLES_OF_PRETRAINED}",
    ">and two rounds",
    ">search as long",
    *(f">search {budget:,}" for budget in BUDGETS),
    *(f">policy, search {budget:,}" for budget in BUDGETS),
    ">search until as good as greedy",
    ">until as good as refined",
    ">greedy, s",
    ">refined, s",
)


@dataclass(frozen=True)
class Evaluation:
    """What was found for one problem of G groups on D devices.

    Costs are ratios to the best known one. The greedy placement is the policy's most probable one;
    the refined one comes of two rounds of coordinate descent from the best of some rollouts, and
    ``as_long`` of a search with as many evaluations. Searches of `BUDGETS` begin from nothing or
    from the policy; the longest one took ``until_as_good`` evaluations to be as good as the greedy
    placement, None if it never was. Seconds are CPU time, with what is computed once for a problem.
    """

    name: str
    groups: int
    devices: int
    best_known: float  # seconds: the least of the long search and of all searches here
    greedy: float
    best_of_some: float
    refined: float
    as_long: float
    refined_evaluations: int
    search: tuple[float, ...]
    search_from_policy: tuple[float, ...]
    until_as_good: int | None
    until_as_refined: int | None
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
    greedy, seconds = _placed(PlacetoPlacer(policy=policy), each, simulator, seed)
    some, _ = _placed(start_of_search(policy), each, simulator, seed)
    refined, refined_seconds = _placed(pretrained(problem, policy), each, simulator, seed)
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
    ratios = [cost / best for cost in costs]
    searched = simulator.evaluate(each.placement[None])
    search_fits = fits(problem, searched.peak_memory[0])
    return Evaluation(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        greedy=ratios[0],
        best_of_some=ratios[1],
        refined=ratios[2],
        as_long=ratios[3],
        refined_evaluations=refined.evaluations,
        search=tuple(ratios[4 : 4 + len(BUDGETS)]),
        search_from_policy=tuple(ratios[4 + len(BUDGETS) :]),
        until_as_good=first_as_good(alone[-1].curve, costs[0]),
        until_as_refined=first_as_good(alone[-1].curve, costs[2]),
        seconds=seconds,
        refined_seconds=refined_seconds,
        fits_where_search_fits=not search_fits or refined.fits(problem.cluster),
    )


def _placed(
    placer: Placer, each: Searched, simulator: Simulator, seed: int
) -> tuple[PlacementResult, float]:
    """Return what a placer finds, and in how many seconds of the process."""
    began = time.process_time()
    found = placer.place(each.problem, simulator, seed=seed)
    return found, time.process_time() - began


def row(each: Evaluation) -> str:
    """Return the row of the table."""
    cells = [
        each.name,
        f"{each.groups}",
        f"{each.devices}",
        f"{each.best_known:.4g}",
        *(f"{ratio:.3f}" for ratio in _ratios(each)),
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
    ratios = np.array([_ratios(each) for each in evaluations])
    until = np.array([each.until_as_good or np.inf for each in evaluations])  # infinity: never
    looked = np.array([each.refined_evaluations for each in evaluations])
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
    fits = float(np.mean([each.fits_where_search_fits for each in evaluations]))
    needed = _until(float(np.median(until)))
    lines += [
        f"\nSearch alone needs {needed} evaluations for the runtime of the greedy rollout "
        f"(median), and at least 10 on {(until >= 10).mean():.0%}.",
        f"\nTo the end of the rounds {np.median(looked):,.0f} placements are evaluated (median); a "
        f"search with as many is worse on {(ratios[:, 3] > ratios[:, 2]).mean():.0%}, and one with "
        f"{BUDGETS[-1]:,} never as good on "
        f"{np.mean([each.until_as_refined is None for each in evaluations]):.0%}.",
        f"\nOf the refined placements, {fits:.1%} fit where search finds one that does.",
        f"\nA greedy rollout takes {_seconds([each.seconds for each in evaluations])}, all to the "
        f"end of the rounds {_seconds([each.refined_seconds for each in evaluations])}.",
    ]
    return "\n".join(lines)


def _until(evaluations: float | None) -> str:
    """Return how many a search needed, as text; None and infinity are never."""
    if evaluations is None or np.isinf(evaluations):
        return f"over {BUDGETS[-1]:,}"
    return f"{evaluations:,.0f}"


def _seconds(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} s (median, {max(values):.2f} s at most)"


def _ratios(each: Evaluation) -> list[float]:
    return [
        each.greedy,
        each.best_of_some,
        each.refined,
        each.as_long,
        *each.search,
        *each.search_from_policy,
    ]


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
        searches = [
            MultilevelSearch(evaluations=budget).place(each.problem, simulator, seed=seed)
            for budget in TRAINING_BUDGETS
        ]
        costs = [
            *(
                best_within(curve, budget)
                for budget in (1 + SAMPLES_OF_PRETRAINED, *TRAINING_BUDGETS)
            ),
            *(cost_of(simulator, found.placement) for found in searches),
        ]
        yield f"| {each.name} | " + " | ".join(f"{cost / known:.3f}" for cost in costs) + " |"


def best_within(curve: NDArray[np.float64], evaluations: int) -> float:
    """Return the least cost of a curve float64[K, 2] within so many evaluations.

    Examples
    --------
    >>> best_within(np.array([[1.0, 9.0], [5.0, 7.0], [20.0, 3.0]]), 10)
    7.0
    """
    return float(curve[curve[:, 0] <= evaluations, 1].min())
