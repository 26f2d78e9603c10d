"""The conformance suites for the placer and the evaluator."""

from coordinate_descent import CoordinateDescent, MaxLoad

from placeto_graphs import PlacementProblem
from placeto_graphs.testing import EvaluatorSuite, PlacerSuite


class TestCoordinateDescent(PlacerSuite):
    def make_placer(self, problem: PlacementProblem) -> CoordinateDescent:
        return CoordinateDescent()


class TestMaxLoad(EvaluatorSuite):
    def make_evaluator(self, problem: PlacementProblem) -> MaxLoad:
        return MaxLoad(problem)
