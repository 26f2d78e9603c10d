"""Which groups have work at about the same time, known before anything is placed."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_graphs import compiled

# In parts of the longest path: ops whose earliest starts differ by this much are near to 1/e.
NEAR = (0.005, 0.02, 0.08)


def concurrency(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[S, G, G], how much work of two groups is near in time, for each of S scales.

    With s the earliest start of an op (the end of the longest path to it, in parts of the longest
    path of all), and t its compute time (the mean over the devices that can run it), that is the
    sum of ``t_i t_j exp(-|s_i - s_j| / NEAR)`` over the ops i of one group and j of the other. The
    group of a layer has ops of the forward and of the backward pass, and is near to others in both.

    Parameters
    ----------
    problem
        A problem of G groups.

    Examples
    --------
    See `topology_of`.
    """
    graph = problem.graph
    seconds = mean_seconds(problem.compute_time)
    start = np.zeros(graph.num_ops)
    producers, consumers = graph.edge_producers, graph.edge_consumers
    in_order = np.argsort(graph.topological_index[producers], kind="stable")
    push_starts(producers[in_order], consumers[in_order], seconds, start)
    longest = (start + seconds).max()
    start /= longest if longest > 0 else 1.0
    by_start = np.argsort(start, kind="stable")
    near = np.empty((len(NEAR), problem.num_groups, problem.num_groups))
    for index, scale in enumerate(NEAR):
        sum_products(
            problem.grouping.group_of[by_start],
            start[by_start] / scale,
            seconds[by_start],
            near[index],
        )
    return near


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
def sum_products(
    group_of: NDArray[np.int32],
    start: NDArray[np.float64],
    seconds: NDArray[np.float64],
    near: NDArray[np.float64],
) -> None:
    """Fill near[G, G] with sums of ``t_i t_j exp(-|s_i - s_j|)``, 0 on the diagonal.

    Ops come by their start, so that each term is a product of what is known of the earlier op and
    of the later one: ``t_i exp(-s_i)`` and ``t_j exp(s_j)``. Starts are at most 200, the reciprocal
    of the least scale, so that no such number is too large for 64 bits.
    """
    earlier = np.zeros(len(near))
    near[:] = 0
    for op in range(len(start)):
        group = group_of[op]
        later = seconds[op] * np.exp(-start[op])
        for other in range(len(earlier)):
            near[group, other] += later * earlier[other]
        earlier[group] += seconds[op] * np.exp(start[op])
    for one in range(len(near)):
        for other in range(one):
            near[one, other] += near[other, one]
            near[other, one] = near[one, other]
        near[one, one] = 0
