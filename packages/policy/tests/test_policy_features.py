"""What the policy sees of a graph and of a state, against the definitions taken literally."""

import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, GroupGraph, PlacementProblem, ScheduleBatch
from placeto_policy import (
    PlacementEnvironment,
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Settings,
    States,
    Trainer,
    graph_features_of,
)
from placeto_policy.earliest import NEAR
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.example import BusiestDevice
from placeto_policy.graph_features import GraphFeatures, graph_features_of_groups
from placeto_policy.schedules import GroupSchedules
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName
from placeto_policy.states import LOADS, load_width
from random_states import random_problem
from scheduled_problems import K80_BYTES, ListSchedule, problem_of, two_chains

SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 10)


def random_graph(seed: int, num_groups: int, num_devices: int = 2) -> GroupGraph:
    """Return a random graph whose groups have weights and outputs of random sizes."""
    generator = np.random.default_rng(seed)
    graph = random_problem(num_groups, num_devices, generator).group_graph
    return GroupGraph(
        compute_time=graph.compute_time * generator.uniform(0.5, 2.0, graph.compute_time.shape),
        output_bytes=generator.integers(0, 10**6, num_groups),
        parameter_bytes=generator.integers(0, 10**6, num_groups),
        edges=graph.edges,
        edge_bytes=graph.edge_bytes,
    )


def random_nearness(seed: int, num_groups: int) -> NDArray[np.float64]:
    """Return float64[S, G, G] of which no two groups have the same."""
    near = np.random.default_rng(seed).random((len(NEAR), num_groups, num_groups))
    near += near.swapaxes(1, 2)
    near[:, np.arange(num_groups), np.arange(num_groups)] = 0.0
    return near


def random_memory(seed: int, num_groups: int, num_devices: int = 2) -> NDArray[np.float64]:
    """Return float64[D, G] of which no two groups, and no two devices, have the same."""
    return np.random.default_rng(seed).random((num_devices, num_groups))


def random_graph_features(seed: int, num_groups: int, num_devices: int = 2) -> GraphFeatures:
    return graph_features_of_groups(
        random_graph(seed, num_groups, num_devices),
        random_nearness(seed, num_groups),
        random_memory(seed, num_groups, num_devices),
    )


def longest_paths(graph: GroupGraph) -> NDArray[np.float64]:
    """Return float64[G, 2], the longest path before each group and from it on, by networkx."""
    seconds = graph.compute_time.mean(axis=1)
    network = nx.DiGraph()
    network.add_nodes_from(range(graph.num_groups))
    network.add_edges_from(graph.edges.tolist())
    paths = np.zeros((graph.num_groups, 2))
    for group in network:
        path_before = network.subgraph(nx.ancestors(network, group) | {group}).copy()
        for source, target in path_before.edges:
            path_before[source][target]["weight"] = seconds[source]
        path_from = network.subgraph(nx.descendants(network, group) | {group}).copy()
        for source, target in path_from.edges:
            path_from[source][target]["weight"] = seconds[target]
        paths[group, 0] = nx.dag_longest_path_length(path_before)
        paths[group, 1] = seconds[group] + nx.dag_longest_path_length(path_from)
    return paths


def test_the_features_of_a_state() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", seconds=1.0)
    graph.add_node("b", seconds=4.0)
    graph.add_edge("a", "b", bytes=10)
    states = States(
        graph_features=graph_features_of(problem_of(graph)),
        placement=torch.tensor([[0, 1]]),
        current=torch.tensor([1]),
        visited=torch.tensor([[True, False]]),
    )
    time_bytes_devices_current_visited = [[0.25, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 0]]
    assert states.features()[:, :, 0].T.tolist() == time_bytes_devices_current_visited
    with_times = torch.tensor(time_bytes_devices_current_visited)
    before_and_from_on = torch.tensor([[0.0, 1.0], [0.2, 0.8]])  # parts of five seconds
    torch.testing.assert_close(
        states.features("costs-and-times")[:, :, 0].T,
        torch.cat([with_times[:, :2], before_and_from_on, with_times[:, 2:]], dim=1),
    )


@settings(max_examples=40)
@given(SEEDS, SIZES)
def test_path_features_are_the_longest_paths(seed: int, num_groups: int) -> None:
    graph = random_graph(seed, num_groups)
    paths = longest_paths(graph)
    longest = paths.sum(axis=1).max()
    features = random_graph_features(seed, num_groups).path_features.numpy()
    np.testing.assert_allclose(features, paths / longest, rtol=1e-5, atol=1e-6)
    assert features.sum(axis=1).max() == pytest.approx(1.0)


