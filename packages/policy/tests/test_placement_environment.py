import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_graphs import EvaluationBatch
from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PolicyError,
    Settings,
    most_evaluations,
)
from placeto_policy import environment as environment_module
from placeto_policy.environment import PlacementCosts
from placeto_policy.episodes import (
    Episodes,
    other_devices,
    run_counterfactuals,
    run_episodes,
    sampling,
)
from placeto_policy.settings import RewardName
from placeto_policy.states import NOWHERE
from random_states import random_problem
from scheduled_problems import (
    K80_BYTES,
    ListSchedule,
    heavy_chain,
    partly_possible,
    penalised,
    too_large_for_one,
    two_chains,
)


def generators(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, episode)) for episode in range(count)]


def test_an_episode_visits_every_group_once_in_topological_order() -> None:
    environment = PlacementEnvironment(ListSchedule(two_chains()))
    environment.reset(num_episodes=2)
    visited = []
    while not environment.is_over:
        states = environment.states()
        assert states.visited.sum(dim=1).tolist() == [environment.time] * 2
        assert not states.visited[0, states.current[0]]
        visited.append(states.current.tolist())
        environment.step(np.array([0, 1]))
    order = environment.evaluator.problem.group_graph.topological_order.tolist()
    assert visited == [[group, group] for group in order]
    assert environment.placement.tolist() == [[0] * 6, [1] * 6]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(["topological", "random"]))
def test_intermediate_rewards_add_up_to_the_improvement(seed: int, order: str) -> None:
    generator = np.random.default_rng(seed)
    evaluator = ListSchedule(random_problem(6, 3, generator))
    environment = PlacementEnvironment(evaluator)
    environment.reset(
        num_episodes=4,
        order=order,  # type: ignore[arg-type]
        start="random",
        generators=generators(4, seed),
    )
    first = environment.placement.copy()
    rewards = np.zeros(4)
    while not environment.is_over:
        placement = environment.placement.copy()
        reward = environment.step(generator.integers(0, 3, 4))
        next_placement = environment.placement
        assert ((placement != next_placement).sum(axis=1) <= 1).all()
        improvement = penalised(evaluator, placement) - penalised(evaluator, next_placement)
        np.testing.assert_allclose(reward, improvement, atol=1e-12)
        rewards += reward
    total = penalised(evaluator, first) - penalised(evaluator, environment.placement)
    np.testing.assert_allclose(rewards, total, atol=1e-12)


def test_the_terminal_reward_comes_last_and_costs_one_evaluation() -> None:
    evaluator = ListSchedule(two_chains())
    environment = PlacementEnvironment(evaluator, reward="terminal")
    environment.reset(num_episodes=3)
    rewards = [environment.step(np.array([0, 1, time % 2])) for time in range(6)]
    assert evaluator.placements_seen == 3
    assert not np.any(rewards[:-1])
    np.testing.assert_allclose(-rewards[-1], penalised(evaluator, environment.placement))


