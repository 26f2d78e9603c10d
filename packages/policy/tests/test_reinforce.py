"""The gradient and the baseline of REINFORCE against what follows from its equation."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from placeto_graphs import EvaluationBatch
from placeto_policy import PlacementPolicy
from placeto_policy import PolicyError
from placeto_policy import Settings
from placeto_policy import States
from placeto_policy import Trainer
from placeto_policy.baseline import TimeStepBaseline
from placeto_policy.reports import discounted_returns
from scheduled_problems import ListSchedule
from scheduled_problems import heavy_chain
from scheduled_problems import problem_of
from scheduled_problems import two_chains


class ConstantPolicy(PlacementPolicy):
    """Has one parameter: the logit of the second of two devices, whatever the state."""

    def __init__(self, logit: float, settings: Settings) -> None:
        super().__init__(2, settings)
        del self.embedding, self.hidden, self.output
        self.logit = nn.Parameter(torch.tensor([logit]))

    def forward(self, states: Any) -> torch.Tensor:
        assert isinstance(states, States)
        logits = torch.cat([torch.zeros(1), self.logit]).expand(len(states), 2)
        return torch.log_softmax(logits, dim=1)


class CountSeconds(ListSchedule):
    """The runtime is 8 seconds less 3 and 2 for the two groups, where they are on device 1."""

    def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
        runtime = 8.0 - placements @ np.array([3.0, 2.0])
        return EvaluationBatch(
            runtime=runtime, peak_memory=np.zeros((len(placements), 2), np.int64)
        )


def two_steps() -> CountSeconds:
    return CountSeconds(problem_of(nx.DiGraph([("a", "b")])))


def gradient_of_first_update(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> float:
    """Return d(gain)/d(logit) as it stands before clipping and Adam."""
    caught = []

    def catch(flat: torch.Tensor) -> None:
        caught.append(flat.clone())

    monkeypatch.setattr(trainer.processes, "sum", catch)
    trainer.update()
    return -float(caught[-1][0])


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_the_gradient_on_a_two_step_problem_is_the_analytic_one(
    monkeypatch: pytest.MonkeyPatch, discount: float, entropy_weight: float
) -> None:
    settings = Settings(
        workers=5,
        discount=discount,
        entropy_weight_start=entropy_weight,
        entropy_weight_end=entropy_weight,
    )
    policy = ConstantPolicy(0.3, settings)
    trainer = Trainer([two_steps()], settings, policy=policy, seed=4)
    gradient = gradient_of_first_update(monkeypatch, trainer)

    # The draws of the trainer, replayed: an action is 1 where its draw exceeds the odds of 0.
    second = 1 / (1 + np.exp(-0.3))
    draws = np.stack([np.random.default_rng((4, worker, 0)).random(2) for worker in range(5)])
    actions = (draws >= 1 - second).astype(float)
    assert 0 < actions.mean() < 1
    rewards = actions * [3.0, 2.0]
    returns = np.stack([rewards[:, 0] + discount * rewards[:, 1], rewards[:, 1]], axis=1)
    advantages = returns / np.sqrt(np.mean(returns**2))  # no round came before: the baseline is 0
    score = actions - second  # d log p(a) / d logit
    entropy_slope = -second * (1 - second) * 0.3  # dH / d logit = -p (1 - p) logit
    expected = (advantages * score).sum() + entropy_weight * 10 * entropy_slope
    assert gradient == pytest.approx(expected, rel=1e-4)


def test_the_mean_gradient_leads_to_the_better_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """E[sum of score x return] = p (1 - p) (3 + 2), whatever the baseline."""
    settings = Settings(workers=4000, entropy_weight_start=0.0, entropy_weight_end=0.0)
    trainer = Trainer([two_steps()], settings, policy=ConstantPolicy(0.3, settings))
    gradient = gradient_of_first_update(monkeypatch, trainer)
    second = 1 / (1 + np.exp(-0.3))
    per_episode = gradient * trainer.baselines[0].scale() / 4000
    assert per_episode == pytest.approx(second * (1 - second) * 5.0, abs=0.15)


def test_the_baseline_is_computed_before_the_new_round_enters_it() -> None:
    settings = Settings(workers=3, baseline_window=2)
    trainer = Trainer([two_steps()], settings, policy=ConstantPolicy(0.0, settings))
    seen = []
    add = trainer.baselines[0].add

    def watch(returns: np.ndarray) -> None:
        seen.append((trainer.baselines[0].expected(), returns.copy()))
        add(returns)

    trainer.baselines[0].add = watch  # type: ignore[method-assign]
    for _ in range(5):
        trainer.update()
    rounds = [returns.mean(axis=0) for _, returns in seen]
    assert seen[0][0].tolist() == [0.0, 0.0]
    for index in range(1, 5):
        window = rounds[max(0, index - 2) : index]
        np.testing.assert_allclose(seen[index][0], np.mean(window, axis=0))


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_baseline_is_the_mean_of_the_last_rounds(rounds: list[list[float]]) -> None:
    baseline = TimeStepBaseline(num_steps=3, window=4)
    for returns in rounds:
        baseline.add(np.array([returns, returns]))
    np.testing.assert_allclose(baseline.expected(), np.mean(rounds[-4:], axis=0), atol=1e-12)


def test_returns_are_discounted() -> None:
    rewards = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 8.0]])
    assert discounted_returns(rewards, 1.0).tolist() == [[7, 6, 4], [8, 8, 8]]
    assert discounted_returns(rewards, 0.5).tolist() == [[3, 4, 4], [2, 4, 8]]


def test_learning_rate_and_entropy_weight_decay_linearly() -> None:
    settings = Settings(updates=5, learning_rate_start=1e-2, learning_rate_end=2e-3)
    trainer = Trainer([ListSchedule(two_chains())], settings)
    rates = [trainer.update().learning_rate for _ in range(6)]
    np.testing.assert_allclose(rates, [1e-2, 8e-3, 6e-3, 4e-3, 2e-3, 2e-3])


def test_the_gradient_is_clipped() -> None:
    """Adam cancels a constant factor, so that the clipped gradient is looked at in its averages."""
    settings = Settings(max_gradient_norm=1e-3)
    trainer = Trainer([ListSchedule(two_chains())], settings)
    summary = trainer.update()
    assert summary.gradient_norm > 1e-3
    averages = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    norm = float(torch.cat([average.flatten() for average in averages]).norm())
    assert norm == pytest.approx(0.1 * 1e-3, rel=1e-3)  # 1 - beta_1 of Adam


def test_rewards_in_another_unit_of_time_give_the_same_training() -> None:
    trainers = []
    for unit in (1.0, 1e-3):
        problem = problem_of(nx.DiGraph([("a", "b"), ("a", "c")]), seconds=unit)
        trainers.append(Trainer([ListSchedule(problem)], Settings(), seed=2))
        for _ in range(3):
            trainers[-1].update()
    for left, right in zip(*(trainer.policy.parameters() for trainer in trainers), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)


def test_a_gradient_that_is_not_finite_leaves_the_policy_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer([ListSchedule(heavy_chain())])
    trainer.update()
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    monkeypatch.setattr(trainer.processes, "sum", lambda flat: flat.fill_(float("nan")))
    with pytest.raises(PolicyError, match="gradient: expected finite numbers at update 2, got"):
        trainer.update()
    for name, tensor in trainer.policy.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_policy_with_nan_ends_the_training() -> None:
    trainer = Trainer([ListSchedule(heavy_chain())])
    with torch.no_grad():
        trainer.policy.output.weight[0, 0] = float("nan")
    with pytest.raises(PolicyError, match="policy: expected finite probabilities"):
        trainer.update()


def test_trainers_that_cannot_be() -> None:
    with pytest.raises(PolicyError, match="evaluators: expected at least one, got none"):
        Trainer([])
    four = ListSchedule(problem_of(nx.DiGraph([("a", "b")]), num_devices=4))
    with pytest.raises(PolicyError, match=r"evaluators\[1\]: expected a problem of 2 devices"):
        Trainer([two_steps(), four])
    with pytest.raises(PolicyError, match=r"evaluators\[0\]: expected a problem of 2 devices"):
        Trainer([four], policy=PlacementPolicy(2))
