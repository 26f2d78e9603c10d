"""What memory list schedulers think that groups take, and what is left of each device's."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class Demand:
    """Bytes that each of G groups takes on its device (Jeon et al. 2020).

    Attributes
    ----------
    lasting : int64[G]
        Weights and optimizer state, for the whole step.
    outputs : int64[G]
        The tensors that its ops make, until all that read them have been scheduled.
    workspace : int64[G]
        The largest workspace of its ops, while it runs.
    """

    lasting: NDArray[np.int64]
    outputs: NDArray[np.int64]
    workspace: NDArray[np.int64]

    @property
    def total(self) -> NDArray[np.int64]:
        """int64[G], what each group takes while it runs."""
        return self.lasting + self.outputs + self.workspace


def demand(problem: PlacementProblem) -> Demand:
    """Return the memory of each group; outputs that live in parameters are not counted twice."""
    graph, group_of = problem.graph, problem.grouping.group_of
    owns = graph.parameter_bytes[graph.tensor_producer] > 0
    outputs = np.zeros(problem.num_groups, np.int64)
    np.add.at(outputs, group_of[graph.tensor_producer], np.where(owns, 0, graph.tensor_bytes))
    workspace = np.zeros(problem.num_groups, np.int64)
    np.maximum.at(workspace, group_of, graph.workspace_bytes)
    return Demand(problem.group_graph.parameter_bytes, outputs, workspace)


class MemoryBook:
    """What memory is free on each device while a schedule is made.

    Outputs are given back when the last group that reads them has been scheduled.
    """

    def __init__(self, problem: PlacementProblem, readers: list[int]) -> None:
        self.demand = demand(problem)
        self.free = np.array([device.memory_bytes for device in problem.cluster.devices])
        self._readers_left = readers.copy()

    def fits(self, group: int) -> NDArray[np.bool_]:
        """Return bool[D], true where a group fits into what is free."""
        fitting: NDArray[np.bool_] = self.demand.total[group] <= self.free
        return fitting

    def add(self, group: int, device: int, inputs: list[tuple[int, int]]) -> None:
        """Take what a group keeps; ``inputs`` are (group, its device) of what it reads."""
        self.free[device] -= self.demand.lasting[group]
        if self._readers_left[group]:
            self.free[device] -= self.demand.outputs[group]
        for source, there in inputs:
            self._readers_left[source] -= 1
            if not self._readers_left[source]:
                self.free[there] += self.demand.outputs[source]
