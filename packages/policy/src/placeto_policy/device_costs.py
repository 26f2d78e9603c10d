"""What a pair of a group and a device is judged by, of a problem alone, computed once."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Cluster, GroupGraph, PlacementProblem
from placeto_policy.earliest import MIN_SECONDS, mean_seconds

MOST_TIMES_SLOWER = 1e4
GROUP_FEATURES = 6


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """Groups, devices and links in units that are the same for fast and slow ones.

    Nothing here depends on how devices are numbered. A *mean group* is the mean over groups of
    their mean time over the devices that can run them; transfers are as long as they take at the
    median bandwidth of all pairs of devices, or at the mean of their times per byte where most
    bytes are free.

    Attributes
    ----------
    group_features : float32[G, 6]
        ``log(1 + s)`` of a group's seconds and of those of all its transfers, both in mean groups;
        the largest part of a device's memory that it fills; and for the whole problem, the same
        for all groups: ``log(G) / 5``, ``D / 8``, and ``log(1 + s)`` of all transfers in parts of
        all work.
    slower : float32[G, D]
        The logarithm of how many times as long as on its best device a group takes.
    work : float32[G, D]
        The seconds of a group, in parts of the mean work of all groups; 0 where it cannot run.
    transfers : float32[G, G]
        The seconds of what flows between two groups, both ways, in mean groups.
    connected : float32[G, G]
        1 where something does.
    slowness : float32[D, D]
        Seconds per byte between two devices, mean of both ways, in parts of the median; 0 on the
        diagonal.
    latency : float32[D, D]
        Seconds that each transfer takes besides, in mean groups; 0 on the diagonal.

    Examples
    --------
    See `device_costs`.
    """

    group_features: torch.Tensor
    slower: torch.Tensor
    work: torch.Tensor
    transfers: torch.Tensor
    connected: torch.Tensor
    slowness: torch.Tensor
    latency: torch.Tensor


def device_costs(problem: PlacementProblem, memory: NDArray[np.float64]) -> DeviceCosts:
    """Return what pairs of groups and devices of a problem are judged by.

    Parameters
    ----------
    problem
        G groups on D devices.
    memory : float64[D, G]
        What each group keeps at the peak, in parts of the memory of each device.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> costs = device_costs(two_chains(), np.zeros((2, 6)))
    >>> costs.work[0]
    tensor([0.1667, 0.1667])
    >>> costs.connected[0]
    tensor([0., 1., 0., 0., 0., 0.])
    """
    times = problem.group_graph.compute_time
    possible = np.isfinite(times)
    seconds = mean_seconds(times)
    mean_group = max(float(seconds.mean()), MIN_SECONDS)
    best = np.where(possible, times, np.inf).min(axis=1, keepdims=True)
    ratio = np.divide(times, best, out=np.ones(times.shape), where=possible & (best > 0))
    seconds_per_byte, latency, typical = _links(problem.cluster)
    transfers = traffic_between(problem.group_graph) * (typical / mean_group)
    size = len(seconds)
    whole = [
        math.log(size) / 5,
        problem.num_devices / 8,
        math.log1p(float(transfers.sum()) / size),
    ]
    own = np.stack(
        [np.log1p(seconds / mean_group), np.log1p(transfers.sum(axis=1)), memory.max(axis=0)],
        axis=1,
    )
    return DeviceCosts(
        group_features=floats(np.concatenate([own, np.tile(whole, (size, 1))], axis=1)),
        slower=floats(np.log(np.clip(ratio, 1.0, MOST_TIMES_SLOWER))),
        work=floats(np.where(possible, times, 0.0) / (mean_group * size)),
        transfers=floats(transfers),
        connected=floats(_connected(problem.group_graph)),
        slowness=floats(seconds_per_byte / max(typical, MIN_SECONDS)),
        latency=floats(latency / mean_group),
    )


def _links(cluster: Cluster) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return seconds per byte and per transfer between devices, and a typical one of the first."""
    apart = ~np.eye(len(cluster.devices), dtype=bool)
    if not apart.any():
        nothing = np.zeros(apart.shape)
        return nothing, nothing, 0.0
    overhead = np.array([device.transfer_overhead for device in cluster.devices])
    per_byte = np.divide(1.0, cluster.bandwidth, out=np.zeros(apart.shape), where=apart)
    per_transfer = np.where(apart, cluster.latency + overhead[:, None], 0.0)
    typical = float(np.median(per_byte[apart])) or float(per_byte[apart].mean())
    return (per_byte + per_byte.T) / 2, (per_transfer + per_transfer.T) / 2, typical


def traffic_between(graph: GroupGraph) -> NDArray[np.float64]:
    """Return float64[G, G], the bytes that flow between each two groups, both ways."""
    traffic = np.zeros((graph.num_groups, graph.num_groups))
    sources, targets = graph.edges.T
    traffic[sources, targets] = traffic[targets, sources] = graph.edge_bytes
    return traffic


def _connected(graph: GroupGraph) -> NDArray[np.float64]:
    """Return float64[G, G], 1 where an edge is, which may carry no bytes."""
    connected = np.zeros((graph.num_groups, graph.num_groups))
    sources, targets = graph.edges.T
    connected[sources, targets] = connected[targets, sources] = 1.0
    return connected


def floats(values: NDArray[np.float64]) -> torch.Tensor:
    """Return a float32 tensor of the same shape."""
    return torch.from_numpy(values.astype(np.float32))
