"""The same problem on the first of its devices: what is found there is a placement on all."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    Walks,
    plain_walk,
)


def on_first_devices(problem: PlacementProblem, count: int) -> PlacementProblem:
    """Return a problem without all devices but the first ones, and without their links."""
    cluster = problem.cluster
    link = np.array(cluster.link[:count, :count])
    between = ~np.eye(count, dtype=bool)
    used, renumbered = np.unique(link[between], return_inverse=True)
    link[between] = renumbered
    return replace(
        problem,
        cluster=replace(
            cluster,
            devices=cluster.devices[:count],
            bandwidth=cluster.bandwidth[:count, :count],
            latency=cluster.latency[:count, :count],
            link=link,
            link_names=tuple(cluster.link_names[number] for number in used.tolist()),
        ),
        compute_time=problem.compute_time[:, :count],
    )


def are_alike(problem: PlacementProblem) -> bool:
    """Return whether all devices are of one kind, and take the same time for every op."""
    first, *others = problem.cluster.devices
    return all(replace(device, name=first.name) == first for device in others) and bool(
        (problem.compute_time == problem.compute_time[:, :1]).all()
    )


class OnFirstDevices:
    """An evaluator of a problem on its first devices, by one that has all of them.

    Parameters
    ----------
    problem
        What `on_first_devices` returned.
    evaluator
        Says what placements on all devices cost.
    """

    def __init__(self, problem: PlacementProblem, evaluator: Evaluator) -> None:
        self.problem = problem
        self.evaluator = evaluator

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Evaluate placements int32[B, G]."""
        batch = self.evaluator.evaluate(placements)
        peak_memory = batch.peak_memory[:, : self.problem.num_devices]
        return EvaluationBatch(runtime=batch.runtime, peak_memory=peak_memory)

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from int32[C, G], in compiled code where the evaluator can."""
        if isinstance(self.evaluator, MoveEvaluator):
            walks = self.evaluator.walk(placements, moves)
        else:
            walks = plain_walk(self.evaluator, placements, moves)
        peak_memory = walks.best_peak_memory[:, : self.problem.num_devices]
        return replace(walks, best_peak_memory=peak_memory)
