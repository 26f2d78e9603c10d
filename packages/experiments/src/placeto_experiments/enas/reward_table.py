"""What the controller's architectures are rewarded with, over evenly drawn ones."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from placeto_experiments.enas.checkpoint import train
from placeto_experiments.enas.search import Search
from placeto_experiments.enas.settings import Settings
from placeto_experiments.enas.tasks import Task

NUM_ARCHITECTURES = 50
NUM_BATCHES = 4


@dataclass(frozen=True)
class RewardRow:
    """Mean rewards of one seed.

    Attributes
    ----------
    seed
        Of the two trainings.
    first_round, last_round
        Of the controller's architectures while it was trained, by the weights of that round.
    controller
        Of its architectures after the training.
    even_same_weights
        Of evenly drawn architectures, by the same weights and the same batches.
    even_own_weights
        Of the same evenly drawn ones, by weights that were trained with evenly drawn ones alone.

    Examples
    --------
    >>> RewardRow(0, 0.1, 0.3, 0.3, 0.2, 0.25).gain
    0.05
    """

    seed: int
    first_round: float
    last_round: float
    controller: float
    even_same_weights: float
    even_own_weights: float

    @property
    def gain(self) -> float:
        """How much more the controller gets than even draws at their better."""
        better = max(self.even_same_weights, self.even_own_weights)
        return round(self.controller - better, 12)


def reward_row(
    make_task: Callable[[int], Task],
    settings: Settings,
    seed: int,
    folder: str | os.PathLike[str],
    report: Callable[[Search, float], None] | None = None,
) -> RewardRow:
    """Train once with the controller and once with even draws, and judge both.

    Parameters
    ----------
    make_task
        From a seed to a task with new weights.
    settings
        Of both trainings.
    seed
        Of tasks and trainings.
    folder
        Where both are kept, so that they go on when they were cut.
    report
        As for `train`.
    """
    place = Path(folder)
    controlled = train(
        make_task(seed), settings, place / f"controller-{seed}", seed=seed, report=report
    )
    even = train(
        make_task(seed),
        replace(settings, uniform=True),
        place / f"even-{seed}",
        seed=seed,
        report=report,
    )
    space, generator = controlled.task.space, np.random.default_rng(seed)
    chosen = [
        space.architecture(row.tolist()) for row in controlled.sample(NUM_ARCHITECTURES, generator)
    ]
    drawn = [space.uniform(generator) for _ in range(NUM_ARCHITECTURES)]
    means = controlled.trajectory.round_means()
    return RewardRow(
        seed,
        means[0],
        means[-1],
        float(controlled.judged(chosen, NUM_BATCHES).mean()),
        float(controlled.judged(drawn, NUM_BATCHES).mean()),
        float(even.judged(drawn, NUM_BATCHES).mean()),
    )


def reward_table(rows: Sequence[RewardRow]) -> str:
    """Return the rows as a table in Markdown, with their means.

    Examples
    --------
    >>> print(reward_table([RewardRow(0, 0.1, 0.3, 0.3, 0.2, 0.25)]).splitlines()[-1])
    | mean | 0.100 | 0.300 | 0.300 | 0.200 | 0.250 | +0.050 |
    """
    lines = [
        "| seed | first round | last round | controller | even, same weights "
        "| even, own weights | gain |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]

    def line(name: str, values: Sequence[float], gain: str) -> str:
        return f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} | {gain} |"

    values = [
        (
            row.first_round,
            row.last_round,
            row.controller,
            row.even_same_weights,
            row.even_own_weights,
        )
        for row in rows
    ]
    for row, numbers in zip(rows, values, strict=True):
        lines.append(line(str(row.seed), numbers, f"{row.gain:+.3f}"))
    gains = [row.gain for row in rows]
    spread = f" ± {stdev(gains):.3f}" if len(gains) > 1 else ""
    means = [fmean(column) for column in zip(*values, strict=True)]
    lines.append(line("mean", means, f"{fmean(gains):+.3f}{spread}"))
    return "\n".join(lines)
