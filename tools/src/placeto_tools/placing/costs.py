"""What placements cost: seconds of a step, and a penalty where the memory does not suffice."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch
from placeto_graphs import PlacementProblem
from placeto_graphs import PlacementResult
from placeto_graphs import memory_penalised_runtime
from placeto_simulator import Simulator
from placeto_simulator import Timeline


def costs_of(problem: PlacementProblem, batch: EvaluationBatch) -> NDArray[np.float64]:
    """Return float64[B], the costs of evaluated placements."""
    memory = [device.memory_bytes for device in problem.cluster.devices]
    return memory_penalised_runtime(batch, memory)


def cost_of_result(problem: PlacementProblem, found: PlacementResult | Timeline) -> float:
    """Return what the placement of a search, or of a simulated step, costs."""
    batch = EvaluationBatch(
        runtime=np.array([found.runtime]), peak_memory=np.array([found.peak_memory])
    )
    return float(costs_of(problem, batch)[0])


def fits(problem: PlacementProblem, peak_memory: Sequence[int] | NDArray[np.int64]) -> bool:
    """Return whether no device holds more bytes than it has."""
    memory = [device.memory_bytes for device in problem.cluster.devices]
    return bool((np.asarray(peak_memory) <= memory).all())


def cost_of(simulator: Simulator, placement: NDArray[np.int32]) -> float:
    """Return what a placement int32[G] costs."""
    return float(costs_of(simulator.problem, simulator.evaluate(placement[None]))[0])
