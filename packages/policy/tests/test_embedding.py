import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import GroupGraph
from placeto_policy import (
    GraphEmbedding,
    PlacementEnvironment,
    PlacementPolicy,
    Settings,
    States,
    preset,
)
from placeto_policy.earliest import concurrency, earliest_times
from placeto_policy.embedding.message_passing import MessagePassing, PooledSummaries
from placeto_policy.episodes import greedy, run_episodes, run_side_by_side
from placeto_policy.graph_features import graph_features_of_groups
from placeto_policy.settings import EmbeddingName, MessageName, NodeFeaturesName
from random_states import random_problem, random_states
from scheduled_problems import ListSchedule

NAMES: tuple[EmbeddingName, ...] = ("message-passing", "simple-partitioner", "simple-aggregator")


def new_embedding(
    name: EmbeddingName,
    num_devices: int,
    rounds: int = 3,
    node_features: NodeFeaturesName = "costs",
    messages: MessageName = "residual",
) -> GraphEmbedding:
    chosen = Settings(
        embedding=name, message_rounds=rounds, node_features=node_features, messages=messages
    )
    return GraphEmbedding(num_devices, chosen, torch.Generator().manual_seed(1))


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 70),
    st.integers(0, 3),
    st.sampled_from(["plain", "residual"]),
    st.sampled_from(["costs", "costs-and-times", "costs-times-and-schedule"]),
)
def test_products_of_whole_batches_agree_with_the_formula(
    seed: int,
    num_groups: int,
    num_devices: int,
    count: int,
    rounds: int,
    messages: MessageName,
    node_features: NodeFeaturesName,
) -> None:
    generator = np.random.default_rng(seed)
    problem = random_problem(num_groups, num_devices, generator)
    states = random_states(problem, count, generator)
    embedding = new_embedding("message-passing", num_devices, rounds, node_features, messages)
    assert embedding.message_passing is not None
    features = states.features(node_features)
    weights = torch.randn(count, embedding.output_width, generator=torch.Generator().manual_seed(0))

    nodes = plain_messages(embedding.message_passing, features, problem.group_graph.edges)
    current_nodes = nodes[:, states.current, torch.arange(count)].T
    relations = states.single_graph.relations
    summaries = plain_summaries(embedding.summaries, nodes, relations, states.current)
    expected = torch.cat([current_nodes, summaries], dim=1)
    result = embedding(states)
    parameters = list(embedding.parameters())
    expected_gradients, gradients = (
        torch.autograd.grad(
            (output * weights).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        for output in (expected, result)
    )

    torch.testing.assert_close(embedding.nodes(states), nodes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        scale = float(expected_gradient.abs().max()) + 1e-6
        torch.testing.assert_close(
            gradient / scale, expected_gradient / scale, rtol=1e-3, atol=1e-4
        )


def test_the_simple_aggregator_sums_over_all_groups() -> None:
    generator = np.random.default_rng(5)
    states = random_states(random_problem(7, 2, generator), 4, generator)
    embedding = new_embedding("simple-aggregator", 2)
    one_set = torch.zeros(7, 7, dtype=torch.int8)
    expected = plain_summaries(embedding.summaries, states.features(), one_set, states.current)
    torch.testing.assert_close(embedding(states), expected)


@pytest.mark.parametrize("name", NAMES)
def test_relabelling_groups_changes_nothing(name: EmbeddingName) -> None:
    generator = np.random.default_rng(3)
    problem = random_problem(9, 2, generator)
    states = random_states(problem, 5, generator)
    new_label = generator.permutation(9)
    old_label = torch.from_numpy(np.argsort(new_label))
    graph = problem.group_graph
    relabelled = GroupGraph(
        compute_time=graph.compute_time[old_label],
        output_bytes=graph.output_bytes[old_label],
        parameter_bytes=graph.parameter_bytes[old_label],
        edges=new_label[graph.edges].astype(np.int32),
        edge_bytes=graph.edge_bytes,
    )
    near = concurrency(problem, earliest_times(problem))[:, old_label][:, :, old_label]
    moved = States(
        graph_features=graph_features_of_groups(relabelled, near, np.zeros((2, 9))),
        placement=states.placement[:, old_label],
        current=torch.from_numpy(new_label)[states.current],
        visited=states.visited[:, old_label],
    )
    embedding = new_embedding(name, 2)
    torch.testing.assert_close(embedding(moved), embedding(states))
    torch.testing.assert_close(embedding.nodes(moved), embedding.nodes(states)[:, old_label])


@pytest.mark.parametrize(("name", "num_devices", "width"), [("paper", 4, 8), ("default", 2, 11)])
def test_parameters_are_as_many_as_section_3_2_says(
    name: str, num_devices: int, width: int
) -> None:
    """Layers are as wide as their inputs, of ``width`` features."""

    def layer(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    def count(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    chosen = preset(name)
    embedding, partitioner, aggregator = (
        new_embedding(embedding_name, num_devices, rounds=8, node_features=chosen.node_features)
        for embedding_name in NAMES
    )
    messages, both = 2 * 2 * layer(width, width), layer(2 * width, 2 * width)
    assert count(embedding) == messages + 3 * 2 * both
    assert count(partitioner) == 3 * 2 * layer(width, width)
    assert count(aggregator) == 2 * layer(width, width)
    policy = PlacementPolicy(num_devices, chosen)
    loads = 0 if name == "paper" else 13 * num_devices
    head = layer(8 * width + loads, chosen.hidden_units) + layer(chosen.hidden_units, num_devices)
    assert count(policy) == count(embedding) + head


@pytest.mark.parametrize("seed", range(5))
def test_the_first_policy_is_close_to_uniform_in_large_graphs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    states = random_states(random_problem(60, 4, generator), 30, generator)
    log_probabilities = PlacementPolicy(4, seed=seed)(states)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1).mean()
    assert float(entropy.detach()) > 0.5 * np.log(4)


def plain_messages(
    passing: MessagePassing, features: torch.Tensor, edges: NDArray[np.int32]
) -> torch.Tensor:
    """Return [2 F, G, N] for features [F, G, N] and edges [M, 2]."""
    num_groups = features.shape[1]
    is_residual = passing.messages == "residual"
    hears = torch.zeros(num_groups, num_groups)
    factor = min(1.0, num_groups / max(1, len(edges))) if is_residual else 1.0
    hears[edges[:, 1].tolist(), edges[:, 0].tolist()] = factor
    start = features.permute(2, 1, 0)
    results = []
    for direction, adjacency in enumerate((hears, hears.T)):
        nodes = start
        for _ in range(passing.rounds):
            linear = nodes @ passing.message_weight[direction].T + passing.message_bias[direction]
            heard = adjacency @ torch.relu(linear)
            updates = torch.relu(
                heard @ passing.update_weight[direction].T + passing.update_bias[direction]
            )
            nodes = start + updates if is_residual else updates
        results.append(nodes.permute(2, 1, 0))
    return torch.cat(results)


def plain_summaries(
    pooled: PooledSummaries, nodes: torch.Tensor, sets: torch.Tensor, current: torch.Tensor
) -> torch.Tensor:
    """Return [N, S W] for nodes [W, G, N]."""
    by_state = nodes.permute(2, 1, 0)
    results = []
    for index in range(len(pooled.each_bias)):
        outputs = torch.relu(by_state @ pooled.each_weight[index].T + pooled.each_bias[index])
        inside = (sets[current] == index).to(outputs.dtype)
        total = (outputs * inside[:, :, None]).sum(dim=1)
        if pooled.messages == "residual":
            total = total / nodes.shape[1] ** 0.5
        results.append(torch.relu(total @ pooled.whole_weight[index].T + pooled.whole_bias[index]))
    return torch.cat(results, dim=1)


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
    st.sampled_from(NAMES),
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
    states_of_graphs = [
        random_states(random_problem(num_groups, num_devices, generator), count, generator)
        for num_groups, count in sizes
    ]
    network = Settings(embedding=embedding, messages=messages, message_rounds=3, hidden_units=16)
    policy = learned(PlacementPolicy(num_devices, network, seed=1))
    with torch.no_grad():
        policy_on_graphs = policy.side_by_side(
            [states.single_graph for states in states_of_graphs],
            [len(states) for states in states_of_graphs],
        )
        log_probabilities = policy_on_graphs(states_of_graphs)
        expected = [policy(states) for states in states_of_graphs]
    assert len(log_probabilities) == len(states_of_graphs)
    for together, alone in zip(log_probabilities, expected, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset_name", ["default", "paper", "general"])
def test_episodes_of_several_graphs_are_those_of_each_alone(preset_name: str) -> None:
    generator = np.random.default_rng(0)
    network = preset(preset_name)
    policy = learned(PlacementPolicy(2, network, seed=3))
    environments = [
        PlacementEnvironment.for_policy(ListSchedule(random_problem(size, 2, generator)), network)
        for size in (5, 12, 12, 3)
    ]
    episodes_alone = []
    for environment, count in zip(environments, (1, 3, 2, 1), strict=True):
        environment.reset(num_episodes=count)
        episodes_alone.append(run_episodes(policy, environment, greedy))
        environment.reset(num_episodes=count)
    episodes_together = run_side_by_side(policy, environments, [greedy] * len(environments))
    for episodes, expected in zip(episodes_together, episodes_alone, strict=True):
        np.testing.assert_array_equal(episodes.final, expected.final)
        np.testing.assert_array_equal(episodes.costs, expected.costs)
        np.testing.assert_allclose(episodes.rewards, expected.rewards)
        np.testing.assert_allclose(
            episodes.log_probabilities, expected.log_probabilities, atol=1e-4
        )
