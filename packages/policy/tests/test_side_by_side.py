import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_policy import PlacementEnvironment, PlacementPolicy, Settings, preset
from placeto_policy.episodes import greedy, run_episodes, run_side_by_side
from placeto_policy.settings import EmbeddingName, MessageName
from random_states import random_problem, random_states
from scheduled_problems import ListSchedule

EMBEDDINGS = ("message-passing", "simple-partitioner", "simple-aggregator")


def policy_of(embedding: EmbeddingName, messages: MessageName, num_devices: int) -> PlacementPolicy:
    network = Settings(embedding=embedding, messages=messages, message_rounds=3, hidden_units=16)
    return learned(PlacementPolicy(num_devices, network, seed=1))


def learned(policy: PlacementPolicy) -> PlacementPolicy:
    """Return a policy with biases as any training leaves them: a group more would be seen."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from(EMBEDDINGS),
    st.sampled_from(["plain", "residual"]),
    st.integers(0, 2**32 - 1),
)
def test_side_by_side_or_one_after_the_other_devices_are_as_probable(
    sizes: list[tuple[int, int]],
    num_devices: int,
    embedding: EmbeddingName,
    messages: MessageName,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    parts = [
        random_states(random_problem(num_groups, num_devices, generator), count, generator)
        for num_groups, count in sizes
    ]
    policy = policy_of(embedding, messages, num_devices)
    with torch.no_grad():
        together = policy.side_by_side([part.graph for part in parts], [len(p) for p in parts])
        found = together(parts)
        apart = [policy(part) for part in parts]
    assert len(found) == len(parts)
    for one, other in zip(found, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset_name", ["default", "paper", "general"])
def test_episodes_of_several_graphs_are_those_of_each_alone(preset_name: str) -> None:
    generator = np.random.default_rng(0)
    network = preset(preset_name)
    policy = learned(PlacementPolicy(2, network, seed=3))
    environments = [
        PlacementEnvironment.for_policy(ListSchedule(random_problem(size, 2, generator)), network)
        for size in (5, 12, 12, 3)
    ]
    counts = (1, 3, 2, 1)

    def begin() -> None:
        for environment, count in zip(environments, counts, strict=True):
            environment.reset(num_episodes=count)

    begin()
    alone = [run_episodes(policy, environment, greedy) for environment in environments]
    begin()
    together = run_side_by_side(policy, environments, [greedy] * len(environments))
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.final, other.final)
        np.testing.assert_array_equal(one.costs, other.costs)
        np.testing.assert_allclose(one.rewards, other.rewards)
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-4)
