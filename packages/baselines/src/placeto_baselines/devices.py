"""What placers ask about devices: where groups can run, how long on average, which are CPUs."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem

CPU = "cpu"  # the kind of the devices that are no accelerators


def allowed_devices(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], true where every op of a group can run on a device."""
    return np.isfinite(problem.group_graph.compute_time)


def mean_seconds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[N], the mean over the devices that can run each of N ops or groups.

    Parameters
    ----------
    compute_time : float64[N, D]
        Seconds of each on each device; infinity where it cannot run.

    Returns
    -------
    float64[N]
        Seconds; 0 for what no device can run.

    Examples
    --------
    >>> mean_seconds(np.array([[1.0, 2.0], [np.inf, 5.0], [np.inf, np.inf]]))
    array([1.5, 5. , 0. ])
    """
    runs = np.isfinite(compute_time)
    total: NDArray[np.float64] = np.where(runs, compute_time, 0.0).sum(axis=1)
    mean: NDArray[np.float64] = total / np.maximum(runs.sum(axis=1), 1)
    return mean


def cpus(problem: PlacementProblem) -> NDArray[np.intp]:
    """Return the indices of the CPUs."""
    return np.flatnonzero([device.kind == CPU for device in problem.cluster.devices])


def accelerators(problem: PlacementProblem) -> NDArray[np.intp]:
    """Return the indices of the devices that are no CPUs; of all devices if there are only CPUs."""
    found = np.flatnonzero([device.kind != CPU for device in problem.cluster.devices])
    return found if len(found) else np.arange(problem.num_devices)


def accelerated(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], the devices among which schedulers for equal devices choose.

    Those that ask only where something starts first would give work to a slow CPU. They see the
    accelerators, and other devices for the groups that no accelerator can run.
    """
    runs = allowed_devices(problem)
    fast = np.zeros_like(runs)
    here = accelerators(problem)
    fast[:, here] = runs[:, here]
    return np.where(fast.any(axis=1, keepdims=True), fast, runs)


def repaired(problem: PlacementProblem, placement: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return int32[G]: a placement in which no group stands where it cannot run.

    Such a group goes to the device that runs it fastest, as an operation without a GPU kernel goes
    to the CPU (Mirhoseini et al. 2017).
    """
    runs = allowed_devices(problem)[np.arange(problem.num_groups), placement]
    fastest = problem.group_graph.compute_time.argmin(axis=1)
    return np.where(runs, placement, fastest).astype(np.int32)
