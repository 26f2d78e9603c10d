"""Energetic reasoning: what has to run in a window of time has to fit into it."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.regions import Lags
from placeto_baselines.bounds.relaxed_ops import RelaxedOps
from placeto_graphs import compiled

MAX_WINDOW_ENDS = 400


@compiled
def heads(ops: RelaxedOps, lags: Lags) -> NDArray[np.float64]:
    """Return float64[V], seconds before which no op starts.

    Proof, by induction in the order of ops. Op ``v`` starts a lag after each op on which it depends
    (`bounds.regions`). Take any of those ops: all end before ``v`` starts, and start no earlier
    than the least of their heads. The devices have a capacity of 1 per second together, so the
    shares of these ops, less one overhead that may follow the last op on each device, fit into the
    time between. Those of one group run on one device, one after the other. What is taken are the
    last ones in the order of ops, as many as is best.

    The same ops backwards in time give tails: seconds from the end of an op to the end of the step.
    """
    num_ops, band = lags.together.shape
    head = np.zeros(num_ops)
    needed_by = np.full(num_ops, -1)
    num_groups = ops.group.max() + 1
    group_seconds, group_head = np.zeros(num_groups), np.zeros(num_groups)
    for v in range(num_ops):
        group_seconds[:], group_head[:] = 0.0, np.inf
        share, least = 0.0, np.inf
        needed_by[v] = v
        for u in range(v, -1, -1):
            if needed_by[u] != v:
                continue
            for edge in range(ops.offsets[u], ops.offsets[u + 1]):
                needed_by[ops.producers[edge]] = v
            if u == v:
                continue
            lag = 0.0
            if v - u < band:
                lag = lags.together[u, v - u]
            head[v] = max(head[v], head[u] + ops.seconds[u] + lag)
            group = ops.group[u]
            share, least = share + ops.share[u], min(least, head[u])
            group_seconds[group] += ops.seconds[u] + ops.rest[u]
            group_head[group] = min(group_head[group], head[u])
            alone = group_head[group] + group_seconds[group]
            head[v] = max(head[v], max(least + share, alone) - ops.overhead)
    return head


@compiled
def window_bound(
    ops: RelaxedOps,
    head: NDArray[np.float64],
    tail: NDArray[np.float64],
    order: NDArray[np.int64],
    ends: NDArray[np.float64],
) -> float:
    """Return what the step takes at least, from what must run in windows of time.

    Proof. A step of ``T`` seconds runs an op between its head and ``T`` less its tail. Ops with
    heads ``>= t`` and tails ``>= s`` run within ``T - t - s`` seconds: their shares fit into these,
    one overhead for each device aside, and so do the seconds of any one group. Each op also runs
    for itself.

    Parameters
    ----------
    ops
        V ops.
    head, tail : float64[V]
        Seconds from the start of the step to that of each op, and from its end to that of the step.
    order : int64[V]
        The ops by falling heads.
    ends : float64[W]
        Which ``s`` are tried; ``t`` are all heads.
    """
    bound = (head + ops.seconds + tail).max()
    num_groups = ops.group.max() + 1
    for end in ends:
        share = 0.0
        group_seconds = np.zeros(num_groups)
        for op in order:
            if tail[op] >= end:
                group = ops.group[op]
                share += ops.share[op]
                group_seconds[group] += ops.seconds[op] + ops.rest[op]
                longest = max(share, group_seconds[group]) - ops.overhead
                bound = max(bound, head[op] + longest + end)
    return float(bound)


def window_ends(tail: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return some of the tails, evenly over all ops."""
    count = min(len(tail), MAX_WINDOW_ENDS)
    chosen: NDArray[np.float64] = np.unique(
        np.quantile(tail, np.linspace(0, 1, count), method="lower")
    )
    return chosen
