"""Tasks on devices, one after the other, and groups where their first task is."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import NOWHERE
from placeto_baselines.scheduling.tasks import TaskGraph


class Gaps:
    """The times in which nothing has been scheduled on a device, in their order.

    Examples
    --------
    >>> gaps = Gaps()
    >>> gaps.take(0.0, 2.0)
    >>> gaps.take(5.0, 6.0)
    >>> gaps.first(1.0, 3.0), gaps.first(1.0, 4.0), gaps.first(3.0, 1.0)
    (2.0, 6.0, 3.0)
    """

    def __init__(self) -> None:
        self._starts = [0.0]
        self._ends = [float("inf")]

    def first(self, earliest: float, seconds: float) -> float:
        """Return when so many seconds first are free, no earlier than asked."""
        gap = bisect_right(self._ends, earliest)
        while True:
            start = max(earliest, self._starts[gap])
            if start + seconds <= self._ends[gap]:
                return start
            gap += 1

    def take(self, start: float, end: float) -> None:
        """Let something run from a time in a gap to another one in it."""
        if end <= start:
            return
        gap = bisect_right(self._starts, start) - 1
        parts = ((self._starts[gap], start), (end, self._ends[gap]))
        left = [(begin, until) for begin, until in parts if begin < until]
        self._starts[gap : gap + 1] = [begin for begin, _ in left]
        self._ends[gap : gap + 1] = [until for _, until in left]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The schedule of V ops that a list scheduler makes: device, start and end of each.

    List schedulers assume links that carry any number of tensors at once, as their papers do. They
    use the time of a transfer between each pair of devices, and ignore that pairs share links. An
    evaluator may return another runtime.

    Attributes
    ----------
    placement : int32[G]
        The device of each group.
    device : int32[V]
        The device of each op: that of its group.
    start, finish : float64[V]
        Seconds.
    """

    placement: NDArray[np.int32]
    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    @property
    def makespan(self) -> float:
        """When the last op finishes, in seconds."""
        return float(self.finish.max())


class Timetable:
    """A schedule in the making.

    The first task of a group places the group, as in Baechi (Jeon et al. 2020, section 4). Gradient
    ops thus go to the device of their forward ops. Data are placed with their first reader.

    Attributes
    ----------
    candidates : bool[G, D]
        Devices that each group may go to: at first those of the tasks.
    free : float64[D]
        End of all ops that are scheduled on each device, seconds.
    placement : int32[G]
        The device of each group; -1 where it has none yet.
    """

    def __init__(self, tasks: TaskGraph) -> None:
        self.tasks = tasks
        self.candidates = tasks.candidates
        self.placement = np.full(tasks.num_groups, NOWHERE, np.int32)
        self.start = np.zeros(tasks.num_tasks)
        self.finish = np.zeros(tasks.num_tasks)
        self.free = np.zeros(tasks.num_devices)
        self._gaps = [Gaps() for _ in range(tasks.num_devices)]

    def device(self, task: int) -> int:
        """Return the device of a task that has been scheduled."""
        return int(self.placement[self.tasks.group_of[task]])

    def devices(self, task: int) -> NDArray[np.intp]:
        """Return the devices that a task may go to: that of its group, if it has one."""
        group = self.tasks.group_of[task]
        if self.placement[group] != NOWHERE:
            return self.placement[[group]].astype(np.intp)
        return np.flatnonzero(self.candidates[group])

    def sent(self, task: int, size: int | None) -> NDArray[np.float64]:
        """Return float64[D], when so many bytes of a scheduled task can be on each device.

        Without bytes, when it is done.
        """
        seconds: NDArray[np.float64] = self.tasks.transfers(size)[self.device(task)]
        return seconds + float(self.finish[task])

    def arrival(self, task: int) -> NDArray[np.float64]:
        """Return float64[D], when a task can start on each device, but for what else runs there.

        All that it reads and waits for must have been scheduled.
        """
        arrival = np.zeros(self.tasks.num_devices)
        for source, size in self.tasks.predecessors[task]:
            np.maximum(arrival, self.sent(source, size), out=arrival)
        for data, size in self.tasks.data[task]:
            np.maximum(arrival, self._fetching(data, size), out=arrival)
        return arrival

    def first_gap(self, device: int, earliest: float, seconds: float) -> float:
        """Return when so many seconds first are free on a device, between tasks or after them."""
        return self._gaps[device].first(earliest, seconds)

    def add(self, task: int, device: int, start: float) -> list[int]:
        """Schedule a task; return the groups that have got their device by that."""
        settled = self._settle(int(self.tasks.group_of[task]), device)
        for data, _ in self.tasks.data[task]:
            group = int(self.tasks.group_of[data])
            settled += self._settle(group, self._home(group, device))
        seconds = float(self.tasks.seconds[task, device])
        self.start[task], self.finish[task] = start, start + seconds
        self._gaps[device].take(start, start + seconds)
        self.free[device] = max(self.free[device], self.finish[task])
        return settled

    def schedule(self) -> Schedule:
        """Return the schedule once every task is in it; what is left are data that nobody reads."""
        for group in np.flatnonzero(self.placement == NOWHERE).tolist():
            self._settle(group, int(self.candidates[group].argmax()))
        device = self.placement[self.tasks.group_of]
        return Schedule(self.placement, device, self.start, self.finish)

    def _settle(self, group: int, device: int) -> list[int]:
        if self.placement[group] != NOWHERE:
            return []
        self.placement[group] = device
        return [group]

    def _home(self, group: int, reader: int) -> int:
        """Return where data are: with their group, else with the device that reads them first."""
        if self.placement[group] != NOWHERE:
            return int(self.placement[group])
        return reader if self.candidates[group, reader] else int(self.candidates[group].argmax())

    def _fetching(self, data: int, size: int) -> NDArray[np.float64]:
        """Return float64[D], the seconds that data take to each device."""
        group = int(self.tasks.group_of[data])
        homes = [self._home(group, reader) for reader in range(self.tasks.num_devices)]
        seconds: NDArray[np.float64] = self.tasks.transfers(size)[homes, range(len(homes))]
        return seconds
