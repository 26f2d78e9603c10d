import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_simulator import two_chains

from placeto_graphs import EvaluationBatch
from placeto_graphs import IncrementalEvaluation
from placeto_graphs import IncrementalEvaluator
from placeto_graphs import PlacementProblem
from placeto_simulator import SimulationError
from placeto_simulator import Simulator
from placeto_simulator.benchmark_problems import random_training_problem
from simulated_problems import problems


def assert_equal(result: EvaluationBatch, expected: EvaluationBatch) -> None:
    assert result.runtime.tolist() == expected.runtime.tolist()
    assert result.peak_memory.tolist() == expected.peak_memory.tolist()


def follow_random_moves(
    problem: PlacementProblem, generator: np.random.Generator, count: int
) -> None:
    """Try moves, adopt some of them, and compare each with a simulation from the beginning."""
    simulator = Simulator(problem, num_threads=1)
    placement = generator.integers(0, problem.num_devices, problem.num_groups).astype(np.int32)
    simulation = simulator.incremental(placement)
    for _ in range(count):
        group = int(generator.integers(problem.num_groups))
        if generator.random() < 0.2:
            placements = np.tile(placement, (problem.num_devices, 1))
            placements[:, group] = np.arange(problem.num_devices)
            assert_equal(simulation.moves(group), simulator.evaluate(placements))
        moved = placement.copy()
        moved[group] = generator.integers(problem.num_devices)
        result = simulation.try_move(group, int(moved[group]))
        assert_equal(result, simulator.evaluate(moved[None]))
        if generator.random() < 0.5:
            simulation.commit()
            placement = moved
        assert simulation.placement.tolist() == placement.tolist()


@pytest.mark.slow
@settings(max_examples=250)
@given(problems(), st.integers(0, 2**32 - 1))
def test_moves_cost_exactly_what_a_simulation_from_the_beginning_says(
    problem: PlacementProblem, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(40):
        follow_random_moves(problem, generator, count=6)


@pytest.mark.parametrize("num_devices", [1, 2, 5])
def test_moves_on_a_training_graph_with_parameters(num_devices: int) -> None:
    generator = np.random.default_rng(num_devices)
    problem = random_training_problem(600, num_devices, 40, generator)
    follow_random_moves(problem, generator, count=400)


def test_a_group_with_parameters_moves_without_a_run_from_the_beginning() -> None:
    problem = random_training_problem(600, 2, 40, np.random.default_rng(0))
    simulation = Simulator(problem).incremental(np.zeros(40, np.int32))
    moves = [simulation._move(group, 1) for group in range(40)]
    with_parameters = [move for move in moves if simulation._inputs.begin_at_zero[move.group]]
    assert max(move.shared_moments for move in with_parameters) > 1


def test_the_simulator_is_an_incremental_evaluator() -> None:
    simulator = Simulator(two_chains())
    assert isinstance(simulator, IncrementalEvaluator)
    simulation: IncrementalEvaluation = simulator.incremental(np.zeros(4, np.int32))
    assert simulation.placement.dtype == np.int32


def test_the_placement_that_is_returned_is_a_copy() -> None:
    simulation = Simulator(two_chains()).incremental(np.zeros(4, np.int32))
    simulation.placement[0] = 1
    assert simulation.placement.tolist() == [0, 0, 0, 0]


def test_a_device_that_cannot_run_a_group_costs_infinity() -> None:
    simulation = Simulator(without_a2_on_1()).incremental(np.zeros(4, np.int32))
    result = simulation.moves(2)
    assert np.isfinite(result.runtime).tolist() == [True, False]
    assert result.peak_memory[1].tolist() == [0, 0]


def without_a2_on_1() -> PlacementProblem:
    compute_time: NDArray[np.float64] = np.ones((4, 2))
    compute_time[2, 1] = np.inf
    return two_chains(compute_time=compute_time)


@pytest.mark.parametrize(
    ("group", "device", "message"),
    [
        (4, 0, "group: expected one from 0 to 3, got 4"),
        (-1, 0, "group: expected one from 0 to 3, got -1"),
        (0, 2, "device: expected one from 0 to 1 for group 'a1', got 2"),
        (2, 1, "device: expected one that can run every op of group 'a2', got 1 ('gpu:1')"),
    ],
)
def test_a_wrong_move_is_named(group: int, device: int, message: str) -> None:
    simulation = Simulator(without_a2_on_1()).incremental(np.zeros(4, np.int32))
    with pytest.raises(SimulationError, match=re.escape(message)):
        simulation.try_move(group, device)


def test_only_a_move_that_was_tried_can_be_committed() -> None:
    simulation = Simulator(two_chains()).incremental(np.zeros(4, np.int32))
    with pytest.raises(SimulationError, match="commit: expected a move that was tried before"):
        simulation.commit()
    simulation.try_move(0, 1)
    simulation.moves(0)
    with pytest.raises(SimulationError, match="commit: expected a move that was tried before"):
        simulation.commit()
