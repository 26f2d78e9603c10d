import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from placeto_policy import PlacementPolicy
from placeto_policy import Settings
from placeto_policy import Trainer
from placeto_policy import load_policy
from placeto_policy import preset
from placeto_policy import resume_training
from placeto_policy import save_training
from placeto_policy import train
from scheduled_problems import ListSchedule
from scheduled_problems import heavy_chain
from scheduled_problems import two_chains

# So fast that the policy gets worse again and again.
UNSTEADY = Settings(updates=12, workers=2, learning_rate_start=0.05, learning_rate_end=0.05)
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


@pytest.mark.parametrize("num_graphs", [1, 2, 3])
def test_a_training_leaves_the_policy_that_placed_its_graphs_best(num_graphs: int) -> None:
    # One worker meets one graph in each update, whose mean runtime is then that of the update.
    settings = replace(UNSTEADY, workers=2 if num_graphs == 1 else 1)
    trainer = Trainer(evaluators(num_graphs), settings, seed=4)
    work = [
        evaluator.problem.compute_time.max(axis=1).sum() for evaluator in evaluators(num_graphs)
    ]
    costs, before = [], []
    for update in range(settings.updates):
        before.append(weights_of(trainer.policy))
        costs.append(trainer.update().runtime / work[update % num_graphs])
        if update + 1 < num_graphs:
            assert trainer.best_policy.cost == math.inf
            assert_same(trainer.trained_policy, weights_of(trainer.policy))
    means = [
        np.mean(costs[update + 1 - num_graphs : update + 1]) if update + 1 >= num_graphs else np.inf
        for update in range(settings.updates)
    ]
    best = int(np.argmin(means))
    assert best < settings.updates - 1
    assert trainer.best_policy.cost == pytest.approx(means[best])
    assert_same(trainer.trained_policy, before[best])


def test_the_last_policy_can_be_had_instead() -> None:
    trainer = Trainer(evaluators(1), replace(UNSTEADY, selection="last"), seed=4)
    train(trainer)
    assert_same(trainer.trained_policy, weights_of(trainer.policy))
    assert preset("paper").selection == "last"


def test_what_a_training_leaves_may_be_changed_without_changing_it() -> None:
    for settings in (UNSTEADY, replace(UNSTEADY, selection="last")):
        trainer = Trainer(evaluators(1), settings)
        trainer.update()
        expected = weights_of(trainer.trained_policy)
        with torch.no_grad():
            trainer.trained_policy.get_parameter("scores.output.weight").zero_()
        assert_same(trainer.trained_policy, expected)


@pytest.mark.parametrize("stop_after", [1, 2, 9])
def test_a_resumed_training_leaves_the_same_policy(tmp_path: Path, stop_after: int) -> None:
    path = tmp_path / "training.safetensors"
    uninterrupted = Trainer(evaluators(3), UNSTEADY, seed=4)
    train(uninterrupted)
    interrupted = Trainer(evaluators(3), UNSTEADY, seed=4)
    for _ in range(stop_after):
        interrupted.update()
    save_training(interrupted, path)
    again = resume_training(path, evaluators(3))
    np.testing.assert_array_equal(again.best_policy.latest, interrupted.best_policy.latest)
    assert_same(again.trained_policy, weights_of(interrupted.trained_policy))
    assert_same(load_policy(path), weights_of(interrupted.trained_policy))
    train(again, checkpoint=path)
    assert again.best_policy.cost == uninterrupted.best_policy.cost
    assert_same(load_policy(path), weights_of(uninterrupted.trained_policy))


def test_a_file_has_the_last_policy_where_that_is_what_the_training_leaves(tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    trainer = Trainer(evaluators(1), replace(UNSTEADY, selection="last"), seed=4)
    train(trainer, checkpoint=path)
    assert_same(load_policy(path), weights_of(trainer.policy))
