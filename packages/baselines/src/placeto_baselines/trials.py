"""What a placer has tried so far: the best of it, how many placements, how long."""

import time

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.errors import BaselineError
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Walks,
    memory_penalised_runtime,
    plain_walk,
)


class Trials:
    """Evaluates placements and keeps the one with the lowest memory-penalised runtime.

    Of equally good placements the first is kept. The clock runs from construction on.

    Parameters
    ----------
    problem
        What is placed.
    evaluator
        Says what placements of that problem cost.

    Raises
    ------
    BaselineError
        When the evaluator is one of another problem.
    """

    def __init__(self, problem: PlacementProblem, evaluator: Evaluator) -> None:
        if evaluator.problem is not problem and evaluator.problem != problem:
            raise BaselineError(
                f"evaluator: expected one of {problem}, got one of {evaluator.problem}"
            )
        self.problem = problem
        self.evaluator = evaluator
        self.memory = np.array([device.memory_bytes for device in problem.cluster.devices])
        self.count = 0
        self.best_cost = np.inf
        self._best: tuple[NDArray[np.int32], float, NDArray[np.int64]] | None = None
        self._curve: list[tuple[int, float]] = []
        self._start = time.perf_counter()

    def evaluate(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtime of int32[B, G] in seconds."""
        return self.record(placements, self.evaluator.evaluate(placements))

    def cost(self, batch: EvaluationBatch) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtime of what was evaluated."""
        return memory_penalised_runtime(batch, self.memory)

    def record(self, placements: NDArray[np.int32], batch: EvaluationBatch) -> NDArray[np.float64]:
        """Count placements that were evaluated, and return their penalised runtimes."""
        costs = self.cost(batch)
        for row in np.flatnonzero(costs < self.best_cost):
            if costs[row] < self.best_cost:
                self._keep(placements[row], batch, int(row), float(costs[row]))
        self.count += len(costs)
        return costs

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can, and count all of it."""
        if isinstance(self.evaluator, MoveEvaluator):
            walks = self.evaluator.walk(placements, moves)
        else:
            walks = plain_walk(self.evaluator, placements, moves)
        costs = self.cost_of_best(walks)
        best = int(costs.argmin())
        before = self.count
        if costs[best] < self.best_cost:
            tried = walks.cost[~np.isnan(walks.cost)]
            self.count += int(np.argmax(tried == costs[best])) - best  # `_keep` adds the row
            found = EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
            self._keep(walks.best_placement[best], found, best, float(costs[best]))
        self.count = before + walks.evaluations
        return walks

    def cost_of_best(self, walks: Walks) -> NDArray[np.float64]:
        """Return float64[C], the memory-penalised runtime of the best placement of each walk."""
        return self.cost(
            EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
        )

    @property
    def best_placement(self) -> NDArray[np.int32]:
        """int32[G], the best placement so far."""
        return self.result().placement

    def include(self, other: "Trials") -> None:
        """Count the trials of a search for the same problem with only the first of its devices."""
        found = other.result()
        peak_memory = np.zeros((1, self.problem.num_devices), np.int64)
        peak_memory[0, : len(found.peak_memory)] = found.peak_memory
        batch = EvaluationBatch(runtime=np.array([found.runtime]), peak_memory=peak_memory)
        before = self.count
        if other.best_cost < self.best_cost:
            self.count += int(found.curve[-2, 0]) - 1  # `_keep` adds the row
            self._keep(found.placement, batch, 0, other.best_cost)
        self.count = before + other.count

    def result(self) -> PlacementResult:
        """Return the best placement so far.

        Its curve holds the lowest memory-penalised runtime after so many placements: that is what
        the search minimises, and the runtime itself wherever placements fit the memory.
        """
        if self._best is None:
            raise BaselineError("evaluator: expected a placement that can run, got none")
        placement, runtime, peak_memory = self._best
        return PlacementResult(
            placement=placement,
            runtime=runtime,
            peak_memory=peak_memory,
            evaluations=self.count,
            seconds=time.perf_counter() - self._start,
            curve=np.array([*self._curve, (self.count, self.best_cost)]),
        )

    def _keep(
        self, placement: NDArray[np.int32], batch: EvaluationBatch, row: int, cost: float
    ) -> None:
        self.best_cost = cost
        self._best = (placement.copy(), float(batch.runtime[row]), batch.peak_memory[row].copy())
        self._curve.append((self.count + row + 1, cost))
