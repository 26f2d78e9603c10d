"""A placer and an evaluator of one's own, as docs/write-a-placer.md shows them."""

import time

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    placement_ranks,
)


class CoordinateDescent:
    """Moves one group after the other to its best device, for some rounds."""

    name = "coordinate-descent"

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the placement after the last move."""
        began = time.perf_counter()
        memory = problem.cluster.memory_bytes
        can_run = np.isfinite(problem.group_graph.compute_time)  # bool[G, D]
        best = can_run.argmax(axis=1).astype(np.int32)  # int32[G], the first device that can
        rank = placement_ranks(evaluator.evaluate(best[None]), memory)[0]  # (lacks memory, cost)
        curve = [(1, rank[1])]  # (evaluations, best cost so far)
        order = np.random.default_rng(seed).permutation(problem.num_groups)
        for group in np.tile(order, self.rounds):
            devices = np.flatnonzero(can_run[group])
            tried = np.tile(best, (len(devices), 1))
            tried[:, group] = devices
            ranks = placement_ranks(evaluator.evaluate(tried), memory)  # one batch
            if min(ranks) < rank:
                rank = min(ranks)
                best = tried[ranks.index(rank)]
            curve.append((curve[-1][0] + len(devices), rank[1]))
        batch = evaluator.evaluate(best[None])
        return PlacementResult(
            placement=best,
            runtime=float(batch.runtime[0]),
            peak_memory=batch.peak_memory[0],
            evaluations=curve[-1][0] + 1,
            seconds=time.perf_counter() - began,
            curve=np.array(curve),
        )


class MaxLoad:
    """Prices placements by the compute time of the busiest device."""

    objective = "largest load"

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the largest load of each placement, and the parameters on each device."""
        groups = self.problem.group_graph
        rows = self.problem.check_placements(placements)
        on_device = rows[:, :, None] == np.arange(groups.num_devices)
        loads = np.where(on_device, groups.compute_time, 0.0).sum(axis=1)
        parameter_bytes = np.where(on_device, groups.parameter_bytes[:, None], 0).sum(axis=1)
        return EvaluationBatch(runtime=loads.max(axis=1), peak_memory=parameter_bytes)
