"""The definition of a simulated step as an evaluator, which shares nothing with any placer."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, PlacementProblem
from placeto_simulator.reference import simulate


class PlainEvaluator:
    """Simulates placements one by one, each only once, and counts how often it is asked."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.evaluated = 0
        self.known: dict[tuple[int, ...], tuple[float, list[int]]] = {}

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        costs = [self.look_up(tuple(placement)) for placement in placements.tolist()]
        self.evaluated += len(costs)
        return EvaluationBatch(
            runtime=np.array([runtime for runtime, _ in costs], float),
            peak_memory=np.array([peaks for _, peaks in costs], np.int64).reshape(
                len(costs), self.problem.num_devices
            ),
        )

    def look_up(self, placement: tuple[int, ...]) -> tuple[float, list[int]]:
        if placement not in self.known:
            step = simulate(self.problem, placement)
            self.known[placement] = step.runtime, step.peak_memory
        return self.known[placement]
