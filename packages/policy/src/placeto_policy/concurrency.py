"""Which groups have work at about the same time, known before anything is placed."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_graphs import compiled

# In parts of the longest path: work that is so far apart is near to 1/e.
NEAR = (0.005, 0.02, 0.08)
SLICES = 400  # of the longest path; what happens in one of them is taken to be at its middle


def concurrency(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[S, G, G], how much work of two groups is near in time, for each of S scales.

    Each op is taken to run as early as the longest path to it lets it, for its compute time (the
    mean over the devices that can run it). With w[g, a] the work of group g in slice a of the
    longest path of all, that is the sum of ``w[g, a] w[h, b] exp(-|a - b| / (SLICES NEAR))`` over
    all a and b. The group of a layer has ops of the forward and of the backward pass, and is near
    to others in both.

    Parameters
    ----------
    problem
        A problem of G groups.

    Examples
    --------
    See `topology_of`.
    """
    work = work_in_slices(problem)
    slices = np.arange(SLICES)
    apart = np.abs(slices[:, None] - slices) / SLICES
    near = np.stack([work @ np.exp(-apart / scale) @ work.T for scale in NEAR])
    groups = np.arange(problem.num_groups)
    near[:, groups, groups] = 0.0
    return near


def work_in_slices(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G, SLICES], the work of each group, in parts of the longest path of all."""
    graph = problem.graph
    seconds = mean_seconds(problem.compute_time)
    start = np.zeros(graph.num_ops)
    producers, consumers = graph.edge_producers, graph.edge_consumers
    in_order = np.argsort(graph.topological_index[producers], kind="stable")
    push_starts(producers[in_order], consumers[in_order], seconds, start)
    longest = (start + seconds).max()
    unit = longest if longest > 0 else 1.0
    work = np.zeros((problem.num_groups, SLICES))
    add_work(problem.grouping.group_of, start / unit, (start + seconds) / unit, work)
    return work


def mean_seconds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[V], the mean of float64[V, D] over the devices whose time is finite."""
    possible = np.isfinite(compute_time)
    total = np.where(possible, compute_time, 0.0).sum(axis=1)
    seconds: NDArray[np.float64] = total / np.maximum(1, possible.sum(axis=1))
    return seconds


@compiled
def push_starts(
    producers: NDArray[np.int32],
    consumers: NDArray[np.int32],
    seconds: NDArray[np.float64],
    start: NDArray[np.float64],
) -> None:
    """Raise each start[V] to the longest path; edges come in the order of their producers."""
    for edge in range(len(producers)):
        end = start[producers[edge]] + seconds[producers[edge]]
        start[consumers[edge]] = max(start[consumers[edge]], end)


@compiled
def add_work(
    group_of: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    work: NDArray[np.float64],
) -> None:
    """Add the part of each op that is in each slice to work[G, S]; times are from 0 to 1."""
    slices = work.shape[1]
    for op in range(len(start)):
        last = min(slices - 1, int(end[op] * slices))
        for index in range(int(start[op] * slices), last + 1):
            begin = max(start[op], index / slices)
            work[group_of[op], index] += max(0.0, min(end[op], (index + 1) / slices) - begin)
