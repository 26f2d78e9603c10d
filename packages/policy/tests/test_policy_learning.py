"""What the policy must learn on problems whose best placement brute force knows."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from placeto_graphs import PlacementProblem
from placeto_policy import PlacementPolicy, PlacetoPlacer, Settings, Trainer
from scheduled_problems import (
    ListSchedule,
    optimum,
    penalised,
    train,
    two_by_turns,
    two_chains,
    two_speeds,
)

# With fewer steps of Adam for each update, each may be a longer one.
TINY = Settings(updates=30, hidden_units=64, minibatches=2, learning_rate_start=5e-3)
INTERMEDIATE = replace(
    TINY, reward="intermediate", updates=60, minibatches=1, learning_rate_end=5e-4
)


def greedy_cost(policy: PlacementPolicy, evaluator: ListSchedule) -> float:
    placement = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator).placement
    return float(penalised(evaluator, placement[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "settings", "seed"),
    [
        (two_chains, TINY, 0),
        (two_speeds, TINY, 2),
        (two_chains, INTERMEDIATE, 1),
        (two_speeds, INTERMEDIATE, 0),
        (two_by_turns, TINY, 0),
    ],
)
def test_the_greedy_pass_of_a_trained_policy_is_the_best_placement(
    problem: Callable[[], PlacementProblem], settings: Settings, seed: int
) -> None:
    evaluator = ListSchedule(problem())
    trainer = Trainer([evaluator], settings, seed=seed)
    train(trainer)
    assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))


@pytest.mark.slow
def test_one_policy_learns_two_graphs_and_places_longer_ones_unseen() -> None:
    evaluators = [ListSchedule(two_chains()), ListSchedule(two_speeds())]
    trainer = Trainer(evaluators, TINY, seed=0)
    train(trainer)
    unseen = [ListSchedule(two_chains(length=4)), ListSchedule(two_speeds(length=8))]
    for evaluator in (*evaluators, *unseen):
        assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))
