"""A small problem and a simple evaluator, for examples and first trials."""

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    PlacementProblem,
    ScheduleBatch,
    from_networkx,
    parse_cluster,
)


class BusiestDevice:
    """An evaluator without transfers: the runtime is the work of the busiest device.

    A device runs its groups in topological order, without waiting for inputs.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the work of the busiest device for each placement int32[B, G]."""
        seconds = self.problem.group_graph.compute_time
        rows = self.problem.check_placements(placements)
        on_device = rows[:, :, None] == np.arange(self.problem.num_devices)
        busy = np.where(on_device, seconds, 0.0).sum(axis=1)
        return EvaluationBatch(runtime=busy.max(axis=1), peak_memory=np.zeros(busy.shape, np.int64))

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return the same, with the start and end of each group."""
        batch, graph = self.evaluate(placements), self.problem.group_graph
        start, end = np.zeros((2, *placements.shape))
        free = np.zeros((len(placements), self.problem.num_devices))
        rows = np.arange(len(placements))
        for group in graph.topological_order:
            devices = placements[:, group]
            start[:, group] = free[rows, devices]
            free[rows, devices] += graph.compute_time[group, devices]
            end[:, group] = free[rows, devices]
        return ScheduleBatch(
            runtime=batch.runtime, peak_memory=batch.peak_memory, start=start, end=end
        )


def two_chains(length: int = 3, num_devices: int = 2) -> PlacementProblem:
    """Return a problem of two independent chains, whose groups take 1 s each."""
    chains = nx.DiGraph()
    for name in "ab":
        nx.add_path(chains, [f"{name}{position}" for position in range(length)], bytes=1000)
    graph = from_networkx(chains)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.ones((graph.num_ops, num_devices)),
    )
