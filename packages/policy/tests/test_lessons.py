"""What is wanted in the states that a policy comes to by itself, against brute force."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeto_graphs import Evaluator, PlacementProblem
from placeto_policy import Demonstration, PlacementPolicy, demonstrate, preset
from placeto_policy.demonstrations import target_probs
from placeto_policy.lessons import ImitationSettings, LabelledStates, Lesson
from placeto_policy.states import NOWHERE
from random_states import random_problem
from scheduled_problems import ListSchedule, penalised, problem_of, two_speeds, with_room

SMALL = replace(preset("general"), hidden_units=16)
SETTINGS = ImitationSettings(own_rollouts=3, own_states=5)


def three_chains() -> PlacementProblem:
    graph = nx.DiGraph()
    for name in "abc":
        nx.add_path(graph, [f"{name}{step}" for step in range(3)], bytes=2**32)
    return with_room(problem_of(graph, num_devices=3))


def own_states(evaluator: Evaluator, placement: NDArray[np.int32]) -> LabelledStates:
    lesson = Lesson(demonstrate(evaluator, placement), SMALL)
    return lesson.own(PlacementPolicy(settings=SMALL), SETTINGS, np.random.default_rng(1))


def numberings(alike: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return all ways to number the devices in which each stays among its like."""
    every = (np.array(each) for each in itertools.permutations(range(len(alike))))
    return [each for each in every if (alike[each] == alike).all()]


def best_numberings(
    demonstration: Demonstration, own: NDArray[np.int64], visited: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """Return those under which most work is where the demonstration has it."""
    work = demonstration.evaluator.problem.group_graph.compute_time.mean(axis=1)
    candidates = numberings(demonstration.alike)
    common = [work[visited & (each[demonstration.placement] == own)].sum() for each in candidates]
    return [
        each for each, part in zip(candidates, common, strict=True) if part > max(common) - 1e-9
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_to_go_is_that_of_the_demonstration_renumbered(seed: int) -> None:
    problem = three_chains()
    evaluator = ListSchedule(problem)
    placement = np.random.default_rng(seed).integers(0, 3, 9).astype(np.int32)
    demonstration = demonstrate(evaluator, placement)
    assert demonstration.alike.tolist() == [0, 0, 0]
    learned = own_states(evaluator, placement)
    assert len(learned.states) == 15
    for row, wanted in enumerate(learned.target_probs.numpy()):
        own = learned.states.placement[row].numpy()
        visited = learned.states.visited[row].numpy()
        current = int(learned.states.current[row])
        possible = []
        for numbering in best_numberings(demonstration, own, visited):
            completed = np.tile(np.where(visited, own, numbering[placement]), (3, 1))
            completed[:, current] = np.arange(3)
            costs = penalised(evaluator, completed.astype(np.int32))
            possible.append(target_probs(costs[None], np.ones((1, 3), bool))[0])
        assert min(np.abs(each - wanted).max() for each in possible) < 1e-6


def test_devices_of_unequal_speeds_keep_their_numbers() -> None:
    problem = two_speeds()
    placement = np.array([0, 0, 0, 1, 1, 1], np.int32)
    evaluator = ListSchedule(problem)
    demonstration = demonstrate(evaluator, placement)
    learned = own_states(evaluator, placement)
    for row, wanted in enumerate(learned.target_probs.numpy()):
        own, visited = learned.states.placement[row].numpy(), learned.states.visited[row].numpy()
        completed = np.tile(np.where(visited, own, demonstration.placement), (2, 1))
        completed[:, int(learned.states.current[row])] = np.arange(2)
        costs = penalised(evaluator, completed.astype(np.int32))
        np.testing.assert_allclose(
            wanted, target_probs(costs[None], np.ones((1, 2), bool))[0], atol=1e-6
        )


def test_groups_are_where_the_policy_put_them_or_nowhere() -> None:
    problem = random_problem(6, 2, np.random.default_rng(0))
    states = own_states(ListSchedule(problem), np.zeros(6, np.int32)).states
    assert bool(states.visited.any())
    assert torch.equal(states.placement == NOWHERE, ~states.visited)


def test_a_state_is_labelled_alike_however_it_came_about() -> None:
    problem = random_problem(6, 3, np.random.default_rng(0))
    placement = np.array([2, 1, 2, 0, 1, 2], np.int32)
    lesson = Lesson(demonstrate(ListSchedule(problem), placement), SMALL)
    exact = ImitationSettings(states=60, own_states=40, misplaced=(0.0, 0.5))
    generator = np.random.default_rng(0)
    labels: dict[tuple[int, ...], list[tuple[str, NDArray[np.float32]]]] = {}
    for origin, learned in (
        ("demonstrated", lesson.demonstrated(exact, generator)),
        ("own", lesson.own(PlacementPolicy(settings=SMALL), exact, generator)),
    ):
        for row, wanted in enumerate(learned.target_probs.numpy()):
            state = (int(learned.states.current[row]), *learned.states.placement[row].tolist())
            labels.setdefault(state, []).append((origin, wanted))
    both = [each for each in labels.values() if len({origin for origin, _ in each}) == 2]
    assert both  # such as those of the first step
    for each in both:
        for _, wanted in each:
            np.testing.assert_allclose(wanted, each[0][1])


def test_a_device_that_cannot_run_a_group_is_never_wanted() -> None:
    costs = np.array([[np.inf, 2.0, 1.0], [3.0, 3.0, 3.0]])
    allowed = np.array([[True, True, False], [False, True, True]])
    assert target_probs(costs, allowed).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]
