"""Heterogeneous earliest finish time (HEFT)."""

import numpy as np

from placeto_baselines.devices import allowed_devices
from placeto_baselines.scheduling.schedule import Schedule, Timetable
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class Heft(ListScheduler):
    """HEFT (Topcuoglu, Hariri, Wu 2002): by upward rank, to the device that finishes first.

    Ops are taken in the order of falling upward rank (`TaskGraph.upward_rank`); each goes to the
    device where it finishes earliest, and may be inserted between two ops that are already there.
    A group stays where its first op went. The mean communication is that over all pairs of devices.

    Examples
    --------
    >>> Heft().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "heft"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that HEFT makes."""
        tasks = TaskGraph(problem)
        timetable = Timetable(tasks, allowed_devices(problem))
        order = np.array(tasks.order, np.int64)
        # Ops without costs may rank as high as what waits for them: ties in topological order.
        falling = np.argsort(-tasks.upward_rank()[order], kind="stable")
        for task in order[falling].tolist():
            arrival = timetable.arrival(task).tolist()
            seconds = tasks.seconds[task].tolist()
            starts = {
                device: timetable.first_gap(device, arrival[device], seconds[device])
                for device in timetable.devices(task).tolist()
            }
            device = min(starts, key=lambda device: (starts[device] + seconds[device], device))
            timetable.add(task, device, starts[device])
        return timetable.schedule()
