"""What each group keeps in memory when the graph needs most, known before anything is placed."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_policy.earliest import SLICES, earliest_times, slice_of


def memory_at_peak(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G], the bytes of each group when all groups together keep most.

    Each op is taken to run as early as the longest path to it lets it. A tensor is kept from the
    slice in which its producer starts to the one in which its last consumer ends, or to the last
    one if it is held; weights always, and the outputs of an op with weights live in them. The sum
    of groups that share a device is about what they take there; what it leaves out is copies of
    tensors of other devices, and workspaces.

    Parameters
    ----------
    problem
        A problem of G groups.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> memory_at_peak(two_chains())  # while a1 and b1 run
    array([1000., 1000.,    0., 1000., 1000.,    0.])
    """
    kept = tensors_in_slices(problem)
    peak = int(kept.sum(axis=0).argmax())
    memory: NDArray[np.float64] = kept[:, peak] + problem.group_graph.parameter_bytes
    return memory


def tensors_in_slices(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G, SLICES], the bytes of tensors that each group keeps in each slice."""
    graph = problem.graph
    start, end, _ = earliest_times(problem)
    producer = graph.tensor_producer
    last_use = end[producer]
    np.maximum.at(last_use, graph.edges[:, 0], end[graph.edge_consumers])
    last_use[graph.held_tensors] = 1.0
    size = np.where(graph.parameter_bytes[producer] > 0, 0, graph.tensor_bytes).astype(np.float64)
    group = problem.grouping.group_of[producer]
    changes = np.zeros((problem.num_groups, SLICES + 1))
    np.add.at(changes, (group, slice_of(start[producer])), size)
    np.add.at(changes, (group, slice_of(last_use) + 1), -size)
    kept: NDArray[np.float64] = changes.cumsum(axis=1)[:, :SLICES]
    return kept
