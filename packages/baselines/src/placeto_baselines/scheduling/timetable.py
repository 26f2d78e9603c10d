"""The graph of ops as list schedulers read it, and the schedule that they make of it."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import NOWHERE, mean_seconds
from placeto_graphs import PlacementProblem, sums_by_key


class TaskGraph:
    """V tasks on D devices; a task is an op, and the ops of a group share a device.

    A scheduler puts each group on one of its ``candidates``, bool[G, D]. Times, and the means that
    rank tasks, are over these. A mean transfer takes the mean of its seconds over the pairs of
    devices that it may go between. Topcuoglu et al. 2002 (equation 3) divide bytes by the mean
    bandwidth instead: one pair with an infinite bandwidth would make all transfers free. The two
    are the same where all pairs are alike. Devices that are not used, such as a CPU with
    accelerators, count nowhere.

    Tensors between two ops of a group are never sent, and an op that only waits for another
    (`OpGraph.waits`) gets no tensor from it. An op that takes no time and waits for nothing, such
    as a weight, is *data* and no task. Data are there from the beginning, on the device of their
    group. Their first reader decides which device that is.
    """

    def __init__(self, problem: PlacementProblem, candidates: NDArray[np.bool_]) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.candidates = candidates
        self.num_tasks, self.num_devices = problem.compute_time.shape
        self.num_groups = problem.num_groups
        self.group_of = problem.grouping.group_of
        # float64[V, D], infinite where a task is not to go
        self.seconds = np.where(candidates[self.group_of], problem.compute_time, np.inf)
        self.mean_seconds = mean_seconds(self.seconds)
        self.is_data = self.mean_seconds == 0
        self.is_data[graph.precedences[:, 1]] = False
        self._latency = cluster.latency
        self._seconds_per_byte = 1 / cluster.bandwidth
        order = graph.topological_order
        self.order: list[int] = order[~self.is_data[order]].tolist()  # without data
        # Of each task: (task that it waits for, bytes, or None if it reads nothing of it), ...
        self.predecessors: list[list[tuple[int, int | None]]] = [[] for _ in range(self.num_tasks)]
        # ... (data of other groups that it reads, bytes), ...
        self.data: list[list[tuple[int, int]]] = [[] for _ in range(self.num_tasks)]
        # ... and (task that waits for it, mean seconds of the transfer).
        self.successors: list[list[tuple[int, float]]] = [[] for _ in range(self.num_tasks)]
        # Groups with the same candidates are alike.
        kinds, kind_of_group = np.unique(candidates, axis=0, return_inverse=True)
        kind_of = kind_of_group.ravel()[self.group_of]
        latency = _mean_over_pairs(cluster.latency, kinds)
        seconds_per_byte = _mean_over_pairs(self._seconds_per_byte, kinds)
        pairs = graph.precedences[: graph.num_edges]  # by edges, and not by waits
        unique_pairs, pair_of = np.unique(pairs, axis=0, return_inverse=True)
        sizes = sums_by_key(
            pair_of.ravel(), graph.tensor_bytes[graph.edges[:, 0]], len(unique_pairs)
        )
        for (source, reader), size in zip(unique_pairs.tolist(), sizes.tolist(), strict=True):
            apart = self.group_of[source] != self.group_of[reader]
            if not self.is_data[source]:
                self.predecessors[reader].append((source, size))
                ends = kind_of[source], kind_of[reader]
                sent = float(latency[ends] + size * seconds_per_byte[ends]) if apart else 0.0
                self.successors[source].append((reader, sent))
            elif apart:
                self.data[reader].append((source, size))
        joined_by_edges = set(map(tuple, pairs.tolist()))
        for waiter, source in graph.waits.tolist():
            if not self.is_data[source] and (source, waiter) not in joined_by_edges:
                self.predecessors[waiter].append((source, None))
                self.successors[source].append((waiter, 0.0))

    def transfers(
        self,
        size: int | None,
        sources: int | NDArray[np.intp],
        readers: slice | NDArray[np.intp] = slice(None),
    ) -> NDArray[np.float64]:
        """Return the seconds that bytes, or nothing, take from devices to all, or to readers."""
        if size is None:
            return np.zeros(self._latency[sources, readers].shape)
        seconds_per_byte = self._seconds_per_byte[sources, readers]
        seconds: NDArray[np.float64] = self._latency[sources, readers] + size * seconds_per_byte
        return seconds

    def upward_rank(self, *, with_transfers: bool = True) -> NDArray[np.float64]:
        """Return float64[V], the longest path from each task to an exit, by mean costs.

        ``rank(i) = w_i + max over successors j of (c_ij + rank(j))``, with the mean computation
        ``w`` and the mean communication ``c`` (Topcuoglu et al. 2002), or 0 without transfers.
        """
        rank: list[float] = self.mean_seconds.tolist()
        for task in reversed(self.order):
            path_seconds = [sent * with_transfers + rank[j] for j, sent in self.successors[task]]
            rank[task] += max(path_seconds, default=0.0)
        return np.array(rank)


def _mean_over_pairs(between: NDArray[np.float64], kinds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return float64[K, K], the mean over pairs of two devices, one of either of two kinds of sets.

    bool[K, D] says which devices are in a set. Where a pair of sets has no two devices between
    them, the mean is 0.
    """
    sets = kinds.astype(np.float64)
    apart = 1 - np.eye(len(between))
    pairs = sets @ apart @ sets.T
    mean: NDArray[np.float64] = (sets @ (between * apart) @ sets.T) / np.maximum(pairs, 1)
    return mean


