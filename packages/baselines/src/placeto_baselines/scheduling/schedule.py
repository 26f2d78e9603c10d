"""Tasks on devices, one after the other."""

from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.scheduling.tasks import TaskGraph


@dataclass(frozen=True, eq=False)
class Schedule:
    """When and where each of G tasks runs, as a list scheduler sees it.

    A list scheduler thinks of a group as one piece that starts when all its inputs are there, and
    of links that carry any number of tensors at once, as its paper does: it knows how long each
    pair of devices takes, and not which pairs share a link. An evaluator may say something else.

    Attributes
    ----------
    device : int32[G]
        The device of each task.
    start, finish : float64[G]
        Seconds.
    """

    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    @property
    def makespan(self) -> float:
        """When the last task finishes, in seconds."""
        return float(self.finish.max())


class Timetable:
    """A schedule in the making.

    Attributes
    ----------
    free : float64[D]
        When each device has finished all that is scheduled on it.
    """

    def __init__(self, tasks: TaskGraph) -> None:
        self.tasks = tasks
        self.device = np.full(tasks.num_tasks, -1, np.int32)
        self.start = np.zeros(tasks.num_tasks)
        self.finish = np.zeros(tasks.num_tasks)
        self.free = np.zeros(tasks.num_devices)
        self._busy: list[list[tuple[float, float]]] = [[] for _ in range(tasks.num_devices)]

    def arrival(self, task: int) -> NDArray[np.float64]:
        """Return float64[D], when all inputs of a task can be on each device.

        All that it waits for must have been scheduled.
        """
        arrival = np.zeros(self.tasks.num_devices)
        for source, size in self.tasks.predecessors[task]:
            sent = self.finish[source] + self.tasks.transfer(int(self.device[source]), size)
            np.maximum(arrival, sent, out=arrival)
        return arrival

    def urgent(self, task: int) -> float:
        """Return when all inputs of a task can be on every device."""
        return max(
            (
                float(self.finish[source])
                + self.tasks.slowest_transfer(int(self.device[source]), size)
                for source, size in self.tasks.predecessors[task]
            ),
            default=0.0,
        )

    def first_gap(self, device: int, earliest: float, seconds: float) -> float:
        """Return when so many seconds first are free on a device, between tasks or after them."""
        start = earliest
        for busy_from, busy_until in self._busy[device]:
            if start + seconds <= busy_from:
                return start
            start = max(start, busy_until)
        return start

    def add(self, task: int, device: int, start: float) -> None:
        """Schedule a task."""
        self.device[task] = device
        self.start[task] = start
        self.finish[task] = start + self.tasks.seconds[task, device]
        insort(self._busy[device], (start, float(self.finish[task])))
        self.free[device] = max(self.free[device], self.finish[task])

    def schedule(self) -> Schedule:
        """Return the schedule once every task is in it."""
        return Schedule(self.device, self.start, self.finish)
