"""What has to be transferred when one device cannot do it all."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from placeto_baselines.bounds.paths import Paths
from placeto_baselines.bounds.work import WorkProgramme
from placeto_graphs import PlacementProblem


def split_bound(problem: PlacementProblem, paths: Paths, programme: WorkProgramme) -> float:
    """Return a lower bound on the memory-penalised runtime from the parts that hang together.

    Proof. Take a connected part of the graph of groups. Either all of it runs on one device, which
    then does all its work and holds what it needs, so that the penalty of that device's memory is
    due; or two of its groups that share a tensor are on different devices, and that tensor is
    transferred: the step lasts no less than the path to its producer, the transfer, and the path
    from its reader. The lesser of the two holds for every placement, the greatest over all parts.
    """
    groups = problem.group_graph
    joined = csr_array(
        (np.ones(groups.num_edges), (groups.edges[:, 0], groups.edges[:, 1])),
        shape=(groups.num_groups, groups.num_groups),
    )
    num_parts, part_of = connected_components(joined, directed=False)
    together = _on_one_device(programme, part_of, num_parts).min(axis=1)
    apart = _least_transfers(problem, paths, part_of, num_parts)
    return float(np.minimum(together, apart).max())


def _on_one_device(
    programme: WorkProgramme, part_of: NDArray[np.int32], num_parts: int
) -> NDArray[np.float64]:
    """Return float64[P, D], what each part costs on each device alone."""
    shape = (num_parts, programme.work.shape[1])
    work, path = np.zeros(shape), np.zeros(shape)
    running = np.zeros(shape, np.int64)
    resident = np.zeros(num_parts, np.int64)
    np.add.at(work, part_of, programme.work)
    np.maximum.at(path, part_of, programme.path)
    np.maximum.at(running, part_of, programme.needs.running)
    np.add.at(resident, part_of, programme.needs.resident)
    excess = np.maximum(resident[:, None] + running - programme.memory, 0)
    costs: NDArray[np.float64] = np.maximum(work - programme.overhead, path)
    costs += programme.scale * excess
    return costs


def _least_transfers(
    problem: PlacementProblem, paths: Paths, part_of: NDArray[np.int32], num_parts: int
) -> NDArray[np.float64]:
    """Return float64[P], the shortest path of each part with a transfer between groups in it."""
    graph, cluster = problem.graph, problem.cluster
    group_of = problem.grouping.group_of
    least = np.full(num_parts, np.inf)
    elsewhere = np.where(np.eye(problem.num_devices, dtype=np.bool_), np.inf, 0.0)
    for tensor, reader in graph.edges:
        maker = graph.tensor_producer[tensor]
        if group_of[maker] != group_of[reader]:
            transfer = cluster.latency + graph.tensor_bytes[tensor] / cluster.bandwidth + elsewhere
            after = paths.seconds[reader] + paths.tail[reader]
            shortest = (paths.end[maker][:, None] + transfer + after).min()
            part = part_of[group_of[reader]]
            least[part] = min(least[part], shortest)
    return least
