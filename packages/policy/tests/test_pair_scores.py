"""Policies for any number and kind of devices, to which the numbers of devices say nothing."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    Grouping,
    PlacementProblem,
    from_networkx,
    micro_batched_problem,
    parse_cluster,
)
from placeto_policy import PlacementPolicy, PolicyError, Settings, States, graph_features_of, preset
from placeto_policy.device_costs import traffic
from placeto_policy.embedding.pairs import (
    PairScores,
    groups_on_devices,
    nearness,
    pair_features,
)
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import greedy, run_episodes
from placeto_policy.states import NOWHERE
from random_states import random_problem, random_states
from scheduled_problems import ListSchedule

GENERAL = replace(preset("general"), hidden_units=16, message_rounds=2)
SEEDS = st.integers(0, 2**32 - 1)


def random_cluster(num_devices: int, generator: np.random.Generator) -> Cluster:
    """Return devices of different memory, between which nothing is equal."""
    cluster = parse_cluster(f"{num_devices}xk80")
    apart = ~np.eye(num_devices, dtype=bool)
    return replace(
        cluster,
        devices=tuple(
            replace(device, memory_bytes=int(generator.integers(10**9, 10**10)))
            for device in cluster.devices
        ),
        bandwidth=np.where(apart, generator.uniform(1e9, 1e10, apart.shape), np.inf),
        latency=np.where(apart, generator.uniform(0.0, 0.1, apart.shape), 0.0),
    )


def mixed_problem(
    num_groups: int, num_devices: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a random graph on unequal devices, each of which refuses some groups."""
    problem = random_problem(num_groups, num_devices, generator)
    times = problem.compute_time * generator.uniform(0.5, 4.0, problem.compute_time.shape)
    refused = generator.random(times.shape) < 0.2
    refused[refused.all(axis=1)] = False
    times = np.where(refused, np.inf, times)
    cluster = random_cluster(num_devices, generator)
    return replace(problem, cluster=cluster, compute_time=times)


def relabelled(problem: PlacementProblem, order: NDArray[np.int64]) -> PlacementProblem:
    """Return a problem whose device i is the device order[i] of another."""
    cluster = problem.cluster
    square = np.ix_(order, order)
    new_number = np.argsort(order)
    link = cluster.link[square]
    return replace(
        problem,
        cluster=replace(
            cluster,
            devices=tuple(
                replace(cluster.devices[old], name=f"device:{new}") for new, old in enumerate(order)
            ),
            bandwidth=cluster.bandwidth[square],
            latency=cluster.latency[square],
            link=np.where(link >= 0, new_number[link], -1),
        ),
        compute_time=problem.compute_time[:, order],
    )


def decided_policy(seed: int = 0) -> PlacementPolicy:
    """Return a policy that is far from uniform."""
    policy = PlacementPolicy(settings=GENERAL, seed=seed)
    with torch.no_grad():
        dict(policy.named_parameters())["scores.score.weight"].mul_(100)
    return policy


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 5))
def test_devices_that_are_relabelled_get_their_probabilities_relabelled(
    seed: int, num_devices: int
) -> None:
    generator = np.random.default_rng(seed)
    problem = mixed_problem(7, num_devices, generator)
    states = partial_states(problem, 4, generator)
    order = generator.permutation(num_devices)
    new_number = torch.from_numpy(np.append(np.argsort(order), NOWHERE))  # NOWHERE is the last
    relabelled_states = replace(
        states,
        graph_features=graph_features_of(relabelled(problem, order)),
        placement=new_number[states.placement],
    )
    policy = decided_policy(seed % 100)
    with torch.no_grad():
        probabilities, relabelled_probabilities = (
            policy(states).exp(),
            policy(relabelled_states).exp(),
        )
    torch.testing.assert_close(
        relabelled_probabilities, probabilities[:, order], rtol=1e-3, atol=1e-5
    )


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 4))
def test_numbers_of_pairs_are_what_loops_over_groups_say(seed: int, num_devices: int) -> None:
    generator = np.random.default_rng(seed)
    problem = mixed_problem(6, num_devices, generator)
    states = partial_states(problem, 3, generator)
    on_device = groups_on_devices(states)
    features = pair_features(states, on_device, (on_device * states.single_graph.memory).sum(dim=2))
    for state in range(3):
        for device in range(num_devices):
            expected = np.concatenate(
                [
                    plain_loads(problem, states, state, device),
                    plain_transfers(problem, states, state, device),
                    plain_pair(problem, states, state, device),
                    plain_left(problem, states, state),
                ]
            )
            np.testing.assert_allclose(features[state, device], expected, rtol=2e-4, atol=1e-5)


