"""Features of pairs of a group and a device that no placement changes, computed once."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Cluster, PlacementProblem
from placeto_policy.earliest import MIN_SECONDS, earliest_starts, mean_seconds

MOST_TIMES_SLOWER = 1e4
GROUP_FEATURES = 9


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """Features of groups, devices and links, in units of the problem.

    Nothing here depends on how devices are numbered. The seconds of a group include the overhead
    of its ops. A *mean group* is the mean over groups of their mean seconds over the devices that
    can run them. A *typical link* has the median bandwidth of all pairs of devices, or the mean
    seconds per byte if most bytes are free.

    Attributes
    ----------
    group_features : float32[G, 9]
        Three of the group: ``log(1 + s)`` of its seconds and of those of all its transfers over a
        typical link, in mean groups, and the largest fraction of a device's memory that it fills.
        Six of the problem: ``log(G) / 5``; ``D / 8``; ``log(1 + s)`` of all transfers as a fraction
        of all work; ``log(1 + s)`` of the longest path of groups and of all work, as fractions of
        the longest path of ops; and 1 if backward ops go first. Micro-batches make the path of
        groups long.
    slower : float32[G, D]
        Logarithm of the ratio of a group's seconds to those on its best device.
    work : float32[G, D]
        Seconds of a group as a fraction of the mean work of all groups; 0 where it cannot run.
    sent : float32[G, G]
        Seconds over a typical link of the bytes that row sends to column, in mean groups.
    tensors : float32[G, G]
        Number of tensors that row sends to column.
    flows : int64[2, E]
        Sender and receiver of each pair of groups between which tensors flow.
    slowness : float32[D, D]
        Seconds per byte from row to column, relative to a typical link; 0 on the diagonal.
    latency : float32[D, D]
        Seconds that each transfer takes besides, in mean groups; 0 on the diagonal.
    nearness : float32[D, D]
        Nearness of two devices, from 0 for the two farthest ones to 1: by their seconds per byte
        and per transfer, both ways, times the number of pairs of devices that share the links.
    link : int64[D, D]
        Link that carries transfers from row to column; 0 on the diagonal, where nothing is carried.
    num_links : int
        Number of links, L, at least 1.
    """

    group_features: torch.Tensor
    slower: torch.Tensor
    work: torch.Tensor
    sent: torch.Tensor
    tensors: torch.Tensor
    flows: torch.Tensor
    slowness: torch.Tensor
    latency: torch.Tensor
    nearness: torch.Tensor
    link: torch.Tensor
    num_links: int


def device_costs(
    problem: PlacementProblem, memory: NDArray[np.float64], longest_path: float
) -> DeviceCosts:
    """Return the features of pairs; memory float64[D, G] is in fractions of that of each device."""
    times = busy_time(problem)
    possible = np.isfinite(times)
    seconds = mean_seconds(times)
    mean_group = max(float(seconds.mean()), MIN_SECONDS)
    best = np.where(possible, times, np.inf).min(axis=1, keepdims=True)
    ratio = np.divide(times, best, out=np.ones(times.shape), where=possible & (best > 0))
    per_byte, per_transfer, typical = _links(problem.cluster)
    sent_bytes, tensors = traffic(problem)
    sent = sent_bytes * (typical / mean_group)
    size = len(seconds)
    features_of_groups = [
        np.log1p(seconds / mean_group),
        np.log1p(sent.sum(axis=1) + sent.sum(axis=0)),
        memory.max(axis=0),
    ]
    features_of_problem = [
        math.log(size) / 5,
        problem.num_devices / 8,
        math.log1p(2 * float(sent.sum()) / size),
        *_paths(problem, seconds, longest_path),
        float(problem.cluster.queue == "backward-first"),
    ]
    columns = [*features_of_groups, *(np.full(size, feature) for feature in features_of_problem)]
    return DeviceCosts(
        group_features=floats(np.stack(columns, axis=1)),
        slower=floats(np.log(np.clip(ratio, 1.0, MOST_TIMES_SLOWER))),
        work=floats(np.where(possible, times, 0.0) / (mean_group * size)),
        sent=floats(sent),
        tensors=floats(tensors),
        flows=torch.from_numpy(np.stack(np.nonzero(tensors))),
        slowness=floats(per_byte / max(typical, MIN_SECONDS)),
        latency=floats(per_transfer / mean_group),
        nearness=floats(_nearness(problem.cluster.link, per_byte, per_transfer)),
        link=torch.from_numpy(np.maximum(problem.cluster.link, 0).astype(np.int64)),
        num_links=max(1, len(problem.cluster.link_names)),
    )


def busy_time(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G, D], the seconds of each group on each device, overheads included."""
    group_of, size = problem.grouping.group_of, problem.num_groups
    columns = [np.bincount(group_of, seconds, size) for seconds in problem.busy_time.T]
    return np.stack(columns, axis=1)


def traffic(problem: PlacementProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64[G, G] twice: bytes and number of the tensors that row sends to column.

    A tensor counts once for each group that reads it.
    """
    graph, group_of, size = problem.graph, problem.grouping.group_of, problem.num_groups
    readers = group_of[graph.edge_consumers].astype(np.int64)
    crosses = group_of[graph.edge_producers] != readers
    once = np.unique(graph.edges[crosses, 0].astype(np.int64) * size + readers[crosses])
    tensors, readers = np.divmod(once, size)
    pairs = group_of[graph.tensor_producer[tensors]].astype(np.int64) * size + readers
    sent = np.bincount(pairs, graph.tensor_bytes[tensors], size * size).astype(np.float64)
    counts = np.bincount(pairs, minlength=size * size).astype(np.float64)
    return sent.reshape(size, size), counts.reshape(size, size)


def _paths(problem: PlacementProblem, seconds: NDArray[np.float64], longest: float) -> list[float]:
    """Return log(1 + s) of the longest path of groups, and of all work, in longest paths of ops."""
    graph = problem.group_graph
    end = earliest_starts(graph.edges, np.argsort(graph.topological_order), seconds) + seconds
    unit = max(longest, MIN_SECONDS)
    return [math.log1p(float(end.max()) / unit), math.log1p(float(seconds.sum()) / unit)]


def _links(cluster: Cluster) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return seconds per byte and per transfer between devices, and typical seconds per byte."""
    apart = ~np.eye(len(cluster.devices), dtype=bool)
    if not apart.any():
        nothing = np.zeros(apart.shape)
        return nothing, nothing, 0.0
    overhead = np.array([device.transfer_overhead for device in cluster.devices])
    per_byte = np.divide(1.0, cluster.bandwidth, out=np.zeros(apart.shape), where=apart)
    per_transfer = np.where(apart, cluster.latency + overhead[:, None], 0.0)
    typical = float(np.median(per_byte[apart])) or float(per_byte[apart].mean())
    return per_byte, per_transfer, typical


def _nearness(link: NDArray[np.int32], *seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    pairs = np.bincount(link[link >= 0], minlength=1)[link]
    distance = np.zeros(link.shape)
    for link_seconds in seconds:
        both_ways = link_seconds * pairs + (link_seconds * pairs).T
        distance += both_ways / max(both_ways.max(), MIN_SECONDS)
    farthest = distance.max()
    nearness: NDArray[np.float64] = (farthest - distance) / max(farthest, MIN_SECONDS)
    np.fill_diagonal(nearness, 0.0)
    return nearness


def floats(array: NDArray[np.float64]) -> torch.Tensor:
    """Return a float32 tensor of the same shape."""
    return torch.from_numpy(array.astype(np.float32))
