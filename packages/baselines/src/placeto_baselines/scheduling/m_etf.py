"""Memory-constrained earliest task first (m-ETF), and the rule of m-SCT that goes with it."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.scheduling.demand import MemoryBook
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.schedule import Timetable
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_baselines.scheduling.tasks import accelerated_tasks
from placeto_graphs import PlacementProblem

NOBODY = -1


class MEtf(ListScheduler):
    """m-ETF of Baechi (Jeon et al. 2020): earliest task first, where memory allows.

    Of all groups whose inputs are scheduled, and all devices that have the memory, the pair that
    can start earliest is scheduled (ETF, Hwang et al. 1989); of several the group with the longest
    path of work to an exit, then the device where it finishes first. A group that fits on no device
    goes to the one with the most memory to spare, and the placement may not fit. Of a cluster with
    accelerators the CPU only gets what no accelerator can run.

    Examples
    --------
    >>> MEtf().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "m-etf"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the rule makes."""
        tasks = TaskGraph(problem)
        return EarliestFirst(problem, tasks, [NOBODY] * tasks.num_tasks).run()


class EarliestFirst:
    """The schedule that grows by the pair of task and device that can start earliest.

    With favourite children it is that of SCT (Hanen and Munier 1995): a device whose last task has
    an unscheduled favourite child that can run there no later than elsewhere is awake. It waits
    for that child, and meanwhile takes only urgent tasks: those whose inputs could by then be on
    any device.

    Parameters
    ----------
    problem
        What is scheduled.
    tasks
        Its tasks.
    favourite
        The favourite child of each task, or -1.
    """

    def __init__(self, problem: PlacementProblem, tasks: TaskGraph, favourite: list[int]) -> None:
        self.tasks = tasks
        self.favourite = favourite
        self.timetable = Timetable(tasks)
        self.memory = MemoryBook(problem, [len(readers) for readers in tasks.successors])
        self.candidates = accelerated_tasks(problem)
        self.level = tasks.static_level()
        self.missing = [len(sources) for sources in tasks.predecessors]
        self.arrival: dict[int, NDArray[np.float64]] = {}  # of the tasks that are ready
        self.urgent: dict[int, float] = {}
        self.last_task = [NOBODY] * tasks.num_devices
        self.now = 0.0  # no task starts before one that was scheduled earlier

    def run(self) -> Schedule:
        """Schedule all tasks."""
        for task, missing in enumerate(self.missing):
            if not missing:
                self._is_ready(task)
        while self.arrival:
            task, device, start = self._earliest()
            self._add(task, device, start)
        return self.timetable.schedule()

    def _is_ready(self, task: int) -> None:
        self.arrival[task] = self.timetable.arrival(task)
        self.urgent[task] = self.timetable.urgent(task)

    def _add(self, task: int, device: int, start: float) -> None:
        self.timetable.add(task, device, start)
        self.now = max(self.now, start)
        self.last_task[device] = task
        del self.arrival[task], self.urgent[task]
        sources = [source for source, _ in self.tasks.predecessors[task]]
        places = [(source, int(self.timetable.device[source])) for source in sources]
        self.memory.add(task, device, places)
        for reader, _ in self.tasks.successors[task]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._is_ready(reader)

    def _earliest(self) -> tuple[int, int, float]:
        """Return the next task, its device and its start."""
        ready = np.array(list(self.arrival))
        arrival = np.stack([self.arrival[task] for task in ready.tolist()])
        start = np.maximum(np.maximum(arrival, self.timetable.free), self.now)
        open_to = np.stack([self._open_to(task) for task in ready.tolist()])
        start = np.where(open_to, start, np.inf)
        waited_for = self._make_wait(ready, start)
        rows, devices = np.nonzero(open_to)
        tasks, starts = ready[rows], start[rows, devices]
        finish = starts + self.tasks.seconds[tasks, devices]
        keys = (devices, tasks, finish, -self.level[tasks], ~waited_for[rows, devices], starts)
        first = np.lexsort(keys)[0]
        return int(tasks[first]), int(devices[first]), float(starts[first])

    def _open_to(self, task: int) -> NDArray[np.bool_]:
        """Return bool[D], the devices for a task: those it fits on, else the one with most room."""
        candidates = self.candidates[task]
        fits: NDArray[np.bool_] = candidates & self.memory.fits(task)
        if not fits.any():
            room = np.where(candidates, self.memory.free, np.iinfo(np.int64).min)
            fits[room.argmax()] = True
        return fits

    def _make_wait(self, ready: NDArray[np.intp], start: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Delay on devices that are awake what is not urgent; return where a child is awaited."""
        waited_for = np.zeros(start.shape, np.bool_)
        row_of = {task: row for row, task in enumerate(ready.tolist())}
        for device, last in enumerate(self.last_task):
            row = row_of.get(self.favourite[last]) if last != NOBODY else None
            if row is not None and start[row, device] <= start[row].min() < np.inf:
                waited_for[row, device] = True
        urgent = np.array([self.urgent[task] for task in ready.tolist()])
        awake = waited_for.any(axis=0)
        delayed = np.maximum(start, urgent[:, None])
        start[:] = np.where(awake & ~waited_for, delayed, start)
        return waited_for