def partial_states(problem: PlacementProblem, count: int, generator: np.random.Generator) -> States:
    """Return states with groups where they can run; about a third are not placed yet."""
    states = random_states(problem, count, generator)
    keys = (
        generator.random((count, *states.single_graph.allowed.shape))
        * states.single_graph.allowed.numpy()
    )
    hidden = torch.from_numpy(generator.random(states.placement.shape) < 1 / 3)
    return replace(
        states, placement=torch.from_numpy(keys.argmax(axis=2)).masked_fill(hidden, NOWHERE)
    )


def places(states: States, state: int) -> dict[int, int]:
    """Return the device of each group that is placed; the current one is not."""
    device_of_group = dict(enumerate(states.placement[state].tolist()))
    del device_of_group[int(states.current[state])]
    return {group: device for group, device in device_of_group.items() if device != NOWHERE}


def seconds_of_groups(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G, D], with the overhead of each op that takes any time."""
    seconds = np.zeros((problem.num_groups, problem.num_devices))
    for op, group in enumerate(problem.grouping.group_of):
        for device, kind in enumerate(problem.cluster.devices):
            seconds_of_op = problem.compute_time[op, device]
            seconds[group, device] += seconds_of_op + (
                kind.op_overhead if seconds_of_op > 0 else 0.0
            )
    return seconds


def mean_group(problem: PlacementProblem) -> float:
    times = seconds_of_groups(problem)
    return float(np.mean([row[np.isfinite(row)].mean() for row in times]))


def transfers(
    problem: PlacementProblem, place: dict[int, int]
) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield sender, receiver, link, bytes and seconds of what goes from device to device."""
    cluster, graph, group_of = problem.cluster, problem.graph, problem.grouping.group_of
    read = {(int(t), int(group_of[c])) for t, c in graph.edges}
    for tensor, receiver in sorted(read):
        sender = int(group_of[graph.tensor_producer[tensor]])
        if sender == receiver or sender not in place or receiver not in place:
            continue
        source, target = place[sender], place[receiver]
        if source != target:
            size = int(graph.tensor_bytes[tensor])
            seconds = size / cluster.bandwidth[source, target] + cluster.latency[source, target]
            seconds += cluster.devices[source].transfer_overhead
            yield sender, receiver, int(cluster.link[source, target]), size, seconds


def plain_loads(problem: PlacementProblem, states: States, state: int, device: int) -> list[float]:
    groups = [group for group, place in places(states, state).items() if place == device]
    graph, current = states.single_graph, int(states.current[state])
    work = seconds_of_groups(problem)[:, device] / (mean_group(problem) * problem.num_groups)
    return [
        sum(float(graph.affinity[current, group]) for group in groups),
        *(sum(float(near[current, group]) for group in groups) for near in graph.vicinity),
        sum(work[group] for group in groups if np.isfinite(work[group])),
        sum(float(graph.memory[device, group]) for group in groups),
    ]


def plain_transfers(
    problem: PlacementProblem, states: States, state: int, device: int
) -> list[float]:
    cluster, current = problem.cluster, int(states.current[state])
    placed = places(states, state)
    count = problem.num_devices
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    median = float(np.median([1 / cluster.bandwidth[pair] for pair in pairs])) if pairs else 0.0
    unit = mean_group(problem)
    busy: dict[int, float] = defaultdict(float)
    for *_, link, _, seconds in transfers(problem, placed):
        busy[link] += seconds / unit
    added: dict[int, float] = defaultdict(float)
    sent = 0.0
    for sender, receiver, link, size, seconds in transfers(problem, {**placed, current: device}):
        if current in (sender, receiver):
            added[link] += seconds / unit
            sent += size * median / unit
    neighbours = [
        int(a + b - current) for a, b in problem.group_graph.edges.tolist() if current in (a, b)
    ]
    num_neighbours_there = sum(placed.get(group) == device for group in neighbours)
    share = count / problem.num_groups
    total = sum(added.values())
    return [
        np.log1p(total),
        np.log1p(sent),
        num_neighbours_there / max(1, len(neighbours)),
        np.log1p(share * max((busy[link] + added[link] for link in added), default=0.0)),
        np.log1p(share * sum(added[link] * busy[link] for link in added) / max(total, 1e-30)),
    ]


