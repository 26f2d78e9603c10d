"""The weighted graph that partitioners take: whole numbers, each edge in both directions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import mean_seconds
from placeto_graphs import GroupGraph

# Sums of weights. Scotch 7.0.13 puts all nodes on one device when its loads sum to 2**32 or more,
# also where its integers have 64 bits; METIS takes each edge twice, and may have 32. A weight is
# off by half a unit at the most.
TOTAL_WORK = 2**30
TOTAL_TRAFFIC = 2**29


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """N nodes and the edges between them, each in both directions.

    Attributes
    ----------
    offsets : int64[N + 1]
        Where the neighbours of each node start; the last entry is their number.
    neighbours : int64[2 M]
        The neighbours of each node, one node after the other.
    work : int64[N]
        Weight of each node, in proportion to its seconds.
    traffic : int64[2 M]
        Weight of the edge to each neighbour, at least 1.
    """

    offsets: NDArray[np.int64]
    neighbours: NDArray[np.int64]
    work: NDArray[np.int64]
    traffic: NDArray[np.int64]


def weighted_graph(graph: GroupGraph) -> WeightedGraph:
    """Return the graph that a partitioner sees.

    A node weighs its mean seconds over the devices that can run it, an edge its bytes. Work is
    scaled up or down so that its sum is ``TOTAL_WORK``; bytes are exact where their sum allows it,
    and scaled down to ``TOTAL_TRAFFIC`` where not. An edge without bytes keeps the least weight. A
    graph without any work has nodes of equal weight.
    """
    seconds = mean_seconds(graph.compute_time)
    if not seconds.any():
        seconds = np.ones(graph.num_groups)
    work = np.round(seconds * (TOTAL_WORK / seconds.sum())).astype(np.int64)
    total = float(graph.edge_bytes.sum(dtype=np.float64))
    fraction = min(1.0, TOTAL_TRAFFIC / total) if total else 1.0
    traffic = np.maximum(np.round(graph.edge_bytes * fraction), 1).astype(np.int64)
    ends = np.concatenate([graph.edges, graph.edges[:, ::-1]]).astype(np.int64)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    offsets = np.zeros(graph.num_groups + 1, np.int64)
    np.cumsum(np.bincount(ends[:, 0], minlength=graph.num_groups), out=offsets[1:])
    return WeightedGraph(offsets, ends[order, 1], work, np.tile(traffic, 2)[order])


def speeds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[D], how much work each device does in the time of one, 1 for equal devices.

    Measured on the nodes that can run on every device; without any of them all count as equal.

    Parameters
    ----------
    compute_time : float64[N, D]
        Seconds of each node on each device; infinity where it cannot run.
    """
    everywhere = np.isfinite(compute_time).all(axis=1)
    seconds = compute_time[everywhere].sum(axis=0)
    if not (seconds > 0).all():
        return np.ones(compute_time.shape[1])
    relative: NDArray[np.float64] = seconds.mean() / seconds
    return relative
