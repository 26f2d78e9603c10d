"""Memory-constrained earliest task first (m-ETF)."""

from placeto_baselines.scheduling.earliest_first import NOBODY, EarliestFirst
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class MEtf(ListScheduler):
    """m-ETF of Baechi (Jeon et al. 2020): earliest task first, where memory allows.

    Of all ops whose inputs are scheduled, and all devices that have the memory, the pair that can
    start earliest is scheduled (ETF, Hwang et al. 1989); of several the op with the longest path of
    work to an exit, then the device where it finishes first. A group stays where its first op went;
    a device that cannot take the memory of the whole group is not eligible for that op. A group
    that fits on no device goes to the one with the most memory to spare, and the placement may not
    fit. Of a cluster with accelerators the CPU only gets what no accelerator can run.

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