def plain_left(problem: PlacementProblem, states: States, state: int) -> list[float]:
    placed = places(states, state)
    memory, shares = states.single_graph.memory.double().numpy(), states.single_graph.shares.numpy()
    unplaced = [group for group in range(problem.num_groups) if group not in placed]
    free_bytes = sum(
        limit * max(0.0, 1.0 - sum(memory[device, g] for g in placed if placed[g] == device))
        for device, limit in enumerate(problem.cluster.memory_bytes)
    )
    needed_bytes = sum(memory[0, group] for group in unplaced) * problem.cluster.memory_bytes[0]
    needed_fraction = 4.0 if needed_bytes >= 4 * free_bytes else needed_bytes / free_bytes
    return [float(sum(shares[group] for group in unplaced)), needed_fraction]


def test_a_device_is_compared_with_all_that_can_run_the_group() -> None:
    generator = np.random.default_rng(7)
    problem = mixed_problem(6, 4, generator)
    states = partial_states(problem, 5, generator)
    policy = decided_policy()
    network = policy.scores
    assert isinstance(network, PairScores)
    graph = states.single_graph
    on_device = groups_on_devices(states)
    used_memory = (on_device * graph.memory).sum(dim=2)
    embedded = network.embedded_groups(graph)
    related = torch.relu(network.related(embedded)).view(6, 3, -1) / 6**0.5
    features = network._device_features(states, on_device, used_memory, embedded, related)
    near = nearness(states, on_device)
    assert not graph.allowed[states.current].all()
    for state, group in enumerate(states.current.tolist()):
        devices = graph.allowed[group].nonzero().flatten().tolist()
        units = torch.stack([network_of_device(network, features[state, d]) for d in devices])
        scores = network(states)[state]
        for device, own_units in zip(devices, units, strict=True):
            compared = torch.cat([own_units, units.mean(dim=0), units.amax(dim=0)])
            full = used_memory[state, device] + graph.memory[device, group]
            expected = network.score(torch.relu(network.compare(compared)))
            expected = expected + 1e-3 * near[state, device] - 300 * (full - 1).clamp(0.0, 4.0)
            torch.testing.assert_close(scores[device], expected[0], rtol=1e-4, atol=1e-5)


def network_of_device(network: PairScores, features: torch.Tensor) -> torch.Tensor:
    return torch.relu(network.device_again(torch.relu(network.device(features))))


def test_links_whose_bytes_are_mostly_free_have_finite_features() -> None:
    problem = random_problem(6, 3, np.random.default_rng(0))
    bandwidth = np.full((3, 3), np.inf)
    bandwidth[0, 1] = bandwidth[1, 0] = 1e9
    cluster = replace(problem.cluster, bandwidth=bandwidth)
    costs = graph_features_of(replace(problem, cluster=cluster)).device_costs
    assert costs is not None
    for field in fields(costs):
        assert torch.isfinite(torch.as_tensor(getattr(costs, field.name))).all(), field.name


def plain_pair(problem: PlacementProblem, states: States, state: int, device: int) -> list[float]:
    current = int(states.current[state])
    times = seconds_of_groups(problem)[current]
    groups = [group for group, place in places(states, state).items() if place == device]
    memory = states.single_graph.memory[device]
    full = float(memory[current]) + sum(float(memory[group]) for group in groups)
    possible = np.isfinite(times[device])
    return [
        float(states.placement[state, current] == device),
        float(np.log(times[device] / times.min())) if possible else 0.0,
        float(np.log1p(times[device] / mean_group(problem))) if possible else 0.0,
        min(full, 4.0),
        min(max(full - 1.0, 0.0), 4.0),
        float(full > 1.0),
    ]