def test_memory_that_does_not_fit_is_penalised() -> None:
    environment = PlacementEnvironment(ListSchedule(too_large_for_one()))
    environment.reset(num_episodes=1)
    excess_gigabytes = (6 * (2 * K80_BYTES // 6) - K80_BYTES) / 1e9
    np.testing.assert_allclose(environment.costs, 6.0 + 2.0 * excess_gigabytes)
    unpenalised = PlacementEnvironment(ListSchedule(too_large_for_one()), memory_penalty=0.0)
    unpenalised.reset(num_episodes=1)
    np.testing.assert_allclose(unpenalised.costs, 6.0)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(["terminal", "intermediate"]))
def test_steps_that_look_ahead_see_what_each_device_would_cost(
    seed: int, count: int, reward: RewardName
) -> None:
    generator = np.random.default_rng(seed)
    evaluator = ListSchedule(random_problem(5, 3, generator))
    environment = PlacementEnvironment(
        evaluator, reward=reward, device_features="loads-and-lookahead"
    )
    environment.reset(
        num_episodes=count, order="random", start="random", generators=generators(count, seed)
    )
    while not environment.is_over:
        groups = environment.order[:, environment.time]
        placements = np.repeat(environment.placement, 3, axis=0)
        placements[np.arange(3 * count), np.repeat(groups, 3)] = np.tile(np.arange(3), count)
        expected = penalised(evaluator, placements).reshape(count, 3)
        mean_seconds = environment.seconds_of_work / 5
        expected_features = np.log1p(
            (expected - expected.min(axis=1, keepdims=True)) / mean_seconds
        )
        np.testing.assert_allclose(environment.costs_of_devices(), expected)
        lookahead = environment.states().lookahead
        assert lookahead is not None
        np.testing.assert_allclose(lookahead, expected_features, rtol=1e-5, atol=1e-6)
        actions = generator.integers(0, 3, count)
        environment.step(actions)
        np.testing.assert_allclose(environment.costs, expected[np.arange(count), actions])


def test_looking_ahead_evaluates_other_devices_once_and_no_impossible_one_runs() -> None:
    evaluator = ListSchedule(two_chains())
    environment = PlacementEnvironment(
        evaluator, reward="terminal", device_features="loads-and-lookahead"
    )
    environment.reset(num_episodes=1)
    while not environment.is_over:
        environment.states()
        environment.states()
        environment.step(np.array([environment.time % 2]))
    assert evaluator.placements_seen == most_evaluations(
        evaluator.problem, "terminal", Settings(node_features="costs-and-times")
    )
    partly = PlacementEnvironment(
        ListSchedule(partly_possible()), device_features="loads-and-lookahead"
    )
    partly.reset(num_episodes=1)
    assert partly.costs_of_devices().tolist() == [[np.inf, 3.0]]
    lookahead = partly.states().lookahead
    assert lookahead is not None
    assert lookahead.tolist() == [[0.0, 0.0]]


def test_random_orders_and_starts_differ_between_episodes_and_follow_from_the_seed() -> None:
    environment = PlacementEnvironment(ListSchedule(heavy_chain()))
    drawn = []
    for seed in (0, 0, 1):
        environment.reset(
            num_episodes=4, order="random", start="random", generators=generators(4, seed)
        )
        drawn.append((environment.order.tolist(), environment.placement.tolist()))
        assert len({tuple(order) for order in environment.order.tolist()}) > 1
        assert (np.sort(environment.order, axis=1) == np.arange(6)).all()
    assert drawn[0] == drawn[1] != drawn[2]


def test_groups_start_on_one_device_that_can_run_them() -> None:
    environment = PlacementEnvironment(ListSchedule(partly_possible()))
    environment.reset(num_episodes=1)
    assert environment.placement.tolist() == [[1, 1, 1]]
    environment.reset(num_episodes=50, start="random", generators=generators(50))
    assert set(environment.placement[:, 0].tolist()) == {1}
    assert set(environment.placement[:, 1].tolist()) == {0, 1}


def test_the_start_is_hidden_from_policies_of_pairs_unless_it_is_chosen() -> None:
    policy = Settings(embedding="pairs")
    environment = PlacementEnvironment.for_policy(ListSchedule(partly_possible()), policy)
    environment.reset(num_episodes=1)
    assert environment.states().placement.tolist() == [[NOWHERE] * 3]
    environment.reset(num_episodes=1, start=np.array([1, 0, 1]))
    assert environment.states().placement.tolist() == [[1, 0, 1]]
    assert environment.placement.tolist() == [[1, 0, 1]]


def test_a_reset_forgets_the_lookahead() -> None:
    evaluator = ListSchedule(heavy_chain())
    environment = PlacementEnvironment(evaluator, device_features="loads-and-lookahead")
    for start in np.zeros(6, np.int32), np.ones(6, np.int32):
        environment.reset(num_episodes=1, start=start)
        placements = np.tile(start, (2, 1))
        placements[:, environment.order[0, 0]] = [0, 1]
        assert environment.costs_of_devices().tolist() == [
            penalised(evaluator, placements).tolist()
        ]


def test_costs_are_forgotten_once_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_module, "MAX_REMEMBERED", 4)
    evaluator = ListSchedule(two_chains())
    costs = PlacementCosts(evaluator, memory_penalty=0.0)
    placements = np.array(
        [[device >> bit & 1 for bit in range(6)] for device in range(5)], np.int32
    )
    expected = ListSchedule(evaluator.problem).evaluate(placements).runtime
    for rows, evaluations in (
        ([0, 1, 2, 3], 4),
        ([0, 1, 2, 3], 4),
        ([0, 4], 5),  # one too many: only these two are kept
        ([4, 0], 5),
        ([1], 6),
    ):
        np.testing.assert_array_equal(costs.costs_of(placements[rows]), expected[rows])
        assert evaluator.placements_seen == evaluations


def test_of_equally_good_placements_the_first_is_the_best() -> None:
    environment = PlacementEnvironment(ListSchedule(two_chains()))
    for device in (1, 0):
        environment.costs_of(np.full((1, 6), device, np.int32))
    assert environment.best.placement.tolist() == [1] * 6


