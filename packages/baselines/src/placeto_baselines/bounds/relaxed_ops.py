"""Ops in an order of execution with the least costs over all devices."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.paths import Paths
from placeto_graphs import PlacementProblem


class RelaxedOps(NamedTuple):
    """The ops of a problem in an order of execution, with the least costs over all devices.

    Ops are in the order of their earliest ends, so that ops that run at about the same time are
    close to each other. Producers come before their consumers. An op that is only waited for is a
    producer of an input that takes no time to another device.

    Attributes
    ----------
    seconds, rest : float64[V]
        Seconds of each op, and of the overhead that follows it.
    share : float64[V]
        The part that each op takes of the capacity 1 per second of all devices together.
    group : int64[V]
        Group of each op: its ops share a device.
    offsets : int64[V + 1]
        Start of the producers of each op.
    producers : int64[E + W]
        The producers of each op's inputs, and the ops that it waits for.
    transfer : float64[E + W]
        Seconds of the input from another device; infinite where there is none.
    speed : float64[D]
        The capacity of each device, falling, of sum 1.
    overhead : float64
        The longest overhead of all devices.
    """

    seconds: NDArray[np.float64]
    rest: NDArray[np.float64]
    share: NDArray[np.float64]
    group: NDArray[np.int64]
    offsets: NDArray[np.int64]
    producers: NDArray[np.int64]
    transfer: NDArray[np.float64]
    speed: NDArray[np.float64]
    overhead: float

    def reversed(self) -> "RelaxedOps":
        """Return the same ops backwards in time: consumers are producers."""
        last = len(self.seconds) - 1
        consumers = np.repeat(np.arange(last + 1), np.diff(self.offsets))
        order = np.argsort(-self.producers, kind="stable")
        return self._replace(
            seconds=self.seconds[::-1].copy(),
            rest=self.rest[::-1].copy(),
            share=self.share[::-1].copy(),
            group=self.group[::-1].copy(),
            offsets=np.searchsorted(last - self.producers[order], np.arange(last + 2)),
            producers=last - consumers[order],
            transfer=self.transfer[order],
        )


def relax_ops(problem: PlacementProblem, paths: Paths) -> RelaxedOps:
    """Return the ops of a problem without their devices.

    Proof that ``share`` is right. Device ``d`` is busy for ``busy[v, d]`` seconds with op ``v`` and
    the overhead after it. With any ``speed >= 0`` of sum 1, let
    ``share[v] = min_d speed[d] busy[v, d]``. The ops that device ``d`` runs in ``L_d`` seconds then
    have shares of ``speed[d] L_d`` at most. (For equal devices this is the work over their number.)
    Any speeds give a bound. Here the speed of a device is the time of its ops on their fastest
    devices, relative to their time on this device.
    """
    graph = problem.graph
    can_run = np.isfinite(paths.seconds)
    rest = problem.overhead_time
    busy = np.where(can_run, problem.busy_time, np.inf)
    speed = _speeds(busy, can_run)
    weighted = np.where(can_run, np.where(can_run, busy, 0.0) * speed, np.inf)
    # No op can end before one that it depends on, also as sums of float64 are rounded.
    order = np.lexsort((graph.topological_index, paths.end.min(axis=1)))
    position = np.empty(graph.num_ops, np.int64)
    position[order] = np.arange(graph.num_ops)
    before, after = graph.precedences.T
    readers = position[after]
    by_reader = np.argsort(readers, kind="stable")
    return RelaxedOps(
        seconds=paths.seconds.min(axis=1)[order],
        rest=np.where(can_run, rest, np.inf).min(axis=1)[order],
        share=weighted.min(axis=1)[order],
        group=problem.grouping.group_of[order].astype(np.int64),
        offsets=np.searchsorted(readers[by_reader], np.arange(graph.num_ops + 1)),
        producers=position[before][by_reader],
        transfer=_least_transfers(problem)[by_reader],
        speed=-np.sort(-speed),
        overhead=max(device.op_overhead for device in problem.cluster.devices),
    )


def _speeds(busy: NDArray[np.float64], can_run: NDArray[np.bool_]) -> NDArray[np.float64]:
    fastest = busy.min(axis=1)
    taken = np.where(can_run, busy, 0.0).sum(axis=0)
    needed = np.where(can_run, fastest[:, None], 0.0).sum(axis=0)
    speed = np.divide(needed, taken, out=np.ones(len(taken)), where=taken > 0)
    if not speed.any():
        speed = np.ones(len(taken))
    scaled: NDArray[np.float64] = speed / speed.sum()
    return scaled


def _least_transfers(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[E + W], the seconds of each edge between the devices where it is fastest."""
    graph, cluster = problem.graph, problem.cluster
    least = np.full(graph.num_edges + graph.num_waits, np.inf)
    size = graph.tensor_bytes[graph.edges[:, 0]]
    for pair in zip(*np.nonzero(~np.eye(problem.num_devices, dtype=np.bool_)), strict=True):
        seconds = cluster.latency[pair] + size / cluster.bandwidth[pair]
        least[: graph.num_edges] = np.minimum(least[: graph.num_edges], seconds)
        least[graph.num_edges :] = 0.0  # nothing is sent
    return least
