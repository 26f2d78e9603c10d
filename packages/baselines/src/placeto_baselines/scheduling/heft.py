"""Heterogeneous earliest finish time (HEFT)."""

import numpy as np

from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.schedule import Timetable
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class Heft(ListScheduler):
    """HEFT (Topcuoglu, Hariri, Wu 2002): by upward rank, to the device that finishes first.

    Tasks are taken in the order of falling upward rank (`TaskGraph.upward_rank`); each goes to the
    device where it finishes earliest, and may be inserted between two tasks that are already
    there. A task is a group of ops, and the mean communication is that over all pairs of devices.

    Examples
    --------
    >>> Heft().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "heft"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that HEFT makes."""
        tasks = TaskGraph(problem)
        timetable = Timetable(tasks)
        position = np.empty(tasks.num_tasks, np.int64)
        position[tasks.order] = np.arange(tasks.num_tasks)
        # Tasks without costs may rank as high as what waits for them: ties in topological order.
        for task in np.lexsort((position, -tasks.upward_rank())).tolist():
            arrival = timetable.arrival(task)
            starts = [
                timetable.first_gap(device, float(arrival[device]), seconds)
                for device, seconds in enumerate(tasks.seconds[task].tolist())
            ]
            device = int(np.argmin(starts + tasks.seconds[task]))
            timetable.add(task, device, starts[device])
        return timetable.schedule()