def diamond(cluster: Cluster) -> PlacementProblem:
    """Return a -> b, c -> d; a second each."""
    graph = nx.DiGraph()
    graph.add_edges_from(("ab", "ac", "bd", "cd"), bytes=2_000_000)
    ops = from_networkx(graph)
    return PlacementProblem(
        graph=ops, cluster=cluster, compute_time=np.ones((4, len(cluster.devices)))
    )


FOUR = parse_cluster("4xv100", link="pcie")


def test_a_tensor_counts_once_for_each_group_that_reads_it() -> None:
    grouping = Grouping(group_of=[0, 1, 1, 1], group_names=("a", "readers"))  # type: ignore[arg-type]
    sent, tensors = traffic(replace(diamond(FOUR), grouping=grouping))
    assert sent.tolist() == [[0, 2_000_000], [0, 0]]
    assert tensors.tolist() == [[0, 1], [0, 0]]


def test_states_of_groups_alone_are_refused() -> None:
    states = random_states(diamond(FOUR), 1, np.random.default_rng(0))
    alone = replace(states, graph_features=replace(states.single_graph, device_costs=None))
    with pytest.raises(PolicyError, match="expected those of a problem, got those of groups alone"):
        PlacementPolicy(settings=GENERAL)(alone)


def test_policies_of_pairs_are_for_any_devices_and_evaluate_last_placements_alone() -> None:
    policy = PlacementPolicy(7, replace(Settings(embedding="pairs"), hidden_units=16))
    assert policy.num_devices is None
    evaluator = ListSchedule(diamond(FOUR))
    environment = PlacementEnvironment.for_policy(evaluator, policy.settings, reward="terminal")
    environment.reset(num_episodes=1)
    run_episodes(policy, environment, greedy)
    assert evaluator.placements_seen == 1


def test_micro_batches_make_the_paths_of_groups_long() -> None:
    whole = diamond(FOUR)
    four = micro_batched_problem(whole, 4)
    once, several = (graph_features_of(problem).device_costs for problem in (whole, four))
    assert once is not None
    assert several is not None
    assert float(once.group_features[0, 6]) == pytest.approx(np.log1p(1.0), rel=1e-4)
    assert float(several.group_features[0, 6]) > 1.5 * np.log1p(1.0)


def test_devices_with_links_of_their_own_are_nearer_than_others() -> None:
    link = np.where(np.eye(4, dtype=bool), -1, 2)
    link[0, 1], link[1, 0] = 0, 1
    cluster = replace(FOUR, link=link, link_names=("there", "back", "shared"))
    costs = graph_features_of(diamond(cluster)).device_costs
    assert costs is not None
    assert float(costs.nearness[0, 1]) == float(costs.nearness[1, 0]) > 0.5
    assert float(costs.nearness[0, 2]) == float(costs.nearness[0, 0]) == 0.0


def test_a_device_is_less_likely_the_more_its_memory_would_overflow() -> None:
    problem = diamond(FOUR)
    environment = PlacementEnvironment.for_policy(ListSchedule(problem), GENERAL, reward="terminal")
    environment.reset(num_episodes=1)
    environment.step(np.array([0]))
    states = environment.states()
    current = int(states.current[0])
    policy = PlacementPolicy(settings=GENERAL)
    memory, allowed = torch.zeros(4, 4), states.single_graph.allowed.clone()
    memory[0, environment.order[0, 0]] = 0.6  # of the first device, which holds it
    for memory_of_group, can_run, likely in (
        ([0.6, 0.9, 1.5, 1.5], [True, True, True, True], [1]),
        ([0.3, 0.9, 1.5, 1.5], [True, True, True, True], [0, 1]),
        ([0.6, 1.1, 1.3, 1.2], [True, True, True, True], [1]),
        ([0.6, 0.9, 1.5, 1.4], [False, False, True, True], [3]),
        ([0.6, 2.0, 30.0, 50.0], [True, False, True, True], [0]),
    ):
        memory[:, current], allowed[current] = torch.tensor(memory_of_group), torch.tensor(can_run)
        graph_features = replace(states.single_graph, memory=memory, allowed=allowed)
        chances = policy(replace(states, graph_features=graph_features))[0].exp().detach()
        assert chances.sum() == pytest.approx(1.0)
        assert (chances > 1e-6).nonzero().flatten().tolist() == likely
