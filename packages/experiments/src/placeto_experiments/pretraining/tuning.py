"""What it is worth to train the policy on for one graph, beside a search, as a table."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of
from placeto.placing.placers import SAMPLES_OF_PRETRAINED
from placeto.texts import TextTable
from placeto_baselines import MultilevelSearch
from placeto_experiments.pretraining.searched import Searched
from placeto_policy import PlacementPolicy, PlacetoPlacer, preset
from placeto_simulator import Simulator

BUDGETS = (2_000, 5_000, 10_000)  # evaluations


def header() -> str:
    """Return the first two lines of the table."""
    columns = [
        *("problem", f">best of {1 + SAMPLES_OF_PRETRAINED}"),
        *(f">trained on, {budget:,}" for budget in BUDGETS),
        *(f">search, {budget:,}" for budget in BUDGETS),
    ]
    return TextTable("", columns, ()).markdown()


def rows(policy: PlacementPolicy, problems: Iterable[Searched], seed: int = 0) -> Iterator[str]:
    """Yield a row for each problem: costs in parts of what the long search found.

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
        simulator = Simulator(each.problem, num_threads=1)
        known = cost_of(simulator, each.placement)
        placer = PlacetoPlacer(
            policy=policy,
            training_evaluations=BUDGETS[-1],
            samples=SAMPLES_OF_PRETRAINED,
            settings=preset("fine-tuning"),
        )
        curve = placer.place(each.problem, simulator, seed=seed).curve
        searches = [
            MultilevelSearch(evaluations=budget).place(each.problem, simulator, seed=seed)
            for budget in BUDGETS
        ]
        costs = [
            *(best_within(curve, budget) for budget in (1 + SAMPLES_OF_PRETRAINED, *BUDGETS)),
            *(cost_of(simulator, found.placement) for found in searches),
        ]
        yield f"| {each.name} | " + " | ".join(f"{cost / known:.3f}" for cost in costs) + " |"


def best_within(curve: NDArray[np.float64], evaluations: int) -> float:
    """Return the least cost of a curve float64[K, 2] after so many evaluations.

    Examples
    --------
    >>> best_within(np.array([[1.0, 9.0], [5.0, 7.0], [20.0, 3.0]]), 10)
    7.0
    """
    return float(curve[curve[:, 0] <= evaluations, 1].min())
