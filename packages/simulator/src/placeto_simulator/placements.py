"""Placements as they are given, checked; and what groups hold until a step ends."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, sums_by_key
from placeto_simulator.errors import SimulationError


def checked_placements(problem: PlacementProblem, placements: Any) -> NDArray[np.int32]:
    """Return int32[B, G]; refuse what is not that, or puts a group where it cannot run."""
    given = np.asarray(placements)
    num_groups, num_devices = problem.num_groups, problem.num_devices
    if given.ndim != 2 or given.shape[1] != num_groups:
        raise SimulationError(f"placements: expected shape (any, {num_groups}), got {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise SimulationError(f"placements: expected integers, got {given.dtype}")
    if given.size and (given.min() < 0 or given.max() >= num_devices):
        row, group = np.argwhere((given < 0) | (given >= num_devices))[0].tolist()
        raise SimulationError(
            f"placements[{row}, {group}]: expected a device from 0 to {num_devices - 1} for "
            f"group {problem.grouping.group_names[group]!r}, got {given[row, group]}"
        )
    # Copied, as code is compiled anew for arrays that may not be written to.
    rows = np.array(given, np.int32, order="C")
    seconds = problem.group_graph.compute_time[np.arange(num_groups), rows]
    if np.isinf(seconds).any():
        row, group = np.argwhere(np.isinf(seconds))[0].tolist()
        device = problem.cluster.device_names[rows[row, group]]
        raise SimulationError(
            f"placements[{row}, {group}]: expected a device that can run every op of group "
            f"{problem.grouping.group_names[group]!r}, got {rows[row, group]} ({device!r})"
        )
    return rows


def held_bytes(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[G], parameters and tensors that each group holds until a step ends."""
    graph, group_of = problem.graph, problem.grouping.group_of
    held = graph.held_tensors
    makers = graph.tensor_producer[held]
    outside = graph.parameter_bytes[makers] == 0
    resident = problem.group_graph.parameter_bytes
    kept = graph.tensor_bytes[held[outside]]
    return resident + sums_by_key(group_of[makers[outside]], kept, problem.num_groups)