class Timetable:
    """The schedule of V ops that a list scheduler makes, as it grows.

    List schedulers assume links that carry any number of tensors at once, as their papers do. They
    use the time of a transfer between each pair of devices, and ignore that pairs share links. An
    evaluator may return another runtime.

    The first task of a group places the group, as in Baechi (Jeon et al. 2020, section 4). Gradient
    ops thus go to the device of their forward ops. Data are placed with their first reader.
    """

    def __init__(self, tasks: TaskGraph) -> None:
        self.tasks = tasks
        self.placement = np.full(tasks.num_groups, NOWHERE, np.int32)
        self.start, self.finish = np.zeros((2, tasks.num_tasks))
        self.free = np.zeros(tasks.num_devices)  # end of all that is scheduled on each device
        self.missing = [len(sources) for sources in tasks.predecessors]
        # Tasks that are not scheduled, but all of whose predecessors are, in the order in which
        # they became so, and those that the last one made ready.
        self.newly_ready = [task for task in tasks.order if not self.missing[task]]
        self.ready = dict.fromkeys(self.newly_ready)

    def candidates(self, groups: int | NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return bool[..., D], the devices that groups may go to, as things stand."""
        candidates: NDArray[np.bool_] = self.tasks.candidates[groups]
        return candidates

    def devices(self, task: int) -> NDArray[np.intp]:
        """Return the devices that a task may go to: that of its group, if it has one."""
        group = self.tasks.group_of[task]
        if self.placement[group] != NOWHERE:
            return self.placement[[group]].astype(np.intp)
        return np.flatnonzero(self.candidates(group))

    def sent(self, task: int, size: int | None) -> NDArray[np.float64]:
        """Return float64[D], when so many bytes of a scheduled task can be on each device.

        Without bytes, when it is done.
        """
        device = self.placement[self.tasks.group_of[task]]
        return self.tasks.transfers(size, int(device)) + float(self.finish[task])

    def arrival(self, task: int) -> NDArray[np.float64]:
        """Return float64[D], when a task can start on each device, but for what else runs there.

        All that it reads and waits for must have been scheduled.
        """
        arrival = np.zeros(self.tasks.num_devices)
        for source, size in self.tasks.predecessors[task]:
            np.maximum(arrival, self.sent(source, size), out=arrival)
        for data, size in self.tasks.data[task]:
            homes = self._homes(int(self.tasks.group_of[data]))
            sent = self.tasks.transfers(size, homes, np.arange(self.tasks.num_devices))
            np.maximum(arrival, sent, out=arrival)
        return arrival

    def add(self, task: int, device: int, start: float) -> list[int]:
        """Schedule a ready task; return the groups that have got their device by that."""
        settled = self._settle(int(self.tasks.group_of[task]), device)
        for data, _ in self.tasks.data[task]:
            group = int(self.tasks.group_of[data])
            settled += self._settle(group, int(self._homes(group)[device]))
        seconds = float(self.tasks.seconds[task, device])
        self.start[task], self.finish[task] = start, start + seconds
        self.free[device] = max(self.free[device], self.finish[task])
        readers = [reader for reader, _ in self.tasks.successors[task]]
        for reader in readers:
            self.missing[reader] -= 1
        self.newly_ready = [reader for reader in readers if not self.missing[reader]]
        del self.ready[task]
        self.ready |= dict.fromkeys(self.newly_ready)
        return settled

    @property
    def device(self) -> NDArray[np.int32]:  # [V], that of the group of each op
        return self.placement[self.tasks.group_of]

    def completed(self) -> "Timetable":
        """Return the schedule once every task is in it; what is left are data that nobody reads."""
        for group in np.flatnonzero(self.placement == NOWHERE).tolist():
            self._settle(group, int(self.candidates(group).argmax()))
        return self

    def _settle(self, group: int, device: int) -> list[int]:
        if self.placement[group] != NOWHERE:
            return []
        self.placement[group] = device
        return [group]

    def _homes(self, group: int) -> NDArray[np.intp]:
        """Return int[D], where data are: with their group, else with the device that reads them."""
        if self.placement[group] != NOWHERE:
            return np.full(self.tasks.num_devices, self.placement[group], np.intp)
        candidates = self.candidates(group)
        return np.where(candidates, np.arange(self.tasks.num_devices), candidates.argmax())
