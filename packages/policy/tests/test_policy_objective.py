"""The gradient of an update against eager torch, and where the surrogate is clipped."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from logit_policies import LogitPolicy, gradients_of_update, two_steps
from placeto_policy import PlacementEnvironment, PlacementPolicy, Settings, States, Trainer, preset
from placeto_policy.episodes import Counterfactuals, Episodes, run_episodes
from placeto_policy.trainer import add_gradient
from random_states import random_problem
from scheduled_problems import ListSchedule, penalised

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
    other: int
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
    draws, other_draws = generator.random(num_groups), generator.random(num_groups)
    steps = []
    for time in range(num_groups):
        states = environment.states()
        with torch.no_grad():
            probabilities = policy(states)[0].exp()
        action = drawn(probabilities, draws[time])
        without = probabilities * (torch.arange(len(probabilities)) != action)
        other = drawn(without, other_draws[time])
        parts = [float(probabilities[device].double()) for device in (action, other)]
        weight = 2 / sum(1 / (1 - part) for part in parts)
        environment.step(np.array([action]))
        steps.append(Step(states, action, other, weight, environment.placement[0].copy()))
    return start, steps


def eager_gain(
    policy: PlacementPolicy, evaluator: ListSchedule, workers: int, settings: Settings
) -> torch.Tensor:
    """Return ``sum of log p A + w H`` of the first round: its mean is the baseline, if any is."""
    parts = [eager_parts(policy, evaluator, worker, settings) for worker in range(workers)]
    returns = np.array([earned for _, _, earned in parts])
    if settings.reward != "counterfactual":
        returns = returns - returns.mean(axis=0)
    scores = torch.stack([torch.stack(of_episode) for _, of_episode, _ in parts])
    return sum((entropy for entropy, _, _ in parts), (scores * torch.from_numpy(returns)).sum())


def eager_parts(
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
            changed[int(step.states.current)] = step.other
            advantage = float(penalised(evaluator, changed[None])[0]) - costs[-1]
            pair = log_probabilities[step.action] - log_probabilities[step.other]
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


@pytest.mark.parametrize("seed", range(3))
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
def test_one_part_is_plain_reinforce(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, seed: int
) -> None:
    evaluator = ListSchedule(random_problem(5, 3, np.random.default_rng(seed)))
    settings = replace(settings, workers=4)
    policy = PlacementPolicy(3, settings, seed=seed)
    first = copy.deepcopy(policy)
    trainer = Trainer([evaluator], settings, seed=SEED, policy=policy)
    (gradient,) = gradients_of_update(monkeypatch, trainer)

    gain = eager_gain(first, evaluator, 4, settings)
    parts = torch.autograd.grad(gain, list(first.parameters()))
    expected = torch.cat([part.flatten() for part in parts])
    scale = expected.abs().max()
    assert scale > 0
    torch.testing.assert_close(gradient / scale, expected / scale, rtol=1e-3, atol=1e-4)


def episodes_of(policy: LogitPolicy, devices: NDArray[np.int64]) -> Episodes:
    """Return episodes [B, 2] of given devices, as a policy knew them when they were run."""
    environment = PlacementEnvironment(two_steps(), reward="terminal")
    environment.reset(num_episodes=len(devices))
    return run_episodes(policy, environment, lambda time, _: devices[:, time])


def gradient_by_formula(
    devices: NDArray[np.int64],
    advantages: NDArray[np.float64],
    ratios: NDArray[np.float64],
    second: float,
    clip_ratio: float,
) -> float:
    """Return the derivative by the logit of equation 7 of Schulman et al. 2017.

    It is ``A r (a - p)`` for each action a, but 0 where r is beyond the clip towards gain.
    """
    too_far = ((advantages > 0) & (ratios > 1 + clip_ratio)) | (
        (advantages < 0) & (ratios < 1 - clip_ratio)
    )
    return float(np.where(too_far, 0.0, advantages * ratios * (devices - second)).sum())


def ratios_of(devices: NDArray[np.int64], before: float, after: float) -> NDArray[np.float64]:
    old, new = (np.array([1 / (1 + np.exp(x)), 1 / (1 + np.exp(-x))]) for x in (before, after))
    ratios: NDArray[np.float64] = (new / old)[devices]
    return ratios


@given(
    LOGITS,
    LOGITS,
    st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    st.sampled_from([0.1, 0.2, 0.5]),
    st.booleans(),
)
def test_the_gradient_is_zero_beyond_the_clip_in_the_direction_of_gain(
    before: float, after: float, values: list[float], clip_ratio: float, has_others: bool
) -> None:
    devices = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    others, weights = 1 - devices, np.array([[0.1, 0.5], [1.0, 0.0], [0.3, 0.2], [0.5, 0.9]])
    advantages = np.array(values).reshape(4, 2)
    edges = np.array([1 - clip_ratio, 1 + clip_ratio])
    both = ratios_of(np.array([0, 1]), before, after)
    if np.abs(both[:, None] - edges).min() < 1e-4 or np.abs(advantages).min() < 1e-4:
        return  # at the kink either side is right
    episodes = episodes_of(LogitPolicy([before]), devices)
    policy = LogitPolicy([after])
    counterfactuals = None
    if has_others:
        evaluations = np.full(4, 2)
        counterfactuals = Counterfactuals(others, weights.astype(np.float32), evaluations)
    add_gradient(
        policy,
        episodes,
        counterfactuals,
        advantages.astype(np.float32),
        np.array([0, 1]),
        clip_ratio=clip_ratio,
        entropy_weight=0.0,
    )
    taken = [(devices, advantages)]
    if has_others:
        halves = weights * advantages / 2
        taken = [(devices, halves), (others, -halves)]
    expected = sum(
        gradient_by_formula(
            chosen,
            worth,
            ratios_of(chosen, before, after),
            1 / (1 + np.exp(-after)),
            clip_ratio,
        )
        for chosen, worth in taken
    )
    assert policy.logits.grad is not None
    assert -policy.logits.grad.item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_only_the_steps_that_are_asked_for_count() -> None:
    policy = LogitPolicy([0.1, 0.7])
    episodes = episodes_of(policy, np.array([[1, 0], [0, 0]]))
    advantages = np.ones((2, 2), np.float32)
    for steps, is_learned in (([0], [True, False]), ([1], [False, True]), ([0, 1], [True, True])):
        policy.zero_grad()
        entropy = add_gradient(
            policy,
            episodes,
            None,
            advantages,
            np.array(steps),
            clip_ratio=0.2,
            entropy_weight=0.5,
        )
        assert policy.logits.grad is not None
        assert (policy.logits.grad != 0).tolist() == is_learned
        second = 1 / (1 + np.exp(-np.array([0.1, 0.7])[steps]))
        expected = -(second * np.log(second) + (1 - second) * np.log(1 - second)).sum()
        assert entropy == pytest.approx(2 * expected, rel=1e-5)
