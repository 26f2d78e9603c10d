"""The gradient and the baseline of REINFORCE against what follows from its equation."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logit_policies import LogitPolicy, gradients_of_update, two_steps
from placeto_graphs import EvaluationBatch
from placeto_policy import PlacementPolicy, PolicyError, Settings, Trainer, preset
from placeto_policy.settings import AdvantageScaleName
from placeto_policy.trainer import TimeStepBaseline, discounted_returns
from scheduled_problems import ListSchedule, heavy_chain, problem_of, two_chains

# One step of Adam for each update, on the advantages as they are.
PLAIN = preset("paper")


@pytest.mark.parametrize("advantage_scale", ["none", "spread"])
@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_the_gradient_on_a_two_step_problem_is_the_analytic_one(
    monkeypatch: pytest.MonkeyPatch,
    discount: float,
    entropy_weight: float,
    advantage_scale: AdvantageScaleName,
) -> None:
    settings = replace(
        PLAIN,
        workers=5,
        discount=discount,
        advantage_scale=advantage_scale,
        entropy_weight_start=entropy_weight,
        entropy_weight_end=entropy_weight,
    )
    policy = LogitPolicy([0.3], settings)
    trainer = Trainer([two_steps()], settings, policy=policy, seed=4)
    (gradient,) = gradients_of_update(monkeypatch, trainer)

    # The draws of the trainer, replayed: an action is 1 where its draw exceeds the odds of 0.
    second = 1 / (1 + np.exp(-0.3))
    draws = np.stack([np.random.default_rng((4, worker, 0)).random(2) for worker in range(5)])
    actions = (draws >= 1 - second).astype(float)
    assert 0 < actions.mean() < 1
    rewards = actions * [3.0, 2.0]
    advantages = np.stack([rewards[:, 0] + discount * rewards[:, 1], rewards[:, 1]], axis=1)
    advantages -= advantages.mean(axis=0)  # no round came before: the baseline is this one's mean
    if advantage_scale == "spread":
        advantages /= np.abs(advantages).mean()
    score = actions - second  # d log p(a) / d logit
    entropy_slope = -second * (1 - second) * 0.3  # dH / d logit = -p (1 - p) logit
    expected = (advantages * score).sum() + entropy_weight * 10 * entropy_slope
    assert gradient.item() == pytest.approx(expected, rel=1e-4)


def test_advantages_are_parts_of_their_mean_size_and_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker of 99 gains nine seconds, the others nothing: its advantage is 4, not 49.5.

    Each of the 98 others is behind the mean of all by 9 / 99 s, a 98th of what that one is ahead.
    """
    settings = replace(
        PLAIN, workers=99, advantage_scale="spread", entropy_weight_start=0.0, discount=1e-9
    )
    alone = problem_of(nx.path_graph(1, create_using=nx.DiGraph), seconds=10.0)

    class Gain(ListSchedule):
        def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
            runtime = np.where(placements[:, 0] == 1, 1.0, 10.0)
            return EvaluationBatch(
                runtime=runtime, peak_memory=np.zeros((len(placements), 2), np.int64)
            )

    trainer = Trainer([Gain(alone)], settings, policy=LogitPolicy([0.0], settings))
    draws = [np.random.default_rng((0, worker, 0)).random() for worker in range(99)]
    rarest = 1 - (np.sort(draws)[-1] + np.sort(draws)[-2]) / 2
    logit = float(np.log(rarest / (1 - rarest)))
    trainer.policy.load_state_dict({"logits": torch.tensor([logit])})
    (gradient,) = gradients_of_update(monkeypatch, trainer)
    expected = 4 * (1 - rarest) + 98 * (49.5 / 98) * rarest
    assert gradient.item() == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_baseline_is_the_mean_of_the_last_rounds(rounds: list[list[float]]) -> None:
    baseline = TimeStepBaseline(num_steps=3, window=4)
    for returns in rounds:
        baseline.add(np.array([returns, returns]))
    expected = baseline.expected(np.full((1, 3), 99.0))
    np.testing.assert_allclose(expected, np.mean(rounds[-4:], axis=0), atol=1e-12)


def test_nothing_is_expected_of_counterfactual_rewards() -> None:
    baselines = [
        Trainer([two_steps()], settings, policy=LogitPolicy([0.0], settings)).baselines[0]
        for settings in (Settings(hidden_units=2), PLAIN)
    ]
    returns = np.array([[1.0, -3.0]])
    expected = [baseline.expected(returns).tolist() for baseline in baselines]
    assert expected == [[0.0, 0.0], [1.0, -3.0]]
    baselines[0].add(returns)
    assert baselines[0].expected(returns).tolist() == [0.0, 0.0]
    assert baselines[0].spread() == 2.0


def test_workers_take_one_graph_after_the_other() -> None:
    evaluators = [ListSchedule(problem_of(nx.path_graph(size, nx.DiGraph))) for size in (4, 2, 3)]
    settings = replace(PLAIN, workers=2, hidden_units=2, updates=3)
    trainer = Trainer(evaluators, settings)
    for expected in ([0, 1], [0, 2], [1, 2]):
        runs = trainer._run_own_workers()
        assert sorted(run.graph for run in runs) == expected
        trainer.updates += 1


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
    settings = Settings(max_gradient_norm=1e-3, minibatches=1, epochs=1)
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
        trainer.policy.get_parameter("scores.output.weight")[0, 0] = float("nan")
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
