"""What decides how fast a placement runs is seen by policies of pairs, and the numbering is not."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    Grouping,
    PlacementProblem,
    from_networkx,
    micro_batched_problem,
    parse_cluster,
)
from placeto_policy import PlacementPolicy, Settings, preset
from placeto_policy.device_costs import traffic
from placeto_policy.embedding.pairs import groups_there, pair_numbers
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import greedy, run_episodes
from placeto_policy.topology import topology_of
from scheduled_problems import ListSchedule

GENERAL = preset("general")


def diamond(cluster: Cluster, *, tensors: int = 1) -> PlacementProblem:
    """Return a -> b, c -> d, between which 2 MB flow in so many tensors; a second each."""
    graph = nx.DiGraph()
    for source, target in ("ab", "ac", "bd", "cd"):
        names = [f"{source}{target}{index}" for index in range(tensors)]
        graph.add_edge(source, target, tensors=names)
        outputs = graph.nodes[source].setdefault("outputs", {})
        outputs |= dict.fromkeys(names, 2_000_000 // tensors)
    graph.nodes["d"]["outputs"] = {}
    ops = from_networkx(graph)
    return PlacementProblem(
        graph=ops, cluster=cluster, compute_time=np.ones((4, len(cluster.devices)))
    )


def seen(problem: PlacementProblem, placed: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return all that a policy of pairs sees before the next group, with some groups placed."""
    environment = PlacementEnvironment.for_policy(ListSchedule(problem), GENERAL, reward="terminal")
    environment.reset(num_episodes=1)
    for device in placed:
        environment.step(np.array([device]))
    states = environment.states()
    there = groups_there(states)
    numbers = pair_numbers(states, there, (there * states.graph.memory).sum(dim=2))
    costs = states.graph.device_costs
    assert costs is not None
    return torch.cat([numbers.flatten(), costs.group_features.flatten()]).numpy()


FOUR = parse_cluster("4xv100", link="pcie")


def test_a_tensor_counts_once_for_each_group_that_reads_it() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", outputs={"read": 8})
    graph.add_edges_from([("a", "b"), ("a", "c")], tensors=["read"])
    problem = PlacementProblem(
        graph=from_networkx(graph),
        cluster=FOUR,
        compute_time=np.ones((3, 4)),
        grouping=Grouping(group_of=np.array([0, 1, 1], np.int32), group_names=("a", "readers")),
    )
    sent, tensors = traffic(problem)
    assert sent.tolist() == [[0, 8], [0, 0]]
    assert tensors.tolist() == [[0, 1], [0, 0]]


def test_micro_batches_make_the_paths_of_groups_long() -> None:
    whole = diamond(FOUR)
    four = micro_batched_problem(whole, 4)
    once, several = (topology_of(problem).device_costs for problem in (whole, four))
    assert once is not None
    assert several is not None
    assert float(once.group_features[0, 6]) == pytest.approx(np.log1p(1.0), rel=1e-4)
    assert float(several.group_features[0, 6]) > 1.5 * np.log1p(1.0)


def test_devices_with_links_of_their_own_are_nearer_than_others() -> None:
    link = np.where(np.eye(4, dtype=bool), -1, 2)
    link[0, 1], link[1, 0] = 0, 1
    cluster = replace(FOUR, link=link, link_names=("there", "back", "shared"))
    costs = topology_of(diamond(cluster)).device_costs
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
    memory, allowed = torch.zeros(4, 4), states.graph.allowed.clone()
    memory[0, environment.order[0, 0]] = 0.6  # of the first device, which holds it
    for needed, can_run, likely in (
        ([0.6, 0.9, 1.5, 1.5], [True, True, True, True], [1]),
        ([0.3, 0.9, 1.5, 1.5], [True, True, True, True], [0, 1]),
        ([0.6, 1.1, 1.3, 1.2], [True, True, True, True], [1]),
        ([0.6, 0.9, 1.5, 1.4], [False, False, True, True], [3]),
        ([0.6, 2.0, 30.0, 50.0], [True, False, True, True], [0]),
    ):
        memory[:, current], allowed[current] = torch.tensor(needed), torch.tensor(can_run)
        topology = replace(states.graph, memory=memory, allowed=allowed)
        chances = policy(replace(states, topology=topology))[0].exp().detach()
        assert chances.sum() == pytest.approx(1.0)
        assert (chances > 1e-6).nonzero().flatten().tolist() == likely


def test_a_rollout_evaluates_its_last_placement_alone() -> None:
    evaluator = ListSchedule(diamond(FOUR))
    default = PlacementPolicy(settings=replace(Settings(embedding="pairs"), hidden_units=16))
    environment = PlacementEnvironment.for_policy(evaluator, default.settings, reward="terminal")
    environment.reset(num_episodes=1)
    run_episodes(default, environment, greedy)
    assert evaluator.placements_seen == 1
