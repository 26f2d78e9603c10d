"""The graph of ops as list schedulers read it: what tasks take, and what they wait for."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import mean_seconds
from placeto_graphs import PlacementProblem


class TaskGraph:
    """V tasks on D devices; a task is an op, and the ops of a group share a device.

    A scheduler puts each group on one of its candidates. Times, and the means that rank tasks, are
    over these. The mean of a transfer is over the pairs of devices that it may go between. Devices
    that are not used, such as a CPU with accelerators, count nowhere.

    Tensors between two ops of a group are never sent, and an op that only waits for another
    (`OpGraph.waits`) gets no tensor from it. An op that takes no time and waits for nothing, such
    as a weight, is *data* and no task. Data are there from the beginning, on the device of their
    group. Their first reader decides which device that is.

    Parameters
    ----------
    problem
        Problem to place.
    candidates : bool[G, D]
        Devices where the scheduler may put each group, at least one.

    Attributes
    ----------
    candidates : bool[G, D]
        The same.
    num_tasks, num_devices, num_groups : int
        V, data included; D; and G.
    group_of : int32[V]
        The group of each task.
    seconds : float64[V, D]
        Seconds of each task on each candidate of its group; infinity on other devices.
    mean_seconds : float64[V]
        Their mean.
    is_data : bool[V]
        True where a task is data.
    predecessors : V lists of (task, bytes)
        Tasks that each task waits for, without data; None in place of bytes where it reads nothing
        of them.
    data : V lists of (data, bytes)
        The data that each task reads of other groups.
    successors : V lists of (task, seconds)
        Tasks that wait for each task, and mean seconds of the transfer; 0 where there is none.
    order : list of int
        The tasks without data, in topological order.
    """

    def __init__(self, problem: PlacementProblem, candidates: NDArray[np.bool_]) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.candidates = candidates
        self.num_tasks, self.num_devices = problem.compute_time.shape
        self.num_groups = problem.num_groups
        self.group_of = problem.grouping.group_of
        self.seconds = np.where(candidates[self.group_of], problem.compute_time, np.inf)
        self.mean_seconds = mean_seconds(self.seconds)
        self.is_data = self.mean_seconds == 0
        self.is_data[graph.precedences[:, 1]] = False
        self._latency = cluster.latency
        self._seconds_per_byte = 1 / cluster.bandwidth
        order = graph.topological_order
        self.order: list[int] = order[~self.is_data[order]].tolist()
        self.predecessors: list[list[tuple[int, int | None]]] = [[] for _ in range(self.num_tasks)]
        self.data: list[list[tuple[int, int]]] = [[] for _ in range(self.num_tasks)]
        self.successors: list[list[tuple[int, float]]] = [[] for _ in range(self.num_tasks)]
        # Groups with the same candidates are alike.
        kinds, kind_of_group = np.unique(candidates, axis=0, return_inverse=True)
        kind_of = kind_of_group.ravel()[self.group_of]
        latency = _mean_over_pairs(cluster.latency, kinds)
        seconds_per_byte = _mean_over_pairs(self._seconds_per_byte, kinds)
        for source, reader, size in _traffic(problem):
            apart = self.group_of[source] != self.group_of[reader]
            if not self.is_data[source]:
                self.predecessors[reader].append((source, size))
                ends = kind_of[source], kind_of[reader]
                sent = float(latency[ends] + size * seconds_per_byte[ends]) if apart else 0.0
                self.successors[source].append((reader, sent))
            elif apart:
                self.data[reader].append((source, size))
        for source, waiter in _only_waiting(problem):
            if not self.is_data[source]:
                self.predecessors[waiter].append((source, None))
                self.successors[source].append((waiter, 0.0))

    def transfers(self, size: int | None) -> NDArray[np.float64]:
        """Return float64[D, D], the seconds that bytes, or nothing, take from device to device."""
        if size is None:
            return np.zeros_like(self._latency)
        seconds: NDArray[np.float64] = self._latency + size * self._seconds_per_byte
        return seconds

    def upward_rank(self, *, with_transfers: bool = True) -> NDArray[np.float64]:
        """Return float64[V], the longest path from each task to an exit, by mean costs.

        ``rank(i) = w_i + max over successors j of (c_ij + rank(j))``, with the mean computation
        ``w`` and the mean communication ``c`` (Topcuoglu et al. 2002), or 0 without transfers.
        """
        rank: list[float] = self.mean_seconds.tolist()
        for task in reversed(self.order):
            after = [sent * with_transfers + rank[j] for j, sent in self.successors[task]]
            rank[task] += max(after, default=0.0)
        return np.array(rank)


def _mean_over_pairs(between: NDArray[np.float64], kinds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return float64[K, K], the mean over pairs of two devices, one of either of two kinds of sets.

    ``between`` float64[D, D] is 0 on its diagonal, and bool[K, D] says which devices are in a set.
    Where a pair of sets has no two devices between them, the mean is 0.
    """
    sets = kinds.astype(np.float64)
    apart = 1 - np.eye(len(between))
    mean: NDArray[np.float64] = (sets @ between @ sets.T) / np.maximum(sets @ apart @ sets.T, 1)
    return mean


def _traffic(problem: PlacementProblem) -> list[tuple[int, int, int]]:
    """Return (producer, consumer, bytes) of each pair of ops between which tensors flow."""
    graph = problem.graph
    size = graph.tensor_bytes[graph.edges[:, 0]]
    pairs = np.stack([graph.edge_producers, graph.edge_consumers], axis=1)
    found, pair_of_edge = np.unique(pairs, axis=0, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, pair_of_edge.ravel(), size)
    return [
        (source, reader, sum_of)
        for (source, reader), sum_of in zip(found.tolist(), total.tolist(), strict=True)
    ]


def _only_waiting(problem: PlacementProblem) -> list[tuple[int, int]]:
    """Return (op, op that waits for it) of the pairs of ops between which no tensor flows."""
    graph = problem.graph
    readers = set(map(tuple, graph.precedences[: graph.num_edges].tolist()))
    return [(before, op) for op, before in graph.waits.tolist() if (before, op) not in readers]
