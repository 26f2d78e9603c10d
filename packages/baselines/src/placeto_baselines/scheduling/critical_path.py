"""The critical-path heuristic."""

import heapq

import numpy as np

from placeto_baselines.devices import accelerated
from placeto_baselines.scheduling.schedule import Schedule, Timetable
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class CriticalPathPlacer(ListScheduler):
    """Longest path first, to the device where it can start earliest (Kwok and Ahmad 1999).

    This is the heuristic from which DOPPLER learns before it improves on it: of the ops whose
    inputs are scheduled, the one with the longest path to an exit, computation and communication
    by their means, goes to the device where it can start earliest; of several to where it finishes
    first. A group stays where its first op went. Of a cluster with accelerators the CPU only gets
    what no accelerator can run.

    Examples
    --------
    >>> CriticalPathPlacer().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "critical-path"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the heuristic makes."""
        tasks = TaskGraph(problem)
        timetable = Timetable(tasks, accelerated(problem))
        rank = tasks.upward_rank().tolist()
        missing = [len(sources) for sources in tasks.predecessors]
        ready = [(-rank[task], task) for task in tasks.order if not missing[task]]
        heapq.heapify(ready)
        while ready:
            _, task = heapq.heappop(ready)
            devices = timetable.devices(task)
            start = np.maximum(timetable.arrival(task), timetable.free)[devices]
            finish = start + tasks.seconds[task, devices]
            first = int(np.lexsort((finish, start))[0])
            timetable.add(task, int(devices[first]), float(start[first]))
            for reader, _ in tasks.successors[task]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (-rank[reader], reader))
        return timetable.schedule()
