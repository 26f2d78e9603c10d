"""What memory each group needs on the device where it runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.bounds.paths import Paths
from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class MemoryNeeds:
    """What is held at the least, in bytes; a device holds ``resident`` of all groups on it.

    Attributes
    ----------
    resident : int64[G]
        For the whole step: the parameters of a group.
    running : int64[G, D]
        On top of the resident bytes of the device, while one op of the group runs.
    """

    resident: NDArray[np.int64]
    running: NDArray[np.int64]


def memory_needs(problem: PlacementProblem, paths: Paths) -> MemoryNeeds:
    """Return what memory each group needs on each device, whatever the placement.

    Proof. Parameters are held for the whole step where their op runs. While an op runs, its device
    also holds its workspace; its outputs, from its start on, unless they live in its parameters;
    and its inputs until its end, be it the tensor itself or a copy of it. An input whose producer
    owns parameters is not counted, as it may live in them on the same device. All this is held at
    one time only if the op takes any: ops without compute time count nothing, nor do those whose
    time vanishes when float64 adds it to the time of day.
    """
    graph = problem.graph
    owns = graph.parameter_bytes > 0
    held_outputs = np.where(owns[graph.tensor_producer], 0, graph.tensor_bytes)
    need = graph.workspace_bytes.copy()
    np.add.at(need, graph.tensor_producer, held_outputs)
    np.add.at(need, graph.edge_consumers, held_outputs[graph.edges[:, 0]])
    lasts = np.isfinite(paths.seconds) & (paths.seconds > 1e-12 * _horizon(problem, paths))
    running = np.zeros((problem.num_groups, problem.num_devices), np.int64)
    np.maximum.at(running, problem.grouping.group_of, np.where(lasts, need[:, None], 0))
    return MemoryNeeds(problem.group_graph.parameter_bytes, running)


def _horizon(problem: PlacementProblem, paths: Paths) -> float:
    """Return seconds after which any step has ended: until then, a device or a link is busy."""
    cluster = problem.cluster
    seconds = np.where(np.isfinite(paths.seconds), paths.seconds, 0.0).max(axis=1).sum()
    overhead = max(device.op_overhead for device in cluster.devices)
    gap = max(device.transfer_overhead for device in cluster.devices) + cluster.latency.max()
    copies = (problem.graph.tensor_bytes / cluster.bandwidth.min() + gap).sum()
    return float(seconds + problem.graph.num_ops * overhead + problem.num_devices * copies)