@settings(max_examples=25)
@given(SEEDS, SIZES)
def test_shares_affinity_and_vicinity_by_their_definitions(seed: int, num_groups: int) -> None:
    graph = random_graph(seed, num_groups)
    near = random_nearness(seed, num_groups)
    memory = random_memory(seed, num_groups)
    graph_features = graph_features_of_groups(graph, near, memory)
    seconds = graph.compute_time.mean(axis=1)
    np.testing.assert_allclose(graph_features.shares, seconds / seconds.sum(), rtol=1e-5)
    np.testing.assert_allclose(graph_features.memory, memory, rtol=1e-5)

    traffic = {
        frozenset(edge): sent
        for edge, sent in zip(graph.edges.tolist(), graph.edge_bytes.tolist(), strict=True)
    }
    for v in range(num_groups):
        traffic_of_group = [float(traffic.get(frozenset((v, u)), 0)) for u in range(num_groups)]
        rows = [(graph_features.affinity[v], traffic_of_group)]
        rows += [
            (graph_features.vicinity[scale, v], near[scale, v].tolist())
            for scale in range(len(NEAR))
        ]
        for row, amounts in rows:
            expected = np.array(amounts) / (sum(amounts) or 1.0)
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=25)
@given(SEEDS, SIZES, st.integers(1, 4))
def test_loads_are_sums_over_the_other_groups_of_a_device(
    seed: int, num_groups: int, num_devices: int
) -> None:
    graph_features = random_graph_features(seed, num_groups, num_devices)
    generator = np.random.default_rng(seed)
    placement = generator.integers(0, num_devices, (3, num_groups))
    visited = generator.random((3, num_groups)) < 0.5
    current = generator.integers(0, num_groups, 3)
    states = States(
        graph_features=graph_features,
        placement=torch.from_numpy(placement),
        current=torch.from_numpy(current),
        visited=torch.from_numpy(visited),
    )
    expected = np.zeros((3, load_width(num_devices)))
    for state in range(3):
        v = current[state]
        for u in range(num_groups):
            if u == v:
                continue
            fractions = (
                graph_features.shares[u],
                graph_features.memory[placement[state, u], u],
                graph_features.affinity[v, u],
                *graph_features.vicinity[:, v, u],
            )
            for index, fraction in enumerate(fractions):
                column = 2 * (LOADS * placement[state, u] + index)
                expected[state, column] += fraction
                expected[state, column + 1] += fraction * visited[state, u]
    np.testing.assert_allclose(states.loads(), expected, rtol=1e-4, atol=1e-6)


def test_nothing_is_divided_by_zero() -> None:
    """Groups that take no time and move no bytes, and a group that is alone."""
    idle = GroupGraph(
        compute_time=np.zeros((3, 2)),
        output_bytes=np.zeros(3, np.int64),
        parameter_bytes=np.zeros(3, np.int64),
        edges=np.array([[0, 1]], np.int32),
        edge_bytes=np.zeros(1, np.int64),
    )
    alone = random_graph(seed=0, num_groups=1)
    for graph in (idle, alone):
        near = np.zeros((len(NEAR), graph.num_groups, graph.num_groups))
        memory = np.zeros((graph.compute_time.shape[1], graph.num_groups))
        graph_features = graph_features_of_groups(graph, near, memory)
        for name in ("cost_features", "path_features", "shares", "affinity", "vicinity"):
            assert torch.isfinite(getattr(graph_features, name)).all(), name
        states = States(
            graph_features=graph_features,
            placement=torch.zeros(1, graph.num_groups, dtype=torch.int64),
            current=torch.tensor([0]),
            visited=torch.zeros(1, graph.num_groups, dtype=torch.bool),
            lookahead=torch.zeros(1, 2),
            schedule=torch.zeros(1, graph.num_groups, 3),
        )
        assert not states.loads().any()
        assert torch.isfinite(PlacementPolicy(2, Settings())(states)).all()


# What a policy sees of when groups are at work, as they are placed now.


SCHEDULE: NodeFeaturesName = "costs-times-and-schedule"


class Scheduled(BusiestDevice):
    """Gives each group a memory of its own."""

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        batch = super().evaluate(placements)
        on_device = placements[:, :, None] == np.arange(self.problem.num_devices)
        gigabytes = np.arange(1, self.problem.num_groups + 1)
        memory = (on_device * gigabytes[:, None]).sum(axis=1) * 10**9
        return EvaluationBatch(runtime=batch.runtime, peak_memory=memory)


def test_each_step_is_shown_the_schedule_of_the_placement_before_it() -> None:
    """Two chains of three groups of a second each; group g takes g + 1 GB."""
    environment = PlacementEnvironment(Scheduled(two_chains()), node_features=SCHEDULE)
    environment.reset(num_episodes=1, order=np.arange(6))
    first = environment.states().features(SCHEDULE)[-3:, :, 0]
    # a0, b0, a1, ... on one device: in topological order, six seconds long.
    order = np.argsort(environment.graph_features.order)
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
    for steps, states in episodes.states(np.arange(num_groups)):
        log_probabilities = torch.from_numpy(
            episodes.log_probabilities[:, steps].swapaxes(0, 1).copy()
        )
        torch.testing.assert_close(
            policy(states), log_probabilities.flatten(0, 1), rtol=1e-4, atol=1e-5
        )


def test_only_placements_that_changed_are_scheduled_again() -> None:
    scheduled = []

    class Counted(Scheduled):
        def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
            scheduled.append(len(placements))
            return super().schedule(placements)

    evaluator = Counted(two_chains())
    schedules = GroupSchedules(evaluator)
    placements = np.zeros((3, 6), np.int32)
    for row, device in ((0, 0), (0, 0), (1, 1), (2, 1)):
        placements[row, 0] = device
        expected = GroupSchedules(Scheduled(evaluator.problem)).features(placements)
        np.testing.assert_array_equal(schedules.features(placements), expected)
    schedules.features(placements[:2])
    assert scheduled == [3, 1, 1, 2]


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
            schedule = super().schedule(placements)
            object.__setattr__(schedule, field, value)
            return schedule

    environment = PlacementEnvironment(Wrong(two_chains()), node_features=SCHEDULE)
    environment.reset(num_episodes=1)
    with pytest.raises(PolicyError, match=re.escape(message)):
        environment.states()
