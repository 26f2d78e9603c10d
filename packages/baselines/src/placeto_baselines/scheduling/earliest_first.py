"""Earliest task first, where memory allows, with or without favourite children."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.scheduling.favourite_children import NOBODY
from placeto_baselines.scheduling.schedule import Schedule, Timetable
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class Demand:
    """Bytes that each of G groups takes on its device (Jeon et al. 2020, sections 3 and 4).

    Attributes
    ----------
    permanent : int64[G]
        Weights and optimizer state, and what the forward pass keeps for the backward pass: the
        outputs that ops of another phase read, and those that are held until the step ends.
    temporary : int64[G]
        The most that an op of the group takes besides: its other outputs and its workspace.
    """

    permanent: NDArray[np.int64]
    temporary: NDArray[np.int64]

    @property
    def total(self) -> NDArray[np.int64]:
        """int64[G], what each group takes while it runs."""
        return self.permanent + self.temporary


def demand(problem: PlacementProblem) -> Demand:
    """Return the memory of each group; outputs that live in parameters are not counted twice."""
    graph, group_of = problem.graph, problem.grouping.group_of
    owned = graph.parameter_bytes[graph.tensor_producer] > 0
    size = np.where(owned, 0, graph.tensor_bytes)
    kept = np.zeros(graph.num_tensors, np.bool_)
    later = graph.phases[graph.edge_producers] != graph.phases[graph.edge_consumers]
    kept[graph.edges[later, 0]] = True
    kept[graph.held_tensors] = True
    permanent = problem.group_graph.parameter_bytes.copy()
    np.add.at(permanent, group_of[graph.tensor_producer[kept]], size[kept])
    of_op = graph.workspace_bytes.copy()
    np.add.at(of_op, graph.tensor_producer[~kept], size[~kept])
    temporary = np.zeros(problem.num_groups, np.int64)
    np.maximum.at(temporary, group_of, of_op)
    return Demand(permanent, temporary)


class MemoryBook:
    """Free memory of each device while groups are placed: int64[D] bytes."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.demand = demand(problem)
        self.free = problem.cluster.memory_bytes

    def take(self, group: int, device: int) -> None:
        """Reserve all that a group demands."""
        self.free[device] -= self.demand.total[group]

    def give_back_temporary(self, group: int, device: int) -> None:
        """Keep only what is permanent of a group whose ops have all been scheduled."""
        self.free[device] += self.demand.temporary[group]

    def eligible(self, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool[G, D], the devices that can take what a group demands.

        Where none of bool[G, D] candidates can, the one with the most memory to spare has to.
        """
        fits = candidates & (self.demand.total[:, None] <= self.free)
        roomiest = np.where(candidates, self.free, np.iinfo(np.int64).min).argmax(axis=1)
        fits[np.arange(len(fits)), roomiest] |= ~fits.any(axis=1)
        return fits


@dataclass(frozen=True)
class Hold:
    """A device that waits for the favourite child of the task that it ran last.

    Attributes
    ----------
    child : int
        The task that it waits for.
    until : float
        Time at which the child's input from that task could be on any device, in seconds. From then
        on the child starts no earlier here than elsewhere.
    """

    child: int
    until: float


class EarliestFirst:
    """The schedule that grows by the pair of task and device that can start earliest.

    Of several pairs the task with the longest path of work to an exit counts, then the device where
    it finishes first. Groups go to devices that can take their memory.

    With favourite children it is that of SCT (Hanen and Munier 1995; Jeon et al. 2020, section 3).
    A device that has run ``i`` is *awake* from then until what ``i`` sends to its favourite child
    ``j`` could be anywhere. As long as ``j`` can still become ready here within that time, the
    device only takes ``j`` and *urgent* tasks, and these first. A task is urgent if its inputs
    could by then be on any device that it may go to. ``favourite`` has the child of each task, or
    -1.
    """

    def __init__(self, problem: PlacementProblem, tasks: TaskGraph, favourite: list[int]) -> None:
        self.tasks = tasks
        self.favourite = favourite
        self.candidates = tasks.candidates.copy()  # until a group has been placed
        self.memory = MemoryBook(problem)
        self.timetable = Timetable(tasks)
        self.timetable.candidates = self.memory.eligible(self.candidates)
        self.level = tasks.upward_rank(with_transfers=False)
        self.fastest = tasks.seconds.min(axis=1)
        self.missing = [len(sources) for sources in tasks.predecessors]
        self.scheduled = tasks.is_data.copy()
        self.ops_left = np.bincount(tasks.group_of[tasks.order], minlength=tasks.num_groups)
        self.ready: list[int] = []
        # Of the tasks that are ready: when all their inputs can be on each device.
        self.arrival = np.zeros((tasks.num_tasks, tasks.num_devices))
        self.holds: dict[int, Hold] = {}  # by device
        self.now = 0.0  # no task starts before one that was scheduled earlier

    def run(self) -> Schedule:
        """Schedule all tasks."""
        for task in self.tasks.order:
            if not self.missing[task]:
                self._make_ready(task)
        while self.ready:
            self._add(*self._earliest())
        return self.timetable.schedule()

    def _make_ready(self, task: int) -> None:
        self.ready.append(task)
        self.arrival[task] = self.timetable.arrival(task)

    def _add(self, task: int, device: int, start: float) -> None:
        settled = self.timetable.add(task, device, start)
        self.now = max(self.now, start)
        self.scheduled[task] = True
        self.ready.remove(task)
        for reader, _ in self.tasks.successors[task]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._make_ready(reader)
        if self._book_memory(task, settled):
            self._look_for_room()
        self._hold(task, device)

    def _book_memory(self, task: int, settled: list[int]) -> bool:
        """Book what groups take that have been placed; return whether the room has changed."""
        placement, group = self.timetable.placement, int(self.tasks.group_of[task])
        for other in settled:
            self.memory.take(other, int(placement[other]))
            self.candidates[other] = np.arange(self.tasks.num_devices) == placement[other]
        self.ops_left[group] -= 1
        if not self.ops_left[group]:
            self.memory.give_back_temporary(group, int(placement[group]))
        return bool(settled) or not self.ops_left[group]

    def _look_for_room(self) -> None:
        """Find the devices that groups may go to, and with that where data can be."""
        self.timetable.candidates = self.memory.eligible(self.candidates)
        for task in self.ready:
            if self.tasks.data[task]:
                self.arrival[task] = self.timetable.arrival(task)

    def _hold(self, task: int, device: int) -> None:
        """Let a device wait for the favourite child of what it has just been given."""
        self.holds.pop(device, None)
        child = self.favourite[task]
        if child != NOBODY:
            (size,) = (size for source, size in self.tasks.predecessors[child] if source == task)
            slowest = float(self.tasks.transfers(size)[device].max())
            self.holds[device] = Hold(child, float(self.timetable.finish[task]) + slowest)

    def _earliest(self) -> tuple[int, int, float]:
        """Return the next task, its device and its start."""
        ready = np.array(self.ready)
        eligible = self.timetable.candidates[self.tasks.group_of[ready]]
        start = np.maximum(self.arrival[ready], np.maximum(self.timetable.free, self.now))
        self._keep_holds(ready, np.where(eligible, self.arrival[ready], 0.0).max(axis=1), start)
        start[~eligible] = np.inf
        earliest = start.min()
        rows, devices = np.nonzero(start == earliest)
        pairs = zip(ready[rows].tolist(), devices.tolist(), strict=True)
        task, device = min(pairs, key=lambda pair: self._preference(*pair))
        return task, device, float(earliest)

    def _preference(self, task: int, device: int) -> tuple[bool, float, bool, float, int, int]:
        """Return a key that orders what could start at the same time, the first of them lowest."""
        waits = device in self.holds
        awaited = waits and self.holds[device].child == task
        seconds = float(self.tasks.seconds[task, device])
        return awaited, -float(self.level[task]), waits, seconds, task, device

    def _keep_holds(
        self, ready: NDArray[np.intp], urgent: NDArray[np.float64], start: NDArray[np.float64]
    ) -> None:
        """Delay what is not urgent on devices that wait, and end what is waited for in vain."""
        for device, hold in list(self.holds.items()):
            if self._first_start(hold.child, device) > hold.until:
                del self.holds[device]
                continue
            others = ready != hold.child
            first = np.minimum(urgent[others], hold.until)
            start[others, device] = np.maximum(start[others, device], first)

    def _first_start(self, task: int, device: int) -> float:
        """Return a time before which a task cannot start on a device; infinity for never."""
        if self.scheduled[task] or not self.timetable.candidates[self.tasks.group_of[task], device]:
            return np.inf
        if not self.missing[task]:
            return float(self.arrival[task, device])
        return max(
            self._first_sent(source, size, device) for source, size in self.tasks.predecessors[task]
        )

    def _first_sent(self, task: int, size: int | None, device: int) -> float:
        """Return a time before which so many bytes of a task cannot be on a device."""
        if self.scheduled[task]:
            return float(self.timetable.sent(task, size)[device])
        if self.missing[task]:
            return self.now + float(self.fastest[task])
        start = np.maximum(self.arrival[task], np.maximum(self.timetable.free, self.now))
        finish = (start + self.tasks.seconds[task])[self.timetable.devices(task)]
        return float(finish.min())
