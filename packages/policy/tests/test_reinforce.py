"""The gradient and the baseline of REINFORCE against what follows from its equation."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from logit_policies import LogitPolicy, gradients_of_update, two_steps
from placeto_graphs import EvaluationBatch, memory_penalised_runtime
from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PolicyError,
    Settings,
    States,
    Trainer,
    preset,
)
from placeto_policy import episodes as episodes_module
from placeto_policy.environment import Best
from placeto_policy.episodes import Counterfactuals, Episodes, run_episodes
from placeto_policy.settings import AdvantageScaleName, EntropyControlName, RewardName
from placeto_policy.trainer import (
    BestPolicy,
    TimeStepBaseline,
    WorkerReport,
    add_gradient,
    uniformity,
)
from placeto_policy.workers import Processes
from random_states import random_problem
from scheduled_problems import (
    QUICK,
    ListSchedule,
    heavy_chain,
    partly_possible,
    penalised,
    problem_of,
    too_large_for_one,
    two_chains,
)

# One step of Adam for each update, on the advantages as they are.
PLAIN = preset("paper")


def test_advantages_are_parts_of_their_mean_size_and_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker of 99 gains nine seconds, the others nothing: its advantage is 4, not 49.5.

    Each of the 98 others is behind the mean of all by 9 / 99 s, a 98th of what that one is ahead.
    """
    settings = replace(
        PLAIN, workers=99, advantage_scale="spread", entropy_weight_start=0.0, discount=1e-9
    )
    problem = problem_of(nx.path_graph(1, create_using=nx.DiGraph), seconds=10.0)

    class Gain(ListSchedule):
        def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
            runtime = np.where(placements[:, 0] == 1, 1.0, 10.0)
            return EvaluationBatch(
                runtime=runtime, peak_memory=np.zeros((len(placements), 2), np.int64)
            )

    trainer = Trainer([Gain(problem)], settings, policy=LogitPolicy([0.0], settings))
    draws = [np.random.default_rng((0, worker, 0)).random() for worker in range(99)]
    rarest = 1 - (np.sort(draws)[-1] + np.sort(draws)[-2]) / 2
    logit = float(np.log(rarest / (1 - rarest)))
    trainer.policy.load_state_dict({"logits": torch.tensor([logit])})
    (gradient,) = gradients_of_update(monkeypatch, trainer)
    expected = 4 * (1 - rarest) + 98 * (49.5 / 98) * rarest
    assert gradient.item() == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_baseline_and_the_spread_are_means_over_the_last_rounds(
    rounds: list[list[float]],
) -> None:
    baseline = TimeStepBaseline(num_steps=3, window=4)
    spreads = []
    for index, returns in enumerate(rounds):
        expected = np.mean(rounds[max(0, index - 4) : index] or [returns], axis=0)
        spreads.append(np.abs(np.array(returns) - expected).mean())
        baseline.add(np.array([returns, returns]))
    expected = baseline.expected(np.full((1, 3), 99.0))
    np.testing.assert_allclose(expected, np.mean(rounds[-4:], axis=0), atol=1e-12)
    assert baseline.spread() == pytest.approx(np.mean(spreads[-4:]))


def report_of(worker: int, graph: int, returns: NDArray[np.float64]) -> WorkerReport:
    best = Best(False, 1.0, np.zeros(len(returns), np.int32))
    return WorkerReport(worker, graph, 1.0, 0.0, best, returns, 1, 1.0)


def test_a_round_is_compared_with_the_rounds_of_its_graph_before_it() -> None:
    trainer = Trainer([two_steps(), two_steps()], PLAIN)
    rounds = np.array(
        [[[1, 2], [3, 6], [9, 0]], [[5, 5], [7, 1], [9, 4]], [[4, 4], [8, 8], [0, 2]]]
    )
    advantages = [
        [[-1, -2], [1, 2], [0, 0]],  # the first round is compared with its own mean,
        [[3, 1], [5, -3], [0, 4]],  # the second with the mean of the first,
        [[0, 0.5], [4, 4.5], [-9, 0]],  # the third with that of both
    ]
    for returns, expected in zip(rounds.astype(np.float64), advantages, strict=True):
        reports = [
            report_of(worker, graph, returns[worker]) for worker, graph in enumerate((0, 0, 1))
        ]
        np.testing.assert_allclose(np.stack(trainer._advantages(reports)), np.array(expected))