class Wrong(ListSchedule):
    """Returns something that only looks like an `EvaluationBatch`."""

    def __init__(self, **fields: object) -> None:
        super().__init__(heavy_chain())
        self.fields = fields

    def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
        class Batch:
            runtime = np.ones(len(placements))
            peak_memory = np.zeros((len(placements), 2), np.int64)

        batch = Batch()
        for name, value in self.fields.items():
            setattr(batch, name, value)
        return batch  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runtime": np.array([np.nan])}, r"expected a runtime >= 0, got runtime\[0\] = nan"),
        ({"runtime": np.array([-1.0])}, r"expected a runtime >= 0, got runtime\[0\] = -1.0"),
        ({"runtime": np.ones(3)}, r"expected runtime of shape \(1,\), got \(3,\)"),
        ({"peak_memory": np.zeros((1, 3), int)}, r"peak_memory of shape \(1, 2\), got \(1, 3\)"),
    ],
)
def test_an_evaluator_that_returns_nonsense(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        PlacementEnvironment(Wrong(**fields)).reset(num_episodes=1)


def test_actions_that_are_not_possible() -> None:
    environment = PlacementEnvironment(ListSchedule(partly_possible()))
    environment.reset(num_episodes=2)
    for actions, message in (
        ([1, 2], "expected 2 devices from 0 to 1"),
        ([1], "expected 2 devices from 0 to 1"),
        ([1, 0], r"actions\[1\]: expected a device that can run group 0"),
    ):
        with pytest.raises(PolicyError, match=message):
            environment.step(np.array(actions))
    for _ in range(3):
        environment.step(np.array([1, 1]))
    with pytest.raises(PolicyError, match="expected at most 3 steps"):
        environment.step(np.array([1, 1]))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"order": "backwards"}, "order: expected one of 'topological', 'random' or an array"),
        ({"start": "somewhere"}, "start: expected one of 'single', 'random' or an array"),
        ({"order": np.array([0, 1, 1])}, "order: expected each of 3 groups once"),
        ({"start": np.array([0.0, 1.0, 1.0])}, r"start: expected integers of shape \(3,\) or"),
        ({"start": np.array([0, 1, 1])}, "start: .*expected a device that can run"),
        ({"order": "random"}, "generators: expected one for each of 2 episodes, got 0"),
        ({"start": "random"}, "generators: expected one for each of 2 episodes, got 0"),
    ],
)
def test_episodes_that_cannot_begin(choice: dict[str, object], message: str) -> None:
    environment = PlacementEnvironment(ListSchedule(partly_possible()))
    with pytest.raises(PolicyError, match=message):
        environment.reset(num_episodes=2, **choice)  # type: ignore[arg-type]


# What a step earns over another device that it might have chosen.


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
    network = Settings(node_features="costs-and-times", device_features="loads")
    policy = PlacementPolicy(num_devices, network, seed=seed)
    environment, episodes = sampled(evaluator, policy, 3, seed)
    rewarded, counterfactuals = run_counterfactuals(environment, episodes, generators(3, seed + 1))
    np.testing.assert_array_equal(rewarded.final, episodes.final)
    least_costs = []
    for row in range(3):
        placements = [rewarded.final[row]]
        for step in range(num_groups):
            placement = rewarded.final[row].copy()
            placement[rewarded.order[row, step]] = counterfactuals.devices[row, step]
            gain = penalised(evaluator, placement[None])[0] - rewarded.costs[row]
            assert rewarded.rewards[row, step] == pytest.approx(gain)
            if counterfactuals.devices[row, step] == rewarded.actions()[row, step]:
                assert rewarded.rewards[row, step] == 0
            else:
                placements.append(placement)
        assert counterfactuals.evaluations[row] == len(placements) - 1
        least_costs.append(penalised(evaluator, np.array(placements)).min())
    best = environment.best
    assert best.cost == min(least_costs) == penalised(evaluator, best.placement[None])[0]


@given(st.lists(st.floats(-12, 0), min_size=2, max_size=5), st.integers(0, 10**6))
def test_comparisons_weigh_as_much_as_those_of_independent_draws(
    logits: list[float], seed: int
) -> None:
    """On the mean over all pairs, for what is the same for a pair whichever was drawn first."""
    size = len(logits)
    p = np.exp(logits) / np.exp(logits).sum()
    gains = np.random.default_rng(seed).normal(size=(size, size))
    gains = gains + gains.T
    independent = sum(p[a] * p[b] * gains[a, b] for a in range(size) for b in range(size) if a != b)
    mean = 0.0
    for action in range(size):
        cumulative = 0.0
        rest = 1 - p[action] if p[action] < 0.9 else np.delete(p, action).sum()
        for device in range(size):
            if device == action:
                continue
            draw = np.array([cumulative + p[device] / rest / 2])
            cumulative += p[device] / rest
            log_probabilities = np.log(p)[None].astype(np.float32)
            drawn, weight = other_devices(log_probabilities, np.array([action]), draw)
            assert drawn == [device]
            mean += p[action] * p[device] / rest * weight[0] * gains[action, device]
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
