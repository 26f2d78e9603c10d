"""Memory-constrained small communication times (m-SCT)."""

from placeto_baselines.scheduling.favourite_children import favourite_children
from placeto_baselines.scheduling.m_etf import EarliestFirst
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class MSct(ListScheduler):
    """m-SCT of Baechi (Jeon et al. 2020): keep each group with its favourite child.

    A linear programme finds the child that each group should share its device with
    (`favourite_children`); the device then waits for it, and runs only urgent groups meanwhile.
    All else is as in m-ETF, see `MEtf`.

    Examples
    --------
    >>> MSct().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "m-sct"

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule that the rule makes."""
        tasks = TaskGraph(problem)
        return EarliestFirst(problem, tasks, favourite_children(tasks)).run()