def test_advantages_of_returns_that_barely_differ_are_not_scaled_up() -> None:
    """Both groups take one second: a spread below 2e-6 s counts as 2e-6 s."""
    trainer = Trainer([two_steps()], replace(PLAIN, advantage_scale="spread"))
    reports = [report_of(worker, 0, np.array([worker * 1e-8, 0.0])) for worker in (0, 1)]
    expected = np.array([[-0.5e-8 / 2e-6, 0.0], [0.5e-8 / 2e-6, 0.0]])
    np.testing.assert_allclose(np.stack(trainer._advantages(reports)), expected, rtol=1e-6)


def test_a_training_has_the_memory_penalty_of_its_settings_not_of_its_first_policy() -> None:
    evaluator = ListSchedule(too_large_for_one())
    policy = PlacementPolicy(2, replace(QUICK, memory_penalty=0.0))
    trainer = Trainer([evaluator], replace(QUICK, memory_penalty=1e-6), policy=policy)
    placements = np.zeros((1, evaluator.problem.num_groups), np.int32)
    limits = evaluator.problem.cluster.memory_bytes
    batch = evaluator.evaluate(placements)
    expected = memory_penalised_runtime(batch, limits, 1e-6)
    assert expected > 10 * batch.runtime
    for environment in (*trainer.environments, *trainer._validation_environments):
        assert environment.costs_of(placements) == expected


def test_workers_take_one_graph_after_the_other() -> None:
    evaluators = [ListSchedule(problem_of(nx.path_graph(size, nx.DiGraph))) for size in (4, 2, 3)]
    settings = replace(PLAIN, workers=2, hidden_units=2, updates=3)
    trainer = Trainer(evaluators, settings)
    for expected in ([0, 1], [0, 2], [1, 2]):
        rollouts = trainer._run_workers()
        assert sorted(rollout.graph for rollout in rollouts) == expected
        trainer.updates += 1


class CostsNothing(ListSchedule):
    """All placements take a second, so that all advantages are 0."""

    def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
        memory = np.zeros((len(placements), 2), np.int64)
        return EvaluationBatch(runtime=np.ones(len(placements)), peak_memory=memory)


