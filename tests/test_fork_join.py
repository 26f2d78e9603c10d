"""A policy that was trained on a few fork-join graphs places others well, which it never saw."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from fork_join_graphs import fork_join_problem
from placeto_baselines import LocalSearch, SingleDevice
from placeto_graphs import Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer, Settings, Trainer
from placeto_simulator import Simulator

SMALL = Settings(
    updates=25,
    message_rounds=4,
    hidden_units=64,
    minibatches=2,
    epochs=1,
    learning_rate_start=1e-2,
    learning_rate_end=1e-3,
)


@cache
def training_graphs() -> list[Simulator]:
    return [Simulator(fork_join_problem(number), num_threads=1) for number in range(4)]


@cache
def unseen_graphs() -> list[Simulator]:
    return [Simulator(fork_join_problem(1000 + number), num_threads=1) for number in range(8)]


def runtimes(placer: Placer) -> NDArray[np.float64]:
    """Return float64[8], what placements of the unseen graphs take."""
    graphs = unseen_graphs()
    return np.array([placer.place(graph.problem, graph).runtime for graph in graphs])


def trained(seed: int) -> PlacementPolicy:
    trainer = Trainer(training_graphs(), SMALL, seed=seed)
    for _ in range(trainer.settings.updates):
        trainer.update()
    return trainer.trained_policy


def random_runtimes() -> NDArray[np.float64]:
    """Return float64[8], what random placements of the unseen graphs take on average."""
    generator = np.random.default_rng(0)
    return np.array(
        [
            graph.runtimes(
                generator.integers(0, 2, (100, graph.problem.num_groups), np.int32)
            ).mean()
            for graph in unseen_graphs()
        ]
    )


@pytest.mark.slow
def test_zero_shot_beats_random_and_a_single_device() -> None:
    known = [graph.problem for graph in training_graphs()]
    assert all(graph.problem not in known for graph in unseen_graphs())
    zero_shot = runtimes(PlacetoPlacer(policy=trained(seed=0)))
    assert (zero_shot < runtimes(SingleDevice())).all()
    assert (zero_shot < random_runtimes()).all()
    # And it has learned more than that: half of what lies between random and a good search.
    good = runtimes(LocalSearch(1000)).mean()
    assert zero_shot.mean() < (random_runtimes().mean() + good) / 2


def test_a_policy_that_was_not_trained_does_not_beat_them() -> None:
    untrained = PlacetoPlacer(policy=PlacementPolicy(2, SMALL))
    assert runtimes(untrained).mean() > random_runtimes().mean()
