"""The conformance suites for the placer and the evaluator."""

from coordinate_descent import CoordinateDescent, MaxLoad

from placeto_graphs import PlacementProblem
from placeto_graphs.testing import EvaluatorSuite, PlacerSuite


class TestCoordinateDescent(PlacerSuite):
    """Tests of every placer."""

    def make_placer(self, problem: PlacementProblem) -> CoordinateDescent:
        """Return the placer that is tested."""
        return CoordinateDescent()


class TestMaxLoad(EvaluatorSuite):
    """Tests of every evaluator."""

    def make_evaluator(self, problem: PlacementProblem) -> MaxLoad:
        """Return the evaluator that is tested."""
        return MaxLoad(problem)