def test_the_entropy_weight_decays_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without advantages the gradient is that of the entropy: ``-x p (1 - p)`` of the logit x."""
    settings = replace(
        PLAIN,
        updates=5,
        workers=3,
        entropy_weight_start=0.5,
        entropy_weight_end=0.1,
        learning_rate_start=STILL,
        learning_rate_end=STILL,
    )
    evaluator = CostsNothing(two_steps().problem)
    trainer = Trainer([evaluator], settings, policy=LogitPolicy([1.0], settings))
    probability = 1 / (1 + np.exp(-1.0))
    of_entropy = -probability * (1 - probability) * 2 * 3  # two steps of three workers
    gradients = []
    for _ in range(6):
        with monkeypatch.context() as patch:
            gradients += gradients_of_update(patch, trainer)
    weights = torch.cat(gradients) / of_entropy
    np.testing.assert_allclose(weights, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1], rtol=1e-5)


@pytest.mark.parametrize("advantage_scale", ["none", "spread"])
def test_the_entropy_is_kept_up_where_it_is_below_its_target(
    advantage_scale: AdvantageScaleName,
) -> None:
    """The targets of three updates are 1, 1 / 2 and 0, and the logits 0 and 2."""
    settings = replace(PLAIN, updates=3, entropy_control="target", advantage_scale=advantage_scale)
    p = 1 / (1 + np.exp(-2.0))
    fraction = -(p * np.log(p) + (1 - p) * np.log(1 - p)) / np.log(2)  # 0.528
    for logit, entropy in ((0.0, 1.0), (2.0, fraction)):
        trainer = Trainer([two_steps()], settings, policy=LogitPolicy([logit], settings))
        weights = []
        for _ in range(3):
            reports = [report for rollout in trainer._run_workers() for report in rollout.reports]
            trainer._advantages(reports)
            weights.append(trainer.entropy_weight_of(0, reports))
            trainer.updates += 1
        spreads = trainer.baselines[0].spreads
        units = [float(spreads[: count + 1].mean()) for count in range(3)]
        if advantage_scale == "spread":
            units = [1.0, 1.0, 1.0]
        assert min(units) > 0
        expected = [10 * max(0.0, target - entropy) for target in (1.0, 0.5, 0.0)]
        np.testing.assert_allclose(weights, np.multiply(expected, units), rtol=1e-5, atol=1e-7)


def test_devices_that_cannot_run_a_group_leave_the_target_as_it_is() -> None:
    log_probabilities = np.log([[0.5, 0.5, 1.0], [0.9, 0.1, 1.0]]).astype(np.float32)
    log_probabilities[:, 2] = -1e9
    entropy = np.log(2) - 0.9 * np.log(0.9) - 0.1 * np.log(0.1)
    assert uniformity(log_probabilities) == pytest.approx(entropy / (2 * np.log(2)), rel=1e-6)
    assert uniformity(np.array([[0.0, -1e9, -1e9]], np.float32)) == 1.0


def test_a_policy_that_would_be_sure_at_once_becomes_so_gradually() -> None:
    """Both steps of the problem have one device that is always the better one."""
    entropies = {}
    controls: tuple[EntropyControlName, ...] = ("weight", "target")
    for control in controls:
        settings = replace(
            PLAIN,
            updates=60,
            entropy_control=control,
            learning_rate_start=0.3,
            learning_rate_end=0.3,
        )
        trainer = Trainer([two_steps()], settings, policy=LogitPolicy([0.0], settings))
        entropies[control] = [trainer.update().entropy / np.log(2) for _ in range(60)]
    targets = 1 - np.arange(60) / 59
    assert entropies["weight"][25] < 0.05
    assert np.abs(entropies["target"] - targets).max() < 0.35
    assert np.abs(entropies["target"] - targets).mean() < 0.15


def test_the_learning_rate_decays_linearly() -> None:
    settings = Settings(updates=5, learning_rate_start=1e-2, learning_rate_end=2e-3)
    trainer = Trainer([ListSchedule(two_chains())], settings)
    rates = [trainer.update().learning_rate for _ in range(6)]
    np.testing.assert_allclose(rates, [1e-2, 8e-3, 6e-3, 4e-3, 2e-3, 2e-3])


def test_the_reward_of_an_update_is_the_mean_improvement_of_its_episodes() -> None:
    evaluator = ListSchedule(heavy_chain())
    summary = Trainer([evaluator], replace(QUICK, reward="intermediate")).update()
    (start,) = penalised(evaluator, np.zeros((1, evaluator.problem.num_groups), np.int32))
    assert summary.runtime != start
    assert summary.reward == pytest.approx(start - summary.runtime)


def test_a_group_with_one_possible_device_takes_no_evaluation_of_another() -> None:
    settings = replace(
        QUICK, workers=4, node_features="costs-and-times", device_features="loads", updates=2
    )
    trainer = Trainer([ListSchedule(partly_possible())], settings)
    assert trainer.update().evaluations == 4 * (1 + 2)  # the last placement, and two of three


def test_the_size_of_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = ListSchedule(random_problem(7, 3, np.random.default_rng(1)))
    settings = replace(QUICK, minibatches=1, workers=3)
    gradients = []
    for nodes, placements in ((2**14, 2**24), (50, 15)):  # all, or two steps and two placements
        with monkeypatch.context() as patch:
            patch.setattr(episodes_module, "NODES_PER_BATCH", nodes)
            patch.setattr(episodes_module, "NUMBERS_PER_BATCH", placements)
            gradients += gradients_of_update(patch, Trainer([evaluator], settings, seed=1))
    scale = gradients[0].abs().max()
    torch.testing.assert_close(gradients[1] / scale, gradients[0] / scale, rtol=1e-3, atol=1e-5)


def test_the_first_of_equally_good_policies_is_kept() -> None:
    policies = [PlacementPolicy(2, QUICK, seed=seed) for seed in range(4)]
    best_policy = BestPolicy()
    for policy, cost in zip(policies, (2.0, 1.0, 1.0, 3.0), strict=True):
        best_policy.offer(policy, cost)
    assert best_policy.cost == 1.0
    for name, tensor in policies[1].state_dict().items():
        assert torch.equal(best_policy.weights[name], tensor)


class Backwards(Processes):
    """Processes whose reports come in any order."""

    def gather(self, items: Sequence[Any]) -> list[Any]:
        return list(items)[::-1]


def test_the_order_in_which_reports_come_changes_nothing() -> None:
    evaluators = [ListSchedule(heavy_chain()), ListSchedule(partly_possible())]
    settings = replace(QUICK, reward="intermediate", updates=1, workers=3)
    trainers = [
        Trainer(evaluators, settings, processes=processes) for processes in (None, Backwards())
    ]
    summaries = [replace(trainer.update(), evaluations_per_second=0.0) for trainer in trainers]
    assert summaries[0] == summaries[1]
    assert trainers[0].best_policy.cost == trainers[1].best_policy.cost
    policies = [trainer.policy.state_dict() for trainer in trainers]
    for name, tensor in policies[0].items():
        assert torch.equal(tensor, policies[1][name])


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_only_a_gradient_that_is_too_long_is_clipped(max_norm: float) -> None:
    """Adam cancels a constant factor, so that the clipped gradient is looked at in its averages."""
    settings = Settings(max_gradient_norm=max_norm, minibatches=1, epochs=1)
    trainer = Trainer([ListSchedule(two_chains())], settings)
    summary = trainer.update()
    assert 1e-3 < summary.gradient_norm < 1e3
    averages = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    norm = float(torch.cat([average.flatten() for average in averages]).norm())
    expected = 0.1 * min(max_norm, summary.gradient_norm)  # 1 - beta_1 of Adam
    assert norm == pytest.approx(expected, rel=1e-3)


def test_a_gradient_that_is_not_finite_leaves_the_policy_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer([ListSchedule(heavy_chain())])
    trainer.update()
    weights = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    monkeypatch.setattr(trainer.processes, "sum", lambda flat: flat.fill_(float("nan")))
    with pytest.raises(PolicyError, match="gradient: expected finite numbers at update 2, got"):
        trainer.update()
    for name, tensor in trainer.policy.state_dict().items():
        assert torch.equal(tensor, weights[name])


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


STILL = 1e-60  # a learning rate that is 0 in float32


class OneOf(Processes):
    """A process that only says how many there are, and keeps what it would send."""

    def __init__(self, rank: int = 0, count: int = 2) -> None:
        self.rank, self.count, self.sent = rank, count, [b""]

    def gather(self, items: Sequence[Any]) -> list[Any]:
        self.sent = list(items)
        return self.sent


def new_trainer(settings: Settings, *, seed: int = 0, rank: int | None = None) -> Trainer:
    evaluators = [ListSchedule(heavy_chain()), ListSchedule(partly_possible())]
    processes = None if rank is None else OneOf(rank)
    return Trainer(evaluators, settings, seed=seed, processes=processes)


def division(trainer: Trainer) -> list[list[list[int]]]:
    return [[steps.tolist() for steps in minibatch] for minibatch in trainer._minibatches()]


@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 3))
def test_each_step_is_in_one_part_of_each_epoch(seed: int, minibatches: int, epochs: int) -> None:
    settings = Settings(minibatches=minibatches, epochs=epochs, hidden_units=2)
    minibatches_of_epochs = division(new_trainer(settings, seed=seed))
    assert len(minibatches_of_epochs) == minibatches * epochs
    for epoch in range(epochs):
        minibatches_of_epoch = minibatches_of_epochs[
            epoch * minibatches : (epoch + 1) * minibatches
        ]
        for graph, num_groups in enumerate((6, 3)):
            steps = [minibatch[graph] for minibatch in minibatches_of_epoch]
            assert sorted(itertools.chain.from_iterable(steps)) == list(range(num_groups))
            sizes = [len(minibatch) for minibatch in steps]
            assert max(sizes) - min(sizes) <= 1


def test_all_processes_divide_in_one_way_and_each_epoch_and_update_in_another() -> None:
    settings = Settings(minibatches=2, epochs=2, workers=2)
    ranks = [new_trainer(settings, rank=rank) for rank in (0, 1)]
    first = division(ranks[0])
    assert first == division(ranks[1]) == division(new_trainer(settings))
    assert first[:2] != first[2:]
    ranks[0].updates = 1
    assert division(ranks[0]) != first
    assert division(new_trainer(settings, seed=1)) != first


@pytest.mark.parametrize("reward", ["counterfactual", "intermediate"])
@pytest.mark.parametrize(("minibatches", "epochs"), [(4, 1), (2, 3), (7, 1)])
def test_the_parts_of_a_policy_that_stays_add_up_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, reward: RewardName, minibatches: int, epochs: int
) -> None:
    settings = replace(
        Settings(learning_rate_start=STILL, learning_rate_end=STILL, workers=4), reward=reward
    )
    gradients, entropies = [], []
    for chosen_settings in (
        replace(settings, minibatches=1, epochs=1),
        replace(settings, minibatches=minibatches, epochs=epochs),
    ):
        trainer = new_trainer(chosen_settings)
        with monkeypatch.context() as patch:
            gradients.append(torch.stack(gradients_of_update(patch, trainer)))
        entropies.append(trainer.update().entropy)
    assert [len(gradient) for gradient in gradients] == [1, minibatches * epochs]
    whole, sum_of_minibatches = (gradient.sum(dim=0) for gradient in gradients)
    torch.testing.assert_close(
        sum_of_minibatches, epochs * whole, rtol=1e-3, atol=1e-5 * float(whole.abs().max())
    )
    assert entropies[1] == pytest.approx(entropies[0], rel=1e-5)


def test_processes_with_different_trainings_refuse_to_continue() -> None:
    """Each sends a digest of its training, which is another one after any change."""
    settings = replace(QUICK, workers=2)
    policy = PlacementPolicy(2, settings)

    def digest_of(graph: int = 0, updates: int = 0, **changes: Any) -> bytes:
        processes = OneOf()
        chosen: dict[str, Any] = {"settings": settings, "seed": 7, "policy": policy} | changes
        evaluator = ListSchedule((two_chains(), partly_possible())[graph])
        trainer = Trainer([evaluator], processes=processes, **chosen)
        trainer.updates = updates
        trainer._check_processes()
        return bytes(processes.sent[0])

    changed_digests = [
        digest_of(seed=8),
        digest_of(updates=1),
        digest_of(policy=PlacementPolicy(2, settings, seed=1)),
        digest_of(settings=replace(settings, discount=0.5)),
        digest_of(graph=1),
    ]
    assert digest_of() == digest_of()
    assert len({digest_of(), *changed_digests}) == 6

    class Other(OneOf):
        def gather(self, items: Sequence[Any]) -> list[Any]:
            return [*items, b"other"]

    trainer = Trainer([ListSchedule(two_chains())], settings, processes=Other())
    with pytest.raises(PolicyError, match="policy, settings or graphs in process 1 than in"):
        trainer.update()
    with pytest.raises(PolicyError, match="workers: expected at least one for each of 9 processes"):
        Trainer([ListSchedule(two_chains())], settings, processes=OneOf(count=9))


LOGITS = st.floats(-2, 2)
SEED = 3


def drawn(probabilities: torch.Tensor, draw: float) -> int:
    """Return the device that a number from 0 to 1 draws."""
    cumulative = probabilities.double().cumsum(0).numpy()
    return int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))


@dataclass(frozen=True)
class Step:
    """A step: its state, its action, another device and its weight, and the placement after it."""

    states: States
    action: int
    other_device: int
    weight: float
    placement: NDArray[np.int32]


def replayed(
    policy: PlacementPolicy, evaluator: ListSchedule, worker: int, settings: Settings
) -> tuple[NDArray[np.int32], list[Step]]:
    """Return where the first episode of a worker starts, and its steps."""
    environment = PlacementEnvironment.for_policy(evaluator, settings)
    generator = np.random.default_rng((SEED, worker, 0))
    environment.reset(
        num_episodes=1, order=settings.order, start=settings.start, generators=[generator]
    )
    start = environment.placement[0].copy()
    num_groups = evaluator.problem.num_groups
    draws, draws_of_others = generator.random(num_groups), generator.random(num_groups)
    steps = []
    for time in range(num_groups):
        states = environment.states()
        with torch.no_grad():
            probabilities = policy(states)[0].exp()
        action = drawn(probabilities, draws[time])
        other_probabilities = probabilities * (torch.arange(len(probabilities)) != action)
        other_device = drawn(other_probabilities, draws_of_others[time])
        pair_probabilities = [
            float(probabilities[device].double()) for device in (action, other_device)
        ]
        weight = 2 / sum(1 / (1 - probability) for probability in pair_probabilities)
        environment.step(np.array([action]))
        steps.append(Step(states, action, other_device, weight, environment.placement[0].copy()))
    return start, steps


def eager_gain(
    policy: PlacementPolicy, evaluator: ListSchedule, workers: int, settings: Settings
) -> torch.Tensor:
    """Return ``sum of log p A + w H`` of the first round: its mean is the baseline, if any is."""
    terms_of_episodes = [
        eager_terms(policy, evaluator, worker, settings) for worker in range(workers)
    ]
    returns = np.array([returns_of_episode for _, _, returns_of_episode in terms_of_episodes])
    if settings.reward != "counterfactual":
        returns = returns - returns.mean(axis=0)
    scores = torch.stack([torch.stack(of_episode) for _, of_episode, _ in terms_of_episodes])
    return sum(
        (entropy for entropy, _, _ in terms_of_episodes), (scores * torch.from_numpy(returns)).sum()
    )


def eager_terms(
    policy: PlacementPolicy, evaluator: ListSchedule, worker: int, settings: Settings
) -> tuple[torch.Tensor, list[torch.Tensor], list[float]]:
    """Return ``w H`` of one episode, and the ``log p`` and the return of each of its steps."""
    start, steps = replayed(policy, evaluator, worker, settings)
    costs = penalised(evaluator, np.stack([start, *(step.placement for step in steps)]))
    bonus, scores, returns = torch.zeros(()), [], []
    for time, step in enumerate(steps):
        log_probabilities = policy(step.states)[0]
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        bonus = bonus + settings.entropy_weight_start * entropy
        if settings.reward == "counterfactual":
            changed = steps[-1].placement.copy()
            changed[int(step.states.current)] = step.other_device
            advantage = float(penalised(evaluator, changed[None])[0]) - costs[-1]
            pair = log_probabilities[step.action] - log_probabilities[step.other_device]
            score = step.weight * pair / 2
        elif settings.reward == "terminal":
            advantage = -float(costs[-1])
            score = log_probabilities[step.action]
        else:
            powers = settings.discount ** np.arange(len(steps) - time)
            advantage = float((powers * (costs[time:-1] - costs[time + 1 :])).sum())
            score = log_probabilities[step.action]
        scores.append(score)
        returns.append(advantage)
    return bonus, scores, returns


@pytest.mark.parametrize(
    "settings",
    [
        preset("paper"),
        replace(preset("paper"), embedding="simple-aggregator", discount=0.7),
        Settings(reward="intermediate", minibatches=1, epochs=1, advantage_scale="none"),
        Settings(reward="terminal", minibatches=1, epochs=1, advantage_scale="none"),
        Settings(minibatches=1, epochs=1, advantage_scale="none"),
        Settings(minibatches=1, epochs=1, advantage_scale="none", order="random", start="random"),
    ],
    ids=["paper", "aggregator", "intermediate", "terminal", "counterfactual", "any order"],
)
def test_one_part_is_plain_reinforce(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    evaluator = ListSchedule(random_problem(5, 3, np.random.default_rng(1)))
    settings = replace(settings, workers=4)
    policy = PlacementPolicy(3, settings, seed=1)
    first = copy.deepcopy(policy)
    trainer = Trainer([evaluator], settings, seed=SEED, policy=policy)
    (gradient,) = gradients_of_update(monkeypatch, trainer)

    gain = eager_gain(first, evaluator, 4, settings)
    gradients = torch.autograd.grad(gain, list(first.parameters()))
    expected = torch.cat([gradient_of_parameter.flatten() for gradient_of_parameter in gradients])
    scale = expected.abs().max()
    assert scale > 0
    torch.testing.assert_close(gradient / scale, expected / scale, rtol=1e-3, atol=1e-4)


def episodes_of(policy: LogitPolicy, devices: NDArray[np.int64]) -> Episodes:
    """Return episodes [B, 2] of given devices, as a policy knew them when they were run."""
    environment = PlacementEnvironment(two_steps(), reward="terminal")
    environment.reset(num_episodes=len(devices))
    return run_episodes(policy, environment, lambda time, _: devices[:, time])


@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("logit", [-0.6, 0.15, 0.55, 0.9])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_gradient_is_zero_beyond_the_clip_in_the_direction_of_gain(
    logit: float, sign: int, has_others: bool
) -> None:
    """Of the logit x, equation 7 of Schulman et al. 2017 has the derivative ``A r (a - p)``."""
    old_logit, clip_ratio = 0.2, 0.1
    devices, weights = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), np.linspace(0, 1, 8)
    advantages = sign * np.array([[1.0, 2.0], [3.0, -1.5], [-2.5, 0.5], [4.0, 0.1]])
    probability, old_probability = (1 / (1 + np.exp(-x)) for x in (logit, old_logit))
    ratios = np.array([(1 - probability) / (1 - old_probability), probability / old_probability])
    policy, counterfactuals = LogitPolicy([logit]), None
    surrogates = [(devices, advantages)]
    if has_others:
        halves = weights.reshape(4, 2) * advantages / 2
        surrogates = [(devices, halves), (1 - devices, -halves)]
        comparison_weights = weights.reshape(4, 2).astype(np.float32)
        counterfactuals = Counterfactuals(1 - devices, comparison_weights, np.full(4, 2))
    add_gradient(
        policy,
        episodes_of(LogitPolicy([old_logit]), devices),
        counterfactuals,
        advantages.astype(np.float32),
        np.array([0, 1]),
        clip_ratio=clip_ratio,
        entropy_weight=0.0,
    )
    expected = 0.0
    for actions, advantage in surrogates:
        ratio = ratios[actions]
        is_clipped = np.where(advantage > 0, ratio > 1 + clip_ratio, ratio < 1 - clip_ratio)
        expected += float(
            np.where(is_clipped, 0.0, advantage * ratio * (actions - probability)).sum()
        )
    assert policy.logits.grad is not None
    assert -policy.logits.grad.item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
