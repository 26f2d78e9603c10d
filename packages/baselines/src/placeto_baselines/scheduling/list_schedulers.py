"""HEFT and the longest path first: the order of ops, then a device for each group."""

from bisect import bisect_right
from heapq import heappop, heappush
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import accelerated, allowed_devices
from placeto_baselines.placement_trials import RulePlacer
from placeto_baselines.scheduling.timetable import TaskGraph, Timetable
from placeto_graphs import PlacementProblem


class ListScheduler(RulePlacer):
    """Base of the placers that make a schedule of ops and keep where it puts groups."""

    def schedule(self, problem: PlacementProblem) -> Timetable:
        """Return the schedule of the ops of a problem."""
        raise NotImplementedError

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        """Return int32[1, G], where the schedule puts groups."""
        return self.schedule(problem).placement[None]


class Heft(ListScheduler):
    """HEFT (Topcuoglu, Hariri, Wu 2002): by upward rank, to the device that finishes first.

    Ops are taken in the order of falling upward rank (`TaskGraph.upward_rank`). Each goes to the
    device where it finishes earliest, and may be inserted between two ops that are already there. A
    group stays where its first op went. All devices may be used, CPUs too. The means of the rank
    are therefore over all devices that can run an op, and all pairs of them, as in the paper.

    Examples
    --------
    >>> Heft().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "heft"

    def schedule(self, problem: PlacementProblem) -> Timetable:
        tasks = TaskGraph(problem, allowed_devices(problem))
        timetable = Timetable(tasks)
        gaps = [[(0.0, np.inf)] for _ in range(problem.num_devices)]  # without work, in their order
        order = np.array(tasks.order, np.int64)
        # Ops without costs may rank as high as what waits for them: ties in topological order.
        falling = np.argsort(-tasks.upward_rank()[order], kind="stable")
        for task in order[falling].tolist():
            arrival = timetable.arrival(task).tolist()
            seconds = tasks.seconds[task].tolist()
            first = {
                device: first_gap(gaps[device], arrival[device], seconds[device])
                for device in timetable.devices(task).tolist()
            }
            device = min(first, key=lambda device: (first[device][1] + seconds[device], device))
            gap, start = first[device]
            timetable.add(task, device, start)
            if start + seconds[device] > start:
                begin, end = gaps[device][gap]
                intervals = (begin, start), (start + seconds[device], end)
                gaps[device][gap : gap + 1] = [
                    interval for interval in intervals if interval[0] < interval[1]
                ]
        return timetable.completed()


def first_gap(
    gaps: list[tuple[float, float]], earliest: float, seconds: float
) -> tuple[int, float]:
    """Return the first gap in which so many seconds are free, and when; no earlier than asked."""
    first = bisect_right(gaps, earliest, key=itemgetter(1))
    starts = ((gap, max(earliest, gaps[gap][0])) for gap in range(first, len(gaps)))
    return next((gap, start) for gap, start in starts if start + seconds <= gaps[gap][1])


class CriticalPathPlacer(ListScheduler):
    """Longest path first, to the device where it can start earliest (Kwok and Ahmad 1999).

    DOPPLER imitates this heuristic before it learns. Of the ops whose inputs are scheduled, it
    takes the one with the longest path to an exit, by mean computation and communication. The op
    goes to the device where it can start earliest, and of several to the one where it finishes
    first. A group stays where its first op went. If there are accelerators, a CPU gets only groups
    that no accelerator can run, and its times count for these only.

    Examples
    --------
    >>> CriticalPathPlacer().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "critical-path"

    def schedule(self, problem: PlacementProblem) -> Timetable:
        tasks = TaskGraph(problem, accelerated(problem))
        timetable = Timetable(tasks)
        order = np.lexsort((np.arange(tasks.num_tasks), -tasks.upward_rank()))
        place = np.argsort(order).tolist()
        queue: list[int] = []  # places in the order, of ready tasks
        while timetable.ready:
            for task in timetable.newly_ready:
                heappush(queue, place[task])
            task = int(order[heappop(queue)])
            devices = timetable.devices(task)
            start = np.maximum(timetable.arrival(task), timetable.free)[devices]
            finish = start + tasks.seconds[task, devices]
            first = int(np.lexsort((finish, start))[0])
            timetable.add(task, int(devices[first]), float(start[first]))
        return timetable.completed()
