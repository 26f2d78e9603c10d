import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_graphs import GroupGraph, PlacementProblem
from placeto_policy import (
    GraphEmbedding,
    PlacementPolicy,
    Settings,
    States,
    preset,
)
from placeto_policy.earliest import concurrency, earliest_times
from placeto_policy.settings import EmbeddingName, MessageName, NodeFeaturesName
from placeto_policy.topology import topology_of_groups
from plain_embedding import plain_messages, plain_summaries
from random_states import random_problem, random_states
from scheduled_problems import problem_of

NAMES: tuple[EmbeddingName, ...] = ("message-passing", "simple-partitioner", "simple-aggregator")


def new_embedding(
    name: EmbeddingName,
    num_devices: int,
    *,
    rounds: int = 3,
    node_features: NodeFeaturesName = "costs",
    messages: MessageName = "residual",
) -> GraphEmbedding:
    chosen = Settings(
        embedding=name, message_rounds=rounds, node_features=node_features, messages=messages
    )
    return GraphEmbedding(num_devices, chosen, torch.Generator().manual_seed(1))


def edges_of(problem: PlacementProblem) -> torch.Tensor:
    return torch.from_numpy(problem.group_graph.edges.astype(np.int64))


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
    embedding = new_embedding(
        "message-passing",
        num_devices,
        rounds=rounds,
        node_features=node_features,
        messages=messages,
    )
    assert embedding.message_passing is not None
    features = states.features(node_features)
    weights = torch.randn(count, embedding.output_width, generator=torch.Generator().manual_seed(0))

    nodes = plain_messages(embedding.message_passing, features, edges_of(problem))
    own = nodes[:, states.current, torch.arange(count)].T
    relations = states.graph.relations
    summaries = plain_summaries(embedding.summaries, nodes, relations, states.current)
    expected = torch.cat([own, summaries], dim=1)
    parameters = list(embedding.parameters())
    expected_gradients = torch.autograd.grad(
        (expected * weights).sum(), parameters, allow_unused=True, materialize_grads=True
    )
    result = embedding(states)
    gradients = torch.autograd.grad(
        (result * weights).sum(), parameters, allow_unused=True, materialize_grads=True
    )

    torch.testing.assert_close(embedding.nodes(states), nodes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        scale = float(wanted.abs().max()) + 1e-6
        torch.testing.assert_close(gradient / scale, wanted / scale, rtol=1e-3, atol=1e-4)


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
        topology=topology_of_groups(relabelled, near, np.zeros((2, 9))),
        placement=states.placement[:, old_label],
        current=torch.from_numpy(new_label)[states.current],
        visited=states.visited[:, old_label],
    )
    embedding = new_embedding(name, 2)
    torch.testing.assert_close(embedding(moved), embedding(states))
    torch.testing.assert_close(embedding.nodes(moved), embedding.nodes(states)[:, old_label])


@pytest.mark.parametrize("name", NAMES)
def test_a_state_does_not_depend_on_the_others_of_its_batch(name: EmbeddingName) -> None:
    generator = np.random.default_rng(5)
    states = random_states(random_problem(7, 2, generator), 40, generator)
    embedding = new_embedding(name, 2)
    together = embedding(states)
    for row in (0, 17, 39):
        alone = States(
            topology=states.topology,
            placement=states.placement[row : row + 1],
            current=states.current[row : row + 1],
            visited=states.visited[row : row + 1],
        )
        torch.testing.assert_close(embedding(alone)[0], together[row])


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_shapes_and_parameter_counts(name: str, num_devices: int) -> None:
    """As section 3.2 describes them: layers as wide as their inputs, F = D + 4 features.

    With the features of times there are two more, with the schedule three more; with loads the
    network sees 12 numbers for each device, and with a lookahead one more.
    """

    def layer(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    def count(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    chosen = preset(name)
    width, loads = (num_devices + 4, 0) if name == "paper" else (num_devices + 9, 13 * num_devices)
    directions, functions, sets = 2, 2, 3
    messages = directions * functions * layer(width, width)
    embedding, partitioner, aggregator = (
        new_embedding(each, num_devices, rounds=8, node_features=chosen.node_features)
        for each in NAMES
    )
    assert count(embedding) == messages + sets * functions * layer(2 * width, 2 * width)
    assert count(partitioner) == sets * functions * layer(width, width)
    assert count(aggregator) == 2 * layer(width, width)

    policy = PlacementPolicy(num_devices, chosen)
    head = layer(8 * width + loads, chosen.hidden_units) + layer(chosen.hidden_units, num_devices)
    assert count(policy) == count(embedding) + head
    generator = np.random.default_rng(0)
    states = random_states(random_problem(5, num_devices, generator), 3, generator)
    assert embedding.nodes(states).shape == (2 * width, 5, 3)
    assert embedding(states).shape == (3, 8 * width)
    assert partitioner(states).shape == (3, 4 * width)
    assert aggregator(states).shape == (3, width)
    assert policy(states).shape == (3, num_devices)
    torch.testing.assert_close(policy(states).exp().sum(dim=1), torch.ones(3))


def test_a_device_that_cannot_run_the_group_has_no_probability() -> None:
    generator = np.random.default_rng(0)
    problem = problem_of(nx.DiGraph([("a", "b")]), num_devices=3)
    graph = problem.group_graph
    partly = GroupGraph(
        compute_time=np.array([[1.0, np.inf, 1.0], [np.inf, np.inf, 2.0]]),
        output_bytes=graph.output_bytes,
        parameter_bytes=graph.parameter_bytes,
        edges=graph.edges,
        edge_bytes=graph.edge_bytes,
    )
    states = States(
        topology=topology_of_groups(
            partly, concurrency(problem, earliest_times(problem)), np.zeros((3, 2))
        ),
        placement=torch.tensor([[0, 2], [2, 2]]),
        current=torch.tensor([0, 1]),
        visited=torch.tensor([[False, False], [True, False]]),
        lookahead=torch.zeros(2, 3),
        schedule=torch.zeros(2, 2, 3),
    )
    probabilities = PlacementPolicy(3, Settings(), seed=int(generator.integers(10)))(states).exp()
    assert (probabilities == 0).tolist() == [[False, True, False], [True, True, False]]
    assert states.graph.cost_features[:, 0].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_policy_is_close_to_uniform_in_large_graphs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    states = random_states(random_problem(60, 4, generator), 30, generator)
    log_probabilities = PlacementPolicy(4, seed=seed)(states)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1).mean()
    assert float(entropy.detach()) > 0.5 * np.log(4)
