"""A list scheduler as a placer: its schedule says where each group goes."""

from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult


class ListScheduler:
    """Base of the placers that make a schedule of ops and keep where it puts groups."""

    def schedule(self, problem: PlacementProblem) -> Schedule:
        """Return the schedule of the ops of a problem."""
        raise NotImplementedError

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the placement of the schedule; nothing of it is random."""
        trials = Trials(problem, evaluator)
        trials.evaluate(self.schedule(problem).placement[None])
        return trials.result()
