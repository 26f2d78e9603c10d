"""The evaluators of this package pass the suite that is there for everybody's."""

from placeto_graphs import PlacementProblem
from placeto_graphs.testing import EvaluatorSuite
from placeto_simulator import Simulator, ThroughputEvaluator


class TestSimulator(EvaluatorSuite):
    def make_evaluator(self, problem: PlacementProblem) -> Simulator:
        return Simulator(problem, num_threads=2)


class TestThroughputEvaluator(EvaluatorSuite):
    def make_evaluator(self, problem: PlacementProblem) -> ThroughputEvaluator:
        return ThroughputEvaluator(problem)
