"""What memory list schedulers think that groups take, and what is left of each device's."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class Demand:
    """Bytes that each of G groups takes on its device (Jeon et al. 2020, sections 3 and 4).

    Attributes
    ----------
    permanent : int64[G]
        Weights and optimizer state, and what the forward pass keeps for the backward pass: the
        outputs that ops of another phase read.
    temporary : int64[G]
        The most that an op of the group takes besides: its other outputs and its workspace.
    """

    permanent: NDArray[np.int64]
    temporary: NDArray[np.int64]

    @property
    def total(self) -> NDArray[np.int64]:
        """int64[G], what each group takes while it runs."""
        return self.permanent + self.temporary


def demand(problem: PlacementProblem) -> Demand:
    """Return the memory of each group; outputs that live in parameters are not counted twice."""
    graph, group_of = problem.graph, problem.grouping.group_of
    owned = graph.parameter_bytes[graph.tensor_producer] > 0
    size = np.where(owned, 0, graph.tensor_bytes)
    kept = np.zeros(graph.num_tensors, np.bool_)
    later = graph.phases[graph.edge_producers] != graph.phases[graph.edge_consumers]
    kept[graph.edges[later, 0]] = True
    permanent = problem.group_graph.parameter_bytes.copy()
    np.add.at(permanent, group_of[graph.tensor_producer[kept]], size[kept])
    of_op = graph.workspace_bytes.copy()
    np.add.at(of_op, graph.tensor_producer[~kept], size[~kept])
    temporary = np.zeros(problem.num_groups, np.int64)
    np.maximum.at(temporary, group_of, of_op)
    return Demand(permanent, temporary)


class MemoryBook:
    """What memory is free on each device while groups are placed.

    Parameters
    ----------
    problem
        What is placed.

    Attributes
    ----------
    demand : `Demand`
        What its groups take.
    free : int64[D]
        Bytes that no group has reserved.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.demand = demand(problem)
        self.free = np.array([device.memory_bytes for device in problem.cluster.devices])

    def take(self, group: int, device: int) -> None:
        """Reserve all that a group demands."""
        self.free[device] -= self.demand.total[group]

    def give_back_temporary(self, group: int, device: int) -> None:
        """Keep only what is permanent of a group whose ops have all been scheduled."""
        self.free[device] += self.demand.temporary[group]

    def eligible(self, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool[G, D], the devices that can take what a group demands.

        Where no device can, the one with the most memory to spare has to.

        Parameters
        ----------
        candidates : bool[G, D]
            The devices that can run each group.
        """
        fits = candidates & (self.demand.total[:, None] <= self.free)
        roomiest = np.where(candidates, self.free, np.iinfo(np.int64).min).argmax(axis=1)
        fits[np.arange(len(fits)), roomiest] |= ~fits.any(axis=1)
        return fits
