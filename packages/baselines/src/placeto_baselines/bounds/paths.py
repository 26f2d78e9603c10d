"""When each op can end at the earliest, and how long the step lasts after it at least."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices
from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class Paths:
    """For each op and the device that it runs on, the longest paths to and from it.

    All are float64[V, D], hold for every placement that puts the op on that device, and are
    infinite where its group cannot run.
    """

    seconds: NDArray[np.float64]  # of each op
    end: NDArray[np.float64]  # The op ends at this time or later.
    tail: NDArray[np.float64]  # The step ends so many seconds after the op, or later.


def op_seconds(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[V, D], seconds of each op; infinity where its group cannot run."""
    allowed = allowed_devices(problem)[problem.grouping.group_of]
    return np.where(allowed, problem.compute_time, np.inf)


def longest_paths(problem: PlacementProblem) -> Paths:
    """Return the longest paths to and from each op on each device.

    Proof that ``end`` is a lower bound, by induction in topological order. Op ``v`` on device
    ``d`` starts when each of its inputs is there, and each op that it waits for is done. Take an op
    ``u``, on some device ``s``, that makes an input or is waited for. If ``s = d``, the device is
    busy with ``u`` and with the overhead after it. Then ``v`` starts no earlier than ``end[u, d] +
    overhead[d]`` (no overhead if ``u`` takes no time). If not, a transfer starts no earlier than
    ``u`` ends, and takes ``latency[s, d] + bytes / bandwidth[s, d]`` on any link, besides its
    waiting time. An op that is only waited for sends nothing. The device ``s`` is ``d`` when both
    ops are in one group, and otherwise no better than the best of all devices. All inputs and ops
    must be there, so the latest counts. The proof for ``tail`` is the same in the reverse order.
    After ``u``, each op that reads it or waits for it still gets its input, runs, and is followed
    by its own tail.
    """
    graph, cluster = problem.graph, problem.cluster
    group_of = problem.grouping.group_of
    seconds = op_seconds(problem)
    rest = problem.overhead_time
    before, after = graph.precedences.T
    seconds_per_byte = 1 / cluster.bandwidth
    elsewhere = ~np.eye(problem.num_devices, dtype=np.bool_)

    def passing(row: int) -> NDArray[np.float64]:
        """Return float64[D, D], from the end of one op to the start of the other at best."""
        between = np.zeros_like(cluster.latency)
        if row < graph.num_edges:  # and not a wait
            size = graph.tensor_bytes[graph.edges[row, 0]]
            between = cluster.latency + size * seconds_per_byte
        np.fill_diagonal(between, rest[before[row]])
        if group_of[before[row]] == group_of[after[row]]:
            between[elsewhere] = np.inf
        return between

    end = seconds.copy()
    for row in np.argsort(graph.topological_index[after], kind="stable"):
        arrival = (end[before[row]][:, None] + passing(row)).min(axis=0)
        end[after[row]] = np.maximum(end[after[row]], arrival + seconds[after[row]])
    tail = np.where(np.isfinite(seconds), 0.0, np.inf)
    for row in np.argsort(-graph.topological_index[before], kind="stable"):
        left = passing(row) + seconds[after[row]] + tail[after[row]]
        tail[before[row]] = np.maximum(tail[before[row]], left.min(axis=1))
    return Paths(seconds, end, tail)
