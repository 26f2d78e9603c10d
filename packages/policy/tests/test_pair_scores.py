"""Policies for any number and kind of devices, to which the numbers of devices say nothing."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import Cluster, PlacementProblem, parse_cluster
from placeto_policy import (
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    States,
    Trainer,
    load_policy,
    preset,
    resume_training,
    save_policy,
    save_training,
    topology_of,
)
from placeto_policy.embedding.pairs import PairScores, _numbers
from placeto_policy.topology import topology_of_groups
from random_states import random_problem, random_states
from scheduled_problems import ListSchedule, two_chains, with_compute_time

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
    return PlacementProblem(
        graph=problem.graph, cluster=cluster, compute_time=times, grouping=problem.grouping
    )


def possible_states(
    problem: PlacementProblem, count: int, generator: np.random.Generator
) -> States:
    """Return random states, in which groups are on devices that can run them."""
    states = random_states(problem, count, generator)
    allowed = states.graph.allowed.numpy()
    keys = np.where(allowed, generator.random((count, *allowed.shape)), -1.0)
    return replace(states, placement=torch.from_numpy(keys.argmax(axis=2)))


def relabelled(problem: PlacementProblem, order: NDArray[np.int64]) -> PlacementProblem:
    """Return a problem whose device i is the device order[i] of another."""
    cluster = problem.cluster
    square = np.ix_(order, order)
    new_number = np.argsort(order)
    link = cluster.link[square]
    return PlacementProblem(
        graph=problem.graph,
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
        grouping=problem.grouping,
    )


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 5))
def test_devices_that_are_relabelled_get_their_probabilities_relabelled(
    seed: int, num_devices: int
) -> None:
    generator = np.random.default_rng(seed)
    problem = mixed_problem(7, num_devices, generator)
    states = possible_states(problem, 4, generator)
    order = generator.permutation(num_devices)
    new_number = torch.from_numpy(np.argsort(order))
    assert states.lookahead is not None
    other = replace(
        states,
        topology=topology_of(relabelled(problem, order)),
        placement=new_number[states.placement],
        lookahead=states.lookahead[:, order],
    )
    policy = PlacementPolicy(settings=GENERAL, seed=seed % 100)
    with torch.no_grad():
        dict(policy.named_parameters())["scores.score.weight"].mul_(100)  # far from uniform
        before, after = policy(states).exp(), policy(other).exp()
    torch.testing.assert_close(after, before[:, order], rtol=1e-3, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 4))
def test_numbers_of_pairs_are_what_loops_over_groups_say(seed: int, num_devices: int) -> None:
    generator = np.random.default_rng(seed)
    problem = mixed_problem(6, num_devices, generator)
    states = possible_states(problem, 3, generator)
    others = torch.nn.functional.one_hot(states.placement, num_devices).float()
    others[torch.arange(3), states.current] = 0.0
    found = _numbers(states, others, looks_ahead=True)
    for state in range(3):
        for device in range(num_devices):
            expected = np.concatenate(
                [
                    plain_loads(states, state, device, only_visited=False),
                    plain_loads(states, state, device, only_visited=True),
                    plain_transfers(problem, states, state, device, only_visited=False),
                    plain_transfers(problem, states, state, device, only_visited=True),
                    plain_pair(problem, states, state, device),
                ]
            )
            np.testing.assert_allclose(
                found[state, device, :-2], expected, rtol=2e-4, atol=1e-5, strict=False
            )
            assert states.lookahead is not None
            more = float(states.lookahead[state, device])
            assert found[state, device, -2:].tolist() == [more, float(more <= 0)]


def groups_there(states: States, state: int, device: int, *, only_visited: bool) -> list[int]:
    return [
        group
        for group in range(states.placement.shape[1])
        if states.placement[state, group] == device
        and group != states.current[state]
        and (bool(states.visited[state, group]) or not only_visited)
    ]


def plain_loads(states: States, state: int, device: int, *, only_visited: bool) -> list[float]:
    there = groups_there(states, state, device, only_visited=only_visited)
    own = states.graph
    current = int(states.current[state])
    costs = own.device_costs
    assert costs is not None
    return [
        sum(float(own.affinity[current, group]) for group in there),
        *(sum(float(near[current, group]) for group in there) for near in own.vicinity),
        sum(float(costs.work[group, device]) for group in there),
        sum(float(own.memory[device, group]) for group in there),
    ]


def mean_group(problem: PlacementProblem) -> float:
    times = problem.group_graph.compute_time
    return float(np.mean([row[np.isfinite(row)].mean() for row in times]))


def plain_transfers(
    problem: PlacementProblem, states: States, state: int, device: int, *, only_visited: bool
) -> list[float]:
    cluster, current = problem.cluster, int(states.current[state])
    count = problem.num_devices
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    median = float(np.median([1 / cluster.bandwidth[pair] for pair in pairs])) if pairs else 0.0
    taken = sent = near = neighbours = 0.0
    for (source, target), size in zip(
        problem.group_graph.edges.tolist(), problem.group_graph.edge_bytes.tolist(), strict=True
    ):
        if current not in (source, target):
            continue
        neighbours += 1
        other = target if source == current else source
        for place in range(count):
            if other not in groups_there(states, state, place, only_visited=only_visited):
                continue
            if place == device:
                near += 1
                continue
            for one, two in ((device, place), (place, device)):
                overhead = cluster.devices[one].transfer_overhead
                taken += (
                    size / cluster.bandwidth[one, two] + cluster.latency[one, two] + overhead
                ) / 2
            sent += size * median
    unit = mean_group(problem)
    return [np.log1p(taken / unit), np.log1p(sent / unit), near / max(1.0, neighbours)]


def test_links_whose_bytes_are_mostly_free_have_finite_features() -> None:
    problem = random_problem(6, 3, np.random.default_rng(0))
    bandwidth = np.full((3, 3), np.inf)
    bandwidth[0, 1] = bandwidth[1, 0] = 1e9
    cluster = replace(problem.cluster, bandwidth=bandwidth)
    costs = topology_of(replace(problem, cluster=cluster)).device_costs
    assert costs is not None
    for field in fields(costs):
        assert torch.isfinite(getattr(costs, field.name)).all(), field.name
    assert float(costs.slowness[0, 1]) == pytest.approx(3.0)  # of two pairs in six, in their mean
    assert float(costs.slowness[0, 2]) == 0.0


def plain_pair(problem: PlacementProblem, states: States, state: int, device: int) -> list[float]:
    current = int(states.current[state])
    times = problem.group_graph.compute_time[current]
    there = groups_there(states, state, device, only_visited=False)
    memory = states.graph.memory[device]
    full = float(memory[current]) + sum(float(memory[group]) for group in there)
    possible = np.isfinite(times[device])
    return [
        float(states.placement[state, current] == device),
        float(np.log(times[device] / times.min())) if possible else 0.0,
        float(np.log1p(times[device] / mean_group(problem))) if possible else 0.0,
        min(full, 4.0),
        min(max(full - 1.0, 0.0), 4.0),
        float(full > 1.0),
    ]


@settings(deadline=None, max_examples=20)
@given(SEEDS)
def test_groups_are_embedded_by_messages_along_their_edges(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = mixed_problem(6, 2, generator)
    scores = PairScores(GENERAL, torch.Generator().manual_seed(seed))
    topology = topology_of(problem)
    assert topology.device_costs is not None
    features = torch.cat(
        [topology.cost_features, topology.path_features, topology.device_costs.group_features], 1
    )
    edges = problem.group_graph.edges.tolist()
    scale = min(1.0, 6 / max(1, len(edges)))
    own = torch.relu(scores.first(features))
    found = scores.embedded_groups(topology)
    for direction, arrows in enumerate((edges, [(b, a) for a, b in edges])):
        groups = own
        for _ in range(GENERAL.message_rounds):
            sums = torch.zeros_like(groups)
            for source, target in arrows:
                sums[target] += torch.relu(scores.messages[direction](groups[source])) * scale
            groups = own + torch.relu(scores.updates[direction](sums))
        width = own.shape[1]
        part = found[:, direction * width : (direction + 1) * width]
        torch.testing.assert_close(part, groups, rtol=1e-4, atol=1e-5)


def test_one_policy_places_problems_of_any_number_of_devices() -> None:
    policy = PlacementPolicy(settings=GENERAL)
    generator = np.random.default_rng(0)
    for num_devices in (1, 2, 3, 9):
        problem = mixed_problem(6, num_devices, generator)
        result = PlacetoPlacer(policy=policy).place(problem, ListSchedule(problem))
        times = problem.group_graph.compute_time[np.arange(6), result.placement]
        assert np.isfinite(times).all()


def test_a_number_of_devices_makes_no_difference() -> None:
    for number in (None, 2, 7):
        assert PlacementPolicy(number, GENERAL).num_devices is None
    with pytest.raises(PolicyError, match="num_devices: expected a number for the embedding"):
        PlacementPolicy()


def test_empty_devices_are_equally_probable_unless_one_is_slower() -> None:
    problem = random_problem(6, 3, np.random.default_rng(0))
    all_on_the_first = replace(
        random_states(problem, 1, np.random.default_rng(0)),
        placement=torch.zeros((1, 6), dtype=torch.int64),
        lookahead=torch.zeros(1, 3),
    )
    slower = with_compute_time(problem, problem.compute_time * np.array([1.0, 1.0, 2.0]))
    policy = PlacementPolicy(settings=GENERAL)
    equal = policy(all_on_the_first)[0]
    unequal = policy(replace(all_on_the_first, topology=topology_of(slower)))[0]
    torch.testing.assert_close(equal[1], equal[2])
    assert abs(unequal[1] - unequal[2]) > 1e-3


def test_states_of_groups_alone_are_refused() -> None:
    problem = two_chains()
    states = random_states(problem, 1, np.random.default_rng(0))
    alone = topology_of_groups(problem.group_graph, np.zeros((3, 6, 6)), np.zeros((2, 6)))
    with pytest.raises(PolicyError, match="expected those of a problem, got those of groups alone"):
        PlacementPolicy(settings=GENERAL)(replace(states, topology=alone))


def test_a_training_may_have_graphs_of_unequal_numbers_of_devices(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    evaluators = [ListSchedule(mixed_problem(5, devices, generator)) for devices in (2, 3, 4)]
    chosen = replace(GENERAL, workers=3, updates=4)
    whole = Trainer(evaluators, chosen)
    for _ in range(4):
        whole.update()
    half = Trainer(evaluators, chosen)
    for _ in range(2):
        half.update()
    save_training(half, tmp_path / "training.safetensors")
    resumed = resume_training(tmp_path / "training.safetensors", evaluators)
    for _ in range(2):
        resumed.update()
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name])
    save_policy(whole.policy, tmp_path / "policy.safetensors")
    assert load_policy(tmp_path / "policy.safetensors").num_devices is None


def test_policies_with_an_output_for_each_device_need_equal_numbers() -> None:
    generator = np.random.default_rng(1)
    evaluators = [ListSchedule(mixed_problem(5, devices, generator)) for devices in (2, 3)]
    with pytest.raises(PolicyError, match=r"evaluators\[1\]: expected a problem of 2 devices"):
        Trainer(evaluators, preset("default"))
