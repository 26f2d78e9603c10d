"""What a step earns over another device that it might have chosen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_policy import PlacementEnvironment, PlacementPolicy, Settings
from placeto_policy.episodes import (
    Episodes,
    other_devices,
    run_counterfactuals,
    run_episodes,
    sampling,
)
from random_states import random_problem
from scheduled_problems import ListSchedule, partly_possible, penalised


def generators(count: int, seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, episode)) for episode in range(count)]


def sampled(
    evaluator: ListSchedule, policy: PlacementPolicy, count: int, seed: int
) -> tuple[PlacementEnvironment, Episodes]:
    """Return episodes that visit the groups in any order, from anywhere."""
    environment = PlacementEnvironment.for_policy(
        evaluator, policy.settings, reward="counterfactual"
    )
    drawing = generators(count, seed)
    environment.reset(num_episodes=count, order="random", start="random", generators=drawing)
    choice = sampling(drawing, evaluator.problem.num_groups)
    return environment, run_episodes(policy, environment, choice)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4))
def test_rewards_and_the_best_placement_by_brute_force(
    seed: int, num_groups: int, num_devices: int
) -> None:
    evaluator = ListSchedule(random_problem(num_groups, num_devices, np.random.default_rng(seed)))
    seen = Settings(node_features="costs-and-times", device_features="loads")
    policy = PlacementPolicy(num_devices, seen, seed=seed)
    environment, before = sampled(evaluator, policy, 3, seed)
    after, counterfactuals = run_counterfactuals(environment, before, generators(3, seed + 1))
    np.testing.assert_array_equal(after.final, before.final)
    least = []
    for row in range(3):
        tried = [after.final[row]]
        for step in range(num_groups):
            other = after.final[row].copy()
            other[after.order[row, step]] = counterfactuals.devices[row, step]
            gain = penalised(evaluator, other[None])[0] - after.costs[row]
            assert after.rewards[row, step] == pytest.approx(gain)
            if counterfactuals.devices[row, step] == after.actions()[row, step]:
                assert after.rewards[row, step] == 0
            else:
                tried.append(other)
        assert counterfactuals.evaluations[row] == len(tried) - 1
        least.append(penalised(evaluator, np.array(tried)).min())
    best = environment.best
    assert best.cost == min(least) == penalised(evaluator, best.placement[None])[0]


@given(st.lists(st.floats(-12, 0), min_size=2, max_size=5), st.integers(0, 10**6))
def test_comparisons_weigh_as_much_as_those_of_independent_draws(
    logits: list[float], seed: int
) -> None:
    """On the mean over all pairs, for what is the same for a pair whichever was drawn first."""
    size = len(logits)
    p = np.exp(logits) / np.exp(logits).sum()
    worth = np.random.default_rng(seed).normal(size=(size, size))
    worth = worth + worth.T
    independent = sum(p[a] * p[b] * worth[a, b] for a in range(size) for b in range(size) if a != b)
    mean = 0.0
    for action in range(size):
        cumulative = 0.0
        rest = 1 - p[action] if p[action] < 0.9 else np.delete(p, action).sum()
        for other in range(size):
            if other == action:
                continue
            draw = np.array([cumulative + p[other] / rest / 2])
            cumulative += p[other] / rest
            known = np.log(p)[None].astype(np.float32)
            device, weight = other_devices(known, np.array([action]), draw)
            assert device == [other]
            mean += p[action] * p[other] / rest * weight[0] * worth[action, other]
    assert mean == pytest.approx(independent, rel=1e-4, abs=1e-9)


def test_a_device_that_cannot_run_a_group_is_never_drawn() -> None:
    evaluator = ListSchedule(partly_possible())
    environment, episodes = sampled(evaluator, PlacementPolicy(2), 50, 0)
    _, counterfactuals = run_counterfactuals(environment, episodes, generators(50, 1))
    fixed = episodes.order == 0
    assert (counterfactuals.devices[fixed] == 1).all()
    assert (counterfactuals.weights[fixed] == 0).all()
    assert (counterfactuals.weights[~fixed] > 0).all()
    assert (counterfactuals.devices[~fixed] != episodes.actions()[~fixed]).all()
    assert (counterfactuals.evaluations == (~fixed).sum(axis=1)).all()
