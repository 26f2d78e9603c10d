"""Costs of placements: seconds of a step, and a penalty if the memory does not suffice."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    Device,
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    bytes_besides_tensors,
    memory_penalised_runtime,
)
from placeto_simulator import Timeline

# Part of the runtime: the mean error of simulated steps with real links, see docs/fidelity.md.
SIMULATION_ERROR = 0.15
FITS, MAY_NOT_FIT, DOES_NOT_FIT = "fits", "may not fit", "does not fit"


def costs(evaluator: Evaluator, placements: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return float64[B], the memory-penalised runtimes of int32[B, G] placements, in seconds."""
    memory = evaluator.problem.cluster.memory_bytes
    return memory_penalised_runtime(evaluator.evaluate(placements), memory)


def cost_of_result(problem: PlacementProblem, result: PlacementResult | Timeline) -> float:
    """Return the memory-penalised runtime of a placement, in seconds."""
    batch = EvaluationBatch(
        runtime=np.array([result.runtime]), peak_memory=np.array([result.peak_memory])
    )
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0])


def fits(problem: PlacementProblem, peak_memory: Sequence[int] | NDArray[np.int64]) -> bool:
    """Return whether no device holds more bytes than it has."""
    return bool((np.asarray(peak_memory) <= problem.cluster.memory_bytes).all())


def verdict_of_memory(device: Device, peak: int | np.int64) -> str:
    """Return whether tensors of so many bytes fit a device, with what is in memory besides them."""
    if peak > device.memory_bytes:
        return DOES_NOT_FIT
    is_tight = peak + bytes_besides_tensors(device) > device.memory_bytes
    return MAY_NOT_FIT if peak and is_tight else FITS
