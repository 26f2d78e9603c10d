"""The table of rewards: the controller against uniform sampling, over seeds."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from placeto.texts import TextTable
from placeto_experiments.enas.checkpoint import train
from placeto_experiments.enas.search import Search, Settings
from placeto_experiments.enas.tasks import Task

NUM_ARCHITECTURES = 50
NUM_BATCHES = 4
REWARDS = (
    *("first round", "last round", "controller", "uniform, same weights", "uniform, own weights"),
)


class RewardRow(NamedTuple):
    """Mean rewards of one seed: of architectures of the controller, and of uniform ones.

    The first two are those of its training, the others those after it. The last one is by weights
    that were trained with uniform architectures alone.
    """

    seed: int
    first_round: float
    last_round: float
    controller: float
    uniform_same_weights: float
    uniform_own_weights: float

    @property
    def gain(self) -> float:
        """The controller's reward above the better one of uniform sampling."""
        better = max(self.uniform_same_weights, self.uniform_own_weights)
        return round(self.controller - better, 12)


def reward_row(
    make_task: Callable[[int], Task],
    settings: Settings,
    seed: int,
    folder: str | os.PathLike[str],
    report: Callable[[Search, float], None],
) -> RewardRow:
    """Train once with the controller and once with uniform sampling, and evaluate both."""

    def trained(name: str, settings: Settings) -> Search:
        own = Path(folder) / f"{name}-{seed}"
        return train(make_task(seed), settings, own, seed=seed, report=report)

    controlled = trained("controller", settings)
    uniform = trained("uniform", replace(settings, uniform=True))
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
        float(controlled.evaluate(chosen, NUM_BATCHES).mean()),
        float(controlled.evaluate(drawn, NUM_BATCHES).mean()),
        float(uniform.evaluate(drawn, NUM_BATCHES).mean()),
    )


def reward_table(rows: Sequence[RewardRow]) -> str:
    """Return the rows and their means as a table in Markdown."""
    columns = ["seed", *(f">{name}" for name in REWARDS), ">gain"]
    gains = [row.gain for row in rows]
    deviation = f" ± {stdev(gains):.3f}" if len(gains) > 1 else ""
    means = [fmean(column) for column in zip(*(row[1:] for row in rows), strict=True)]
    lines = [[str(row.seed), *map(_reward, row[1:]), f"{row.gain:+.3f}"] for row in rows]
    lines.append(["mean", *map(_reward, means), f"{fmean(gains):+.3f}{deviation}"])
    return TextTable("", columns, lines).markdown()


def _reward(reward: float) -> str:
    return f"{reward:.3f}"
