"""What placers ask about devices: where groups can run, and which devices are CPUs."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem

CPU = "cpu"  # the kind of the devices that are no accelerators


def allowed_devices(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], true where every op of a group can run on a device."""
    return np.isfinite(problem.group_graph.compute_time)


def cpus(problem: PlacementProblem) -> NDArray[np.intp]:
    """Return the indices of the CPUs."""
    return np.flatnonzero([device.kind == CPU for device in problem.cluster.devices])


def accelerators(problem: PlacementProblem) -> NDArray[np.intp]:
    """Return the indices of the devices that are no CPUs; of all devices if there are only CPUs."""
    found = np.flatnonzero([device.kind != CPU for device in problem.cluster.devices])
    return found if len(found) else np.arange(problem.num_devices)


def repaired(problem: PlacementProblem, placement: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return int32[G]: a placement in which no group stands where it cannot run.

    Such a group goes to the device that runs it fastest, as an operation without a GPU kernel goes
    to the CPU (Mirhoseini et al. 2017).
    """
    runs = allowed_devices(problem)[np.arange(problem.num_groups), placement]
    fastest = problem.group_graph.compute_time.argmin(axis=1)
    return np.where(runs, placement, fastest).astype(np.int32)
