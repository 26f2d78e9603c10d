"""A paced step is a simulated one, on real threads: never earlier, and in the same order."""

import numpy as np
import pytest

from placeto import load_model_graph
from placeto_capture import cost_model
from placeto_execution import EmptyStep, Executor
from placeto_graphs import PlacementProblem, StepTimeline, colocate, parse_cluster
from placeto_simulator import Simulator

PACE = 40.0
ROUNDING = 1e-9  # seconds


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    graph = load_model_graph("nmt-2", steps=2, batch_size=32, units=64, vocabulary_size=200)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("3xk80"),
        compute_time=np.stack([cost_model(graph, "k80")] * 3, axis=1),
        grouping=colocate(graph),
    )


@pytest.mark.parametrize("seed", range(3))
def test_in_the_simulated_order_nothing_is_early(problem: PlacementProblem, seed: int) -> None:
    simulator = Simulator(problem, num_threads=1)
    placement = np.random.default_rng(seed).integers(0, 3, problem.num_groups, np.int32)
    simulated = simulator.timeline(placement)
    with Executor(
        problem,
        EmptyStep(problem.graph),
        ["cpu:0", "cpu:1", "cpu:2"],
        pace=PACE,
        order_of=lambda each: simulator.timeline(each).order(),
    ) as executor:
        measured = executor.execute(placement).timeline
    assert (measured.op_end >= simulated.op_end - ROUNDING).all()
    assert measured.order().ops == simulated.order().ops
    assert measured.order().transfers == simulated.order().transfers
    sent = {key(simulated, number): number for number in range(len(simulated.transfer_start))}
    assert sent.keys() == {key(measured, number) for number in range(len(measured.transfer_end))}
    for number, end in enumerate(measured.transfer_end.tolist()):
        assert end >= simulated.transfer_end[sent[key(measured, number)]] - ROUNDING


def key(timeline: StepTimeline, number: int) -> tuple[int, int]:
    tensor, destination = timeline.transfer_tensor, timeline.transfer_destination
    return int(tensor[number]), int(destination[number])


def test_everything_on_one_device_runs_in_the_simulated_order(problem: PlacementProblem) -> None:
    placement = np.zeros(problem.num_groups, np.int32)
    with Executor(
        problem, EmptyStep(problem.graph), ["cpu:0", "cpu:1", "cpu:2"], pace=1.0
    ) as executor:
        measured = executor.execute(placement).timeline
    simulated = Simulator(problem, num_threads=1).timeline(placement)
    assert measured.order().ops == simulated.order().ops
    assert measured.peak_memory.tolist() == simulated.peak_memory.tolist()
