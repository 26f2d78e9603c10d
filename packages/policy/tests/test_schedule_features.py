"""What a policy sees of when groups are at work, as they are placed now."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, PlacementProblem, ScheduleBatch
from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Settings,
    Trainer,
)
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.example import BusiestDevice
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName
from random_states import random_problem
from scheduled_problems import K80_BYTES, ListSchedule, two_chains

SCHEDULE: NodeFeaturesName = "costs-times-and-schedule"


class Scheduled(BusiestDevice):
    """Gives each group a memory of its own."""

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        batch = super().evaluate(placements)
        here = placements[:, :, None] == np.arange(self.problem.num_devices)
        gigabytes = np.arange(1, self.problem.num_groups + 1)
        memory = (here * gigabytes[:, None]).sum(axis=1) * 10**9
        return EvaluationBatch(runtime=batch.runtime, peak_memory=memory)


def test_each_step_is_shown_the_schedule_of_the_placement_before_it() -> None:
    """Two chains of three groups of a second each; group g takes g + 1 GB."""
    environment = PlacementEnvironment(Scheduled(two_chains()), node_features=SCHEDULE)
    environment.reset(num_episodes=1, order=np.arange(6))
    first = environment.states().features(SCHEDULE)[-3:, :, 0]
    # a0, b0, a1, ... on one device: in topological order, six seconds long.
    order = np.argsort(environment.topology.order)
    np.testing.assert_allclose(first[0], order / 6, rtol=1e-6)
    np.testing.assert_allclose(first[1], (order + 1) / 6, rtol=1e-6)
    np.testing.assert_allclose(first[2], np.full(6, 21e9 / K80_BYTES), rtol=1e-6)
    for device in (1, 1, 1):
        environment.step(np.array([device]))
    later = environment.states().features(SCHEDULE)[-3:, :, 0]
    np.testing.assert_allclose(later[0], [0, 1 / 3, 2 / 3, 0, 1 / 3, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(later[1], [1 / 3, 2 / 3, 1, 1 / 3, 2 / 3, 1], rtol=1e-6)
    full = np.array([1 + 2 + 3] * 3 + [4 + 5 + 6] * 3) * 1e9 / K80_BYTES
    np.testing.assert_allclose(later[2], full, rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(["loads", "loads-and-lookahead"]))
def test_what_is_learned_from_is_what_the_steps_saw(
    seed: int, num_groups: int, device_features: DeviceFeaturesName
) -> None:
    generator = np.random.default_rng(seed)
    chosen = Settings(node_features=SCHEDULE, device_features=device_features)
    policy = PlacementPolicy(3, chosen, seed=seed)
    environment = PlacementEnvironment(
        Scheduled(random_problem(num_groups, 3, generator)),
        device_features=device_features,
        node_features=SCHEDULE,
    )
    generators = [np.random.default_rng((seed, episode)) for episode in range(4)]
    environment.reset(num_episodes=4, order="random", start="random", generators=generators)
    episodes = run_episodes(policy, environment, sampling(generators, num_groups))
    for some, states in episodes.states(np.arange(num_groups)):
        known = torch.from_numpy(episodes.log_probabilities[:, some].swapaxes(0, 1).copy())
        torch.testing.assert_close(policy(states), known.flatten(0, 1), rtol=1e-4, atol=1e-5)


class OnlyEvaluates:
    """Does not say when groups are at work."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.evaluate = ListSchedule(problem).evaluate


def test_an_evaluator_without_a_schedule_is_refused() -> None:
    evaluator = OnlyEvaluates(two_chains())
    policy = PlacementPolicy(2, Settings(node_features=SCHEDULE))
    with pytest.raises(PolicyError, match=re.escape("a SchedulingEvaluator")):
        PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator)
    with pytest.raises(PolicyError, match="got OnlyEvaluates; 'costs-and-times' needs none"):
        Trainer([evaluator], Settings())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("start", np.zeros((1, 5)), "evaluator: expected start of shape (1, 6), got (1, 5)"),
        ("end", None, "evaluator: expected end of shape (1, 6), got None"),
        ("runtime", np.array([np.inf]), "finite numbers, got others in runtime"),
    ],
)
def test_a_wrong_schedule_is_named(field: str, value: Any, message: str) -> None:
    class Wrong(Scheduled):
        def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
            right = super().schedule(placements)
            object.__setattr__(right, field, value)
            return right

    environment = PlacementEnvironment(Wrong(two_chains()), node_features=SCHEDULE)
    environment.reset(num_episodes=1)
    with pytest.raises(PolicyError, match=re.escape(message)):
        environment.states()
