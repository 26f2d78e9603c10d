"""The graph of groups as list schedulers read it: tasks, what they take, what they wait for."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import accelerators
from placeto_baselines.devices import allowed_devices
from placeto_graphs import PlacementProblem


class TaskGraph:
    """G tasks on D devices; a task is a group of ops.

    Attributes
    ----------
    seconds : float64[G, D]
        What each task takes on each device; infinity where it cannot run.
    mean_seconds : float64[G]
        The mean over the devices that can run it.
    predecessors, successors : G lists of (task, bytes)
        What each task waits for, and what waits for it.
    order : int32[G]
        The tasks in topological order.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        groups = problem.group_graph
        self.num_tasks = groups.num_groups
        self.num_devices = groups.num_devices
        self.seconds = groups.compute_time
        runs = allowed_devices(problem)
        self.mean_seconds: NDArray[np.float64] = np.where(runs, self.seconds, 0.0).sum(
            axis=1
        ) / runs.sum(axis=1)
        self.latency = problem.cluster.latency
        self.seconds_per_byte = 1 / problem.cluster.bandwidth
        self.order = groups.topological_order
        self.predecessors: list[list[tuple[int, int]]] = [[] for _ in range(self.num_tasks)]
        self.successors: list[list[tuple[int, int]]] = [[] for _ in range(self.num_tasks)]
        for (source, reader), size in zip(
            groups.edges.tolist(), groups.edge_bytes.tolist(), strict=True
        ):
            self.predecessors[reader].append((source, size))
            self.successors[source].append((reader, size))

    def transfer(self, source: int, size: int) -> NDArray[np.float64]:
        """Return float64[D], the seconds that so many bytes take from a device to each device."""
        seconds: NDArray[np.float64] = self.latency[source] + size * self.seconds_per_byte[source]
        return seconds

    def mean_transfer(self, size: int) -> float:
        """Return the mean seconds that so many bytes take between two different devices."""
        if self.num_devices == 1:
            return 0.0
        # The diagonal of both is 0: nothing is sent from a device to itself.
        pairs = self.num_devices * (self.num_devices - 1)
        total = self.latency.sum() + size * self.seconds_per_byte.sum()
        return float(total) / pairs

    def slowest_transfer(self, source: int, size: int) -> float:
        """Return the seconds that so many bytes take from a device to the farthest other one."""
        return float(self.transfer(source, size).max())

    def upward_rank(self) -> NDArray[np.float64]:
        """Return float64[G], the longest path from each task to an exit, by mean costs.

        ``rank(i) = w_i + max over successors j of (c_ij + rank(j))``, with the mean computation
        ``w`` and the mean communication ``c`` (Topcuoglu et al. 2002).
        """
        rank: NDArray[np.float64] = self.mean_seconds.copy()
        for task in self.order[::-1].tolist():
            paths = [self.mean_transfer(size) + rank[j] for j, size in self.successors[task]]
            rank[task] += max(paths, default=0.0)
        return rank

    def static_level(self) -> NDArray[np.float64]:
        """Return float64[G], the longest path from each task to an exit, without communication."""
        level: NDArray[np.float64] = self.mean_seconds.copy()
        for task in self.order[::-1].tolist():
            level[task] += max((level[j] for j, _ in self.successors[task]), default=0.0)
        return level


def accelerated_tasks(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], the devices among which schedulers for equal devices choose.

    Those that ask only where a task starts first would give work to a slow CPU. They see the
    accelerators, and other devices for the tasks that no accelerator can run.
    """
    runs = allowed_devices(problem)
    accelerated = np.zeros_like(runs)
    here = accelerators(problem)
    accelerated[:, here] = runs[:, here]
    return np.where(accelerated.any(axis=1, keepdims=True), accelerated, runs)
