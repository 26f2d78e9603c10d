"""The Gymnasium environment is one, and its episodes are those of the policy."""

import copy
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from placeto_graphs import EvaluationBatch, PlacementProblem
from placeto_policy import PolicyError, gym_environment
from placeto_policy.example import BusiestDevice, two_chains
from placeto_policy.gymnasium_environment import NAME


class WithoutSchedule:
    """An evaluator that says what placements cost, and nothing else."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self._whole = BusiestDevice(problem)

    def evaluate(self, placements: Any) -> EvaluationBatch:
        return self._whole.evaluate(placements)


def made(**options: Any) -> gymnasium.Env[Any, Any]:
    problem = two_chains()
    return gym_environment(problem, BusiestDevice(problem), **options)


@pytest.mark.parametrize("device_features", ["loads", "loads-and-lookahead"])
@pytest.mark.parametrize("evaluator", [BusiestDevice, WithoutSchedule])
def test_gymnasium_takes_it(device_features: str, evaluator: Any) -> None:
    problem = two_chains()
    environment = gym_environment(problem, evaluator(problem), device_features=device_features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        warnings.filterwarnings("ignore", message=".*Box.*(infinity|inf).*")
        check_env(environment)


def test_it_can_be_made_by_name() -> None:
    problem = two_chains()
    name = f"placeto_policy.gymnasium_environment:{NAME}"
    environment = gymnasium.make(name, problem=problem, evaluator=BusiestDevice(problem))
    observation, _ = environment.reset()
    assert environment.observation_space.contains(observation)


def test_rewards_add_up_to_the_part_of_the_cost_that_was_gained() -> None:
    environment = made()
    generator = np.random.default_rng(3)
    for _ in range(20):
        _, info = environment.reset()
        start, total, over = info["cost"], 0.0, False
        while not over:
            action = generator.integers(environment.action_space.n)  # type: ignore[attr-defined]
            observation, reward, over, truncated, info = environment.step(action)
            total += float(reward)
            assert not truncated
            assert environment.observation_space.contains(observation)
        placement = info["placement"]
        expected = BusiestDevice(two_chains()).evaluate(placement[None]).runtime[0]
        assert info["cost"] == expected
        assert total == pytest.approx((start - expected) / start)
        assert observation["placement"].tolist() == placement.tolist()


@pytest.mark.parametrize("length", [1, 3])
def test_an_observation_is_the_agents_to_keep(length: int) -> None:
    problem = two_chains(length)
    environment = gym_environment(problem, BusiestDevice(problem))
    observation, _ = environment.reset()
    over = False
    while not over:
        copied = copy.deepcopy(observation)
        newer, _, over, _, _ = environment.step(np.int64(1))
        for name, values in observation.items():
            np.testing.assert_array_equal(values, copied[name])
            assert not np.shares_memory(values, newer[name])
        observation = newer
    assert observation["placement"].tolist() == [1] * problem.num_groups


def test_an_agent_that_looks_ahead_finds_the_best_placement() -> None:
    environment = made(device_features="loads-and-lookahead")
    observation, _ = environment.reset()
    over = False
    while not over:
        lookahead = observation["devices"][-2:]
        observation, _, over, _, info = environment.step(int(lookahead.argmin()))
    assert info["cost"] == 3.0


def test_what_goes_wrong_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = made()
    with pytest.raises(PolicyError, match=r"^action: expected a device from 0 to 1, got 2$"):
        environment.step(2)
    for _ in range(6):
        environment.step(0)
    with pytest.raises(PolicyError, match=r"^step: expected a reset after the last group"):
        environment.step(0)
    with pytest.raises(PolicyError, match=r"^evaluator: expected one of the problem"):
        gym_environment(two_chains(), BusiestDevice(two_chains(4)))
    monkeypatch.setitem(sys.modules, "placeto_policy.gymnasium_environment", None)
    with pytest.raises(PolicyError, match=r"^gymnasium: expected it to be installed"):
        made()
