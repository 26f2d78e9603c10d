"""What of a problem the policy sees and no placement changes, computed once."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import GroupGraph
from placeto_graphs import reachability

Neighbours = tuple[NDArray[np.int32], NDArray[np.int32]]

ITSELF = 3


@dataclass(frozen=True, eq=False)
class Topology:
    """A graph of G groups on D devices, as tensors.

    Attributes
    ----------
    cost_features : float32[G, 2]
        Total compute time (its mean over the devices that can run the group) and total output
        bytes, each divided by its largest value in the graph: a graph of larger layers or on
        faster devices looks the same.
    neighbours : two pairs of int32[G + 1] and int32[M]
        For messages that run with the edges, and for those against them: where the neighbours
        from which each group hears begin in the list, and the list.
    message_scale : float32
        By what sums of messages are multiplied: 1 over the edges per group, at most 1.
    relations : int8[G, G]
        ``relations[v, u]`` is 0 where ``u`` can reach ``v``, 1 where ``v`` can reach ``u``, 2
        where neither can, 3 where they are the same.
    allowed : bool[G, D]
        Whether a device can run a group.
    order : int64[G]
        The groups in topological order.

    Examples
    --------
    See `topology_of`.
    """

    cost_features: torch.Tensor
    neighbours: tuple[Neighbours, Neighbours]
    message_scale: np.float32
    relations: torch.Tensor
    allowed: torch.Tensor
    order: NDArray[np.int64]

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return self.allowed.shape[0]

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.allowed.shape[1]


def topology_of(graph: GroupGraph) -> Topology:
    """Return what the policy sees of a graph of groups.

    Parameters
    ----------
    graph
        The graph of G groups on D devices.

    Examples
    --------
    >>> chain = GroupGraph(
    ...     compute_time=[[1.0, 1.0], [4.0, 4.0], [2.0, 2.0]],
    ...     output_bytes=[100, 50, 0],
    ...     parameter_bytes=[0, 0, 0],
    ...     edges=[[0, 1], [1, 2]],
    ...     edge_bytes=[100, 50],
    ... )
    >>> topology_of(chain).cost_features
    tensor([[0.2500, 1.0000],
            [1.0000, 0.5000],
            [0.5000, 0.0000]])
    """
    allowed = np.isfinite(graph.compute_time)
    seconds = np.where(allowed, graph.compute_time, 0.0).sum(axis=1) / allowed.sum(axis=1)
    features = np.stack([_share_of_largest(seconds), _share_of_largest(graph.output_bytes)], axis=1)
    sources, targets = graph.edges.T
    related = reachability(graph)
    relations = np.full((graph.num_groups, graph.num_groups), ITSELF, np.int8)
    for relation, members in enumerate((related.ancestors, related.descendants, related.parallel)):
        relations[members] = relation
    return Topology(
        cost_features=torch.from_numpy(features.astype(np.float32)),
        neighbours=(
            _neighbours(graph.num_groups, sources, targets),
            _neighbours(graph.num_groups, targets, sources),
        ),
        message_scale=np.float32(min(1.0, graph.num_groups / max(1, graph.num_edges))),
        relations=torch.from_numpy(relations),
        allowed=torch.from_numpy(allowed),
        order=graph.topological_order.astype(np.int64),
    )


def _share_of_largest(values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    largest = values.max()
    return values / largest if largest > 0 else np.zeros(len(values))


def _neighbours(
    num_groups: int, senders: NDArray[np.int32], receivers: NDArray[np.int32]
) -> Neighbours:
    """Return the senders of each receiver in ascending order, so that edges have no order."""
    offsets = np.zeros(num_groups + 1, np.int32)
    np.cumsum(np.bincount(receivers, minlength=num_groups), out=offsets[1:])
    return offsets, senders[np.lexsort((senders, receivers))]
