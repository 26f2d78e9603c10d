"""Memory-constrained small communication times (m-SCT)."""

from placeto_baselines.scheduling.earliest_first import EarliestFirst
from placeto_baselines.scheduling.favourite_children import favourite_children
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem


class MSct(ListScheduler):
    """m-SCT of Baechi (Jeon et al. 2020, section 3): keep each op with its favourite child.

    A linear programme finds the child that each op should share its device with
    (`favourite_children`); the device then waits for it, and runs only urgent ops meanwhile. It
    waits as long as the child can become ready within the time that staying saves: until what it
    would be sent could be on any device (Hanen and Munier 1995). Where communication is small, as
    the name of SCT says (no transfer takes longer than an op), these are the children of which all
    other parents run already. All else is as in m-ETF, see `MEtf`.

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
