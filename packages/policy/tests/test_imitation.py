"""Policies that learn from good placements of some graphs place others well."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_graphs import PlacementProblem, parse_cluster
from placeto_policy import (
    Imitation,
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    demonstrate,
    preset,
)
from placeto_policy.demonstrations import TEMPERATURE, interchangeable_devices
from placeto_policy.lessons import ImitationSettings, Lesson, one_choice
from placeto_policy.states import NOWHERE
from random_states import random_problem
from scheduled_problems import (
    BANDWIDTH,
    ListSchedule,
    partly_possible,
    penalised,
    problem_of,
    two_chains,
    with_room,
)

SMALL = replace(preset("general"), hidden_units=32)


def chains(count: int, length: int = 4) -> PlacementProblem:
    """Return as many chains as devices, between which nothing flows, of costly transfers."""
    graph = nx.DiGraph()
    for chain in range(count):
        steps = [f"{chain}.{step}" for step in range(length)]
        nx.add_path(graph, steps, bytes=int(0.5 * BANDWIDTH))
    return with_room(problem_of(graph, count))


def a_chain_for_each_device(problem: PlacementProblem) -> np.ndarray:
    names = problem.grouping.group_names
    return np.array([int(name.partition(".")[0]) for name in names], np.int32)


def test_a_policy_that_saw_two_four_five_and_six_devices_places_on_three() -> None:
    taught = [chains(count) for count in (2, 4, 5, 6)]
    lessons = [
        demonstrate(ListSchedule(problem), a_chain_for_each_device(problem)) for problem in taught
    ]
    few = ImitationSettings(graphs=4, own_graphs=0, learning_rate=4e-3)
    imitation = Imitation(PlacementPolicy(settings=SMALL), lessons, steps=100, settings=few)
    losses = [imitation.step() for _ in range(100)]
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    unseen = chains(3)
    result = PlacetoPlacer(policy=imitation.policy).place(unseen, ListSchedule(unseen))
    assert result.runtime == 4.0
    assert result.evaluations == 1


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_devices_are_wanted_by_what_the_step_costs_with_the_group_there(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = with_room(random_problem(5, 3, generator))
    evaluator = ListSchedule(problem)
    placement = generator.integers(0, 3, 5).astype(np.int32)
    demonstration = replace(demonstrate(evaluator, placement), alike=np.arange(3))
    lesson = Lesson(demonstration, preset("general"))
    learned = lesson.demonstrated(ImitationSettings(states=9, misplaced=(0.4,)), generator)
    for row, wanted in enumerate(learned.target_probs):
        own = learned.states.placement[row].numpy()
        moved = np.tile(np.where(own == NOWHERE, placement, own), (3, 1)).astype(np.int32)
        moved[:, int(learned.states.current[row])] = np.arange(3)
        costs = penalised(evaluator, moved)
        weights = np.exp(-(costs - costs.min()) / (TEMPERATURE * costs.min()))
        np.testing.assert_allclose(wanted, weights / weights.sum(), rtol=1e-5, atol=1e-9)


def test_a_device_that_cannot_run_a_group_is_not_wanted_for_it() -> None:
    problem = partly_possible()
    placement = np.array([1, 1, 1], np.int32)
    lesson = Lesson(demonstrate(ListSchedule(problem), placement), preset("general"))
    learned = lesson.demonstrated(ImitationSettings(), np.random.default_rng(0))
    first = learned.states.current == 0
    assert bool(first.any())
    assert {tuple(row) for row in learned.target_probs[first].tolist()} == {(0.0, 1.0)}


@pytest.mark.parametrize(
    ("spec", "link", "expected"),
    [
        ("4xv100", None, [0, 0, 0, 0]),
        ("2xk80+2xv100", None, [0, 0, 2, 2]),
        ("1xcpu+3xk80", None, [0, 1, 1, 1]),
        ("4xv100", "nvlink", [0, 0, 0, 0]),
        ("4xv100", "pcie-shared", [0, 0, 0, 0]),
        ("2x(2xv100)", None, [0, 0, 2, 2]),
    ],
)
def test_which_devices_can_change_places(spec: str, link: str | None, expected: list[int]) -> None:
    problem = two_chains()
    cluster = parse_cluster(spec, link=link)
    times = np.tile(problem.compute_time[:, :1], (1, len(cluster.devices)))
    other = replace(problem, cluster=cluster, compute_time=times)
    assert interchangeable_devices(other).tolist() == expected


def test_devices_of_unequal_times_cannot_change_places() -> None:
    problem = two_chains()
    times = problem.compute_time.copy()
    times[3, 1] *= 1.5
    assert interchangeable_devices(replace(problem, compute_time=times)).tolist() == [0, 1]


def test_two_pairs_of_devices_that_share_links_otherwise_cannot_change_places() -> None:
    cluster = parse_cluster("3xk80")
    link = np.array([[-1, 0, 1], [2, -1, 2], [3, 3, -1]], np.int32)
    own_link = replace(cluster, link=link, link_names=("a", "b", "c", "d"))
    problem = two_chains()
    times = np.tile(problem.compute_time[:, :1], (1, 3))
    other = replace(problem, cluster=own_link, compute_time=times)
    assert interchangeable_devices(other).tolist() == [0, 1, 1]


def test_states_are_on_the_way_to_the_demonstrated_placement() -> None:
    problem = chains(3)
    placement = a_chain_for_each_device(problem)
    lesson = Lesson(demonstrate(ListSchedule(problem), placement), preset("general"))
    exact = ImitationSettings(states=50, misplaced=(0.0,))
    states = lesson.demonstrated(exact, np.random.default_rng(0)).states
    order = lesson.topology.order
    for row in range(50):
        time = int(np.flatnonzero(order == int(states.current[row]))[0])
        assert states.visited[row].nonzero().flatten().tolist() == sorted(order[:time].tolist())
        for position, group in enumerate(order.tolist()):
            expected = placement[group] if position < time else NOWHERE
            assert states.placement[row, group] == expected


def test_empty_devices_that_are_alike_are_one_choice() -> None:
    problem = chains(3)
    lesson = Lesson(
        demonstrate(ListSchedule(problem), a_chain_for_each_device(problem)), preset("general")
    )
    states = lesson.demonstrated(ImitationSettings(states=1), np.random.default_rng(0)).states
    on_the_first = replace(states, placement=torch.zeros_like(states.placement))
    together = one_choice(np.array([0, 0, 0]), on_the_first)[0]
    assert together.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert one_choice(np.array([0, 0, 2]), on_the_first)[0].tolist() == np.eye(3).tolist()


def test_a_seed_gives_the_same_policy() -> None:
    problem = chains(2)
    lesson = demonstrate(ListSchedule(problem), a_chain_for_each_device(problem))
    policies = []
    for seed in (3, 3, 4):
        run = Imitation(PlacementPolicy(settings=SMALL), [lesson], steps=3, seed=seed)
        losses = [run.step() for _ in range(3)]
        assert np.isfinite(losses).all()
        policies.append(torch.cat([value.flatten() for value in run.policy.state_dict().values()]))
    assert torch.equal(policies[0], policies[1])
    assert not torch.equal(policies[0], policies[2])


def test_what_there_is_nothing_to_learn_from_or_cannot_learn_is_refused() -> None:
    problem = chains(2)
    lesson = demonstrate(ListSchedule(problem), a_chain_for_each_device(problem))
    with pytest.raises(PolicyError, match="demonstrations: expected at least one, got none"):
        Imitation(PlacementPolicy(settings=SMALL), [], steps=1)
    with pytest.raises(PolicyError, match="got one for 2: choose the embedding 'pairs'"):
        Imitation(PlacementPolicy(2), [lesson], steps=1)
