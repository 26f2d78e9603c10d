import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from example_graphs import diamond_problem
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    GraphError,
    PlacementProblem,
    PlacementResult,
    Placer,
    ScheduleBatch,
)


def result(**changes: Any) -> PlacementResult:
    fields: dict[str, Any] = {
        "placement": [0, 1],
        "runtime": 0.25,
        "peak_memory": [60, 40],
        "evaluations": 2,
        "seconds": 0.001,
        "curve": [[1, 0.5], [2, 0.25]],
    }
    return PlacementResult(**(fields | changes))


class SlowestDevice:
    """An evaluator that adds up the work of each device."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        loads = np.zeros((len(placements), self.problem.num_devices))
        for row, placement in enumerate(placements):
            for group, device in enumerate(placement):
                loads[row, device] += self.problem.group_graph.compute_time[group, device]
        return EvaluationBatch(
            runtime=loads.max(axis=1), peak_memory=np.zeros(loads.shape, np.int64)
        )


class FirstDevice:
    """A placer that leaves everything on the first device."""

    name = "first"

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        placement = np.zeros(problem.num_groups, np.int32)
        batch = evaluator.evaluate(placement[None])
        return PlacementResult(
            placement=placement,
            runtime=float(batch.runtime[0]),
            peak_memory=batch.peak_memory[0],
            evaluations=1,
            seconds=0.0,
            curve=np.array([[1, batch.runtime[0]]]),
        )


def test_the_protocols_join_an_evaluator_and_a_placer() -> None:
    problem = diamond_problem()
    evaluator: Evaluator = SlowestDevice(problem)
    placer: Placer = FirstDevice()
    assert isinstance(evaluator, Evaluator)
    assert isinstance(placer, Placer)
    assert not isinstance(problem, Evaluator | Placer)
    assert placer.place(problem, evaluator).runtime == pytest.approx(0.01)


def test_results_have_the_types_of_the_schema() -> None:
    found = result(evaluations=np.int64(2), runtime=np.float32(0.25))
    assert found == result()
    assert type(found.evaluations) is int
    assert type(found.runtime) is float
    assert found.placement.dtype == np.int32


def test_a_batch_of_no_placements_has_the_types_of_the_schema() -> None:
    wrong: Any = np.zeros((0, 2), np.int32)
    batch = EvaluationBatch(runtime=wrong[:, 0], peak_memory=wrong)
    assert batch.runtime.dtype == np.float64
    assert batch.runtime.shape == (0,)
    assert batch.peak_memory.dtype == np.int64
    assert batch.peak_memory.shape == (0, 2)


def test_a_result_says_whether_it_fits_the_memory() -> None:
    cluster = diamond_problem().cluster
    memory = [device.memory_bytes for device in cluster.devices]
    assert result(peak_memory=memory).fits(cluster)
    assert not result(peak_memory=[memory[0], memory[1] + 1]).fits(cluster)
    with pytest.raises(GraphError, match="cluster: expected 1 devices, got 2"):
        result(peak_memory=[1]).fits(cluster)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": [-1]}, "placement[0]: expected an integer from 0 to"),
        ({"runtime": np.nan}, "runtime: expected a number >= 0, or infinity (it cannot run)"),
        ({"evaluations": -1}, "evaluations: expected an integer from 0 to"),
        ({"evaluations": 1.5}, "evaluations: expected integers"),
        ({"seconds": np.inf}, "seconds: expected a finite number >= 0, got inf"),
        ({"curve": [[2, 1.0], [1, 0.5]]}, "curve[1, 0]: expected at least 2 placements, got 1"),
        ({"curve": [1.0]}, "curve: expected shape (any, 2), got (1,)"),
    ],
)
def test_a_wrong_result_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        result(**changes)


@pytest.mark.parametrize(
    ("runtime", "peak_memory", "message"),
    [
        ([0.1, np.nan], [[1], [2]], "runtime[1]: expected a number >= 0"),
        ([0.1, -1], [[1], [2]], "runtime[1]: expected a number >= 0"),
        ([0.1], [[1], [2]], "peak_memory: expected shape (1, any), got (2, 1)"),
        ([0.1], [[0.5]], "peak_memory: expected integers"),
    ],
)
def test_a_wrong_batch_is_named(runtime: Any, peak_memory: Any, message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        EvaluationBatch(runtime=runtime, peak_memory=peak_memory)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ([[0.0], [0.0]], [[0.1]], "start: expected shape (1, any), got (2, 1)"),
        ([[0.0, -1.0]], [[0.1, 0.1]], "start[0, 1]: expected a finite number >= 0"),
        ([[0.0]], [[0.1, 0.2]], "end: expected shape (1, 1), got (1, 2)"),
        ([[0.0]], [[np.inf]], "end[0, 0]: expected a finite number >= 0"),
    ],
)
def test_a_wrong_schedule_is_named(start: Any, end: Any, message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        ScheduleBatch(runtime=np.array([0.1]), peak_memory=np.array([[1]]), start=start, end=end)
