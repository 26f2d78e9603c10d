from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PolicyError,
    Trainer,
    preset,
)
from random_states import random_problem
from scheduled_problems import QUICK, ListSchedule, heavy_chain, train, two_chains

# So fast that the policy gets worse again and again.
UNSTEADY = replace(QUICK, updates=12, workers=2, learning_rate_start=0.05, learning_rate_end=0.05)
Weights = dict[str, torch.Tensor]


def evaluators(count: int) -> list[ListSchedule]:
    return [ListSchedule(problem) for problem in (two_chains(), heavy_chain(), two_chains(5))][
        :count
    ]


def weights_of(policy: PlacementPolicy) -> Weights:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def assert_same(policy: PlacementPolicy, weights: Weights) -> None:
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def greedy_cost(policy: PlacementPolicy, on: list[ListSchedule]) -> float:
    """What the policy's greedy placements cost, in parts of the work, as a placer finds them."""
    costs = []
    for evaluator in on:
        environment = PlacementEnvironment.for_policy(evaluator, policy.settings)
        environment.reset(num_episodes=1)
        while not environment.is_over:
            environment.step(policy(environment.states()).argmax(dim=1).numpy())
        costs.append(environment.costs[0] / evaluator.problem.compute_time.max(axis=1).sum())
    return float(np.mean(costs))


@pytest.mark.parametrize(("num_graphs", "others", "seed"), [(1, False, 4), (3, True, 0)])
def test_a_training_leaves_the_policy_whose_greedy_placements_are_best(
    num_graphs: int, others: bool, seed: int
) -> None:
    settings = replace(
        UNSTEADY,
        updates=33,
        device_features="loads",
        learning_rate_start=0.01,
        learning_rate_end=0.01,
    )
    drawn = [ListSchedule(random_problem(9, 2, np.random.default_rng(n))) for n in range(5)]
    graphs, on = drawn[:num_graphs], drawn[3:] if others else []
    trainer = Trainer(graphs, settings, seed=seed, validation=on)
    validated = []
    for update in range(1, settings.updates + 1):
        trainer.update()
        if update in (10, 20, 30, 33):
            validated.append(weights_of(trainer.policy))
        if not validated:
            assert_same(trainer.trained_policy, weights_of(trainer.policy))
    costs = []
    for weights in validated:
        policy = PlacementPolicy(2, settings)
        policy.load_state_dict(weights)
        costs.append(greedy_cost(policy, on or graphs))
    best = int(np.argmin(costs))
    assert best < len(costs) - 1
    assert costs[best] < min(costs[:best] + costs[best + 1 :])
    assert trainer.best_policy.cost == pytest.approx(costs[best])
    assert_same(trainer.trained_policy, validated[best])


def test_graphs_to_choose_by_have_as_many_devices() -> None:
    three = ListSchedule(random_problem(5, 3, np.random.default_rng(0)))
    with pytest.raises(
        PolicyError, match=r"validation\[1\]: expected a problem of 2 devices, got 3"
    ):
        Trainer(evaluators(1), UNSTEADY, validation=[*evaluators(1), three])


def test_the_best_placements_are_none_of_the_graphs_to_choose_by() -> None:
    longer = ListSchedule(heavy_chain())
    shorter = ListSchedule(two_chains())
    trainer = Trainer([longer], replace(UNSTEADY, updates=1), validation=[shorter])
    trainer.update()
    (best,) = trainer.best
    assert best is not None
    assert trainer.best_policy.weights
    assert longer.evaluate(best.placement[None]).runtime[0] == best.cost


def test_the_last_policy_can_be_had_instead() -> None:
    trainer = Trainer(evaluators(1), replace(UNSTEADY, selection="last"), seed=4)
    train(trainer)
    assert_same(trainer.trained_policy, weights_of(trainer.policy))
    assert preset("paper").selection == "last"
