"""When each op could run at the earliest, known before anything is placed."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, compiled

MIN_SECONDS = 1e-300  # of what seconds are divided by: a graph may have no work
SLICES = 400  # of the longest path; what happens in one of them is taken to be at its middle


def earliest_times(
    problem: PlacementProblem,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return float64[V] twice: when each op starts and ends if only inputs and waits delay it.

    Ops take their compute time, the mean over the devices that can run them. Times are in parts of
    the longest path of all, from 0 to 1; its seconds come last.

    Parameters
    ----------
    problem
        A problem of V ops.
    """
    graph = problem.graph
    seconds = mean_seconds(problem.compute_time)
    start = np.zeros(graph.num_ops)
    before, after = graph.precedences.T
    in_order = np.argsort(graph.topological_index[before], kind="stable")
    push_starts(before[in_order], after[in_order], seconds, start)
    longest = float((start + seconds).max())
    unit = longest if longest > 0 else 1.0
    return start / unit, (start + seconds) / unit, longest


def mean_seconds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[V], the mean of float64[V, D] over the devices whose time is finite."""
    possible = np.isfinite(compute_time)
    total = np.where(possible, compute_time, 0.0).sum(axis=1)
    seconds: NDArray[np.float64] = total / np.maximum(1, possible.sum(axis=1))
    return seconds


def slice_of(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return int64[...], the slice from 0 to SLICES - 1 that times from 0 to 1 are in."""
    slices: NDArray[np.int64] = np.minimum(SLICES - 1, (times * SLICES).astype(np.int64))
    return slices


@compiled
def push_starts(
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    seconds: NDArray[np.float64],
    start: NDArray[np.float64],
) -> None:
    """Raise each start[V] to the longest path; rows come in the order of the ops before."""
    for row in range(len(before)):
        end = start[before[row]] + seconds[before[row]]
        start[after[row]] = max(start[after[row]], end)
