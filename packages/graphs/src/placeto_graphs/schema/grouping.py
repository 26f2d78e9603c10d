"""Which ops move together, which groups are parts of which, and the graph of groups."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.digraphs import CompressedRows, CycleError, compress_rows, topological_order
from placeto_graphs.errors import GraphError, short_repr
from placeto_graphs.schema.arrays import (
    Record,
    byte_counts,
    check_rows_differ,
    float_array,
    int_array,
    sums_by_key,
    texts,
)
from placeto_graphs.schema.op_graph import OpGraph


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Grouping(Record):
    """A partition of V ops into G groups that are each placed as one.

    Attributes
    ----------
    group_of : int32[V]
        The group of each op. Every group has at least one op.
    group_names : G texts
        Names, unique and not empty.

    Examples
    --------
    >>> grouping = Grouping(group_of=[0, 1, 0], group_names=["embedding", "softmax"])
    >>> grouping.members[0]
    array([0, 2], dtype=int32)
    """

    group_of: NDArray[np.int32]
    group_names: tuple[str, ...]

    def __post_init__(self) -> None:
        self._check("group_names", texts, unique=True)
        if not self.group_names:
            raise GraphError("group_names: expected at least one group, got none")
        self._check("group_of", int_array, np.int32, (None,), maximum=self.num_groups - 1)
        sizes = np.bincount(self.group_of, minlength=self.num_groups)
        if not sizes.all():
            group = int(np.argmin(sizes))
            raise GraphError(
                f"group_of: expected at least one op in every group, got none in group {group} "
                f"({self.group_names[group]!r})"
            )

    def __repr__(self) -> str:
        return f"Grouping(ops={self.num_ops}, groups={self.num_groups})"

    @property
    def num_ops(self) -> int:
        """V, the number of ops."""
        return len(self.group_of)

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return len(self.group_names)

    @cached_property
    def members(self) -> CompressedRows:
        """Row ``group`` holds its ops, in the order of their indices."""
        return compress_rows(self.num_groups, self.group_of, np.arange(self.num_ops))

    @property
    def first_ops(self) -> NDArray[np.int32]:
        """int32[G], the op of the lowest index in each group."""
        return self.members.values[self.members.offsets[:-1]]


def check_num_ops(field: str, grouping: Grouping, num_ops: int) -> None:
    """Refuse a grouping of a graph with another number of ops."""
    if grouping.num_ops != num_ops:
        raise GraphError(
            f"{field}.group_of: expected the groups of {num_ops} ops, got {grouping.num_ops}"
        )


def checked_hierarchy(
    field: str, hierarchy: Iterable[Any], grouping: Grouping
) -> tuple[Grouping, ...]:
    """Check that each grouping is nested in the one before, and that one is a given one."""
    levels = tuple(hierarchy)
    for index, level in enumerate(levels):
        name = f"{field}[{index}]"
        if not isinstance(level, Grouping):
            raise GraphError(f"{name}: expected Grouping, got {short_repr(level)}")
        check_num_ops(name, level, grouping.num_ops)
        if index == 0:
            continue
        coarser = levels[index - 1]
        if not coarser.num_groups < level.num_groups:
            raise GraphError(
                f"{name}: expected more than {coarser.num_groups} groups, got {level.num_groups}"
            )
        apart = coarser.group_of != coarser.group_of[level.first_ops][level.group_of]
        if apart.any():
            group = int(level.group_of[int(np.argmax(apart))])
            raise GraphError(
                f"{name}: expected group {group} ({short_repr(level.group_names[group])}) "
                f"within one group of {field}[{index - 1}], got it in several"
            )
    if grouping not in levels:
        raise GraphError(f"{field}: expected the {grouping.num_groups} groups of grouping in it")
    return levels


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupGraph(Record):
    """The graph of G op groups on D devices, with M edges: always a DAG.

    An edge joins two groups between which tensors flow, in either direction, and runs from the
    group whose first op comes earlier in topological order. See `group_graph`.

    Attributes
    ----------
    compute_time : float64[G, D]
        Seconds of all ops of a group on a device, one after the other; infinity where one of them
        cannot run.
    output_bytes : int64[G]
        Bytes of all tensors that the ops of a group make.
    parameter_bytes : int64[G]
        Bytes of weights and optimizer state of a group.
    edges : int32[M, 2]
        Rows of (earlier group, later group), each pair at most once.
    edge_bytes : int64[M]
        Bytes of the tensors that flow between the two groups, both ways, each tensor once.

    Examples
    --------
    >>> graph = GroupGraph(
    ...     compute_time=[[1e-3, 1e-3], [2e-3, 2e-3]],
    ...     output_bytes=[4096, 0],
    ...     parameter_bytes=[0, 1024],
    ...     edges=[[0, 1]],
    ...     edge_bytes=[4096],
    ... )
    >>> graph
    GroupGraph(groups=2, devices=2, edges=1)
    """

    compute_time: NDArray[np.float64]
    output_bytes: NDArray[np.int64]
    parameter_bytes: NDArray[np.int64]
    edges: NDArray[np.int32]
    edge_bytes: NDArray[np.int64]

    def __post_init__(self) -> None:
        self._check("compute_time", float_array, (None, None), infinity_is="it cannot run there")
        self._check("output_bytes", byte_counts, (self.num_groups,))
        self._check("parameter_bytes", byte_counts, (self.num_groups,))
        self._check("edges", int_array, np.int32, (None, 2), maximum=self.num_groups - 1)
        self._check("edge_bytes", int_array, np.int64, (self.num_edges,))
        check_rows_differ("edges", self.edges, "pair of groups")
        _ = self.topological_order

    def __repr__(self) -> str:
        return (
            f"GroupGraph(groups={self.num_groups}, devices={self.num_devices}, "
            f"edges={self.num_edges})"
        )

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return len(self.compute_time)

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return int(self.compute_time.shape[1])

    @property
    def num_edges(self) -> int:
        """M, the number of edges."""
        return len(self.edges)

    @cached_property
    def topological_order(self) -> NDArray[np.int32]:
        """int32[G], groups in topological order; of several ready ones the lowest index first.

        The constructor raises a `GraphError` if the edges have a cycle.
        """
        try:
            return topological_order(self.num_groups, *self.edges.T)
        except CycleError as error:
            raise GraphError(f"edges: expected no cycle, got one of groups {error.nodes}") from None


def group_graph(
    graph: OpGraph, grouping: Grouping, compute_time: NDArray[np.float64]
) -> GroupGraph:
    """Return the graph of groups, with the features that placers see.

    A group's position is the topological index of its first op. Any two groups between which
    tensors flow are joined by one edge, from the earlier to the later position. The graph therefore
    has no cycles, even if backward ops share a group with forward ops.

    Parameters
    ----------
    graph
        A graph of V ops.
    grouping
        The partition of the ops into G groups.
    compute_time : float64[V, D]
        Seconds of each op on each device; infinity where it cannot run.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=100)
    >>> chain.add_edge("b", "c", bytes=20)
    >>> together = Grouping(group_of=[0, 1, 0], group_names=("a, c", "b"))
    >>> groups = group_graph(from_networkx(chain), together, np.ones((3, 2)))
    >>> groups.edges, groups.edge_bytes
    (array([[0, 1]], dtype=int32), array([120]))
    """
    edges, edge_bytes = _group_edges(graph, grouping)
    return GroupGraph(
        compute_time=group_compute_time(grouping, compute_time),
        output_bytes=group_output_bytes(graph, grouping),
        parameter_bytes=sums_by_key(grouping.group_of, graph.parameter_bytes, grouping.num_groups),
        edges=edges,
        edge_bytes=edge_bytes,
    )


def group_compute_time(
    grouping: Grouping, compute_time: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return float64[G, D], the seconds of all ops of each group on each device."""
    sums = [
        np.bincount(grouping.group_of, seconds, grouping.num_groups) for seconds in compute_time.T
    ]
    return np.stack(sums, axis=1)


def group_output_bytes(graph: OpGraph, grouping: Grouping) -> NDArray[np.int64]:
    """Return int64[G], the bytes of all tensors that the ops of each group make."""
    makers = grouping.group_of[graph.tensor_producer]
    return sums_by_key(makers, graph.tensor_bytes, grouping.num_groups)


def _group_edges(graph: OpGraph, grouping: Grouping) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    num_groups = grouping.num_groups
    tensors = graph.edges[:, 0].astype(np.int64)
    sources = grouping.group_of[graph.edge_producers]
    readers = grouping.group_of[graph.edge_consumers]
    crosses = sources != readers
    # A tensor has one source, so (tensor, reading group) names a tensor and a pair of groups.
    once = np.unique(tensors[crosses] * num_groups + readers[crosses])
    tensors, readers = np.divmod(once, num_groups)
    sources = grouping.group_of[graph.tensor_producer[tensors]].astype(np.int64)
    positions = np.full(num_groups, graph.num_ops)  # the topological index of the first op
    np.minimum.at(positions, grouping.group_of, graph.topological_index)
    forwards = positions[sources] < positions[readers]
    earlier = np.where(forwards, sources, readers)
    later = np.where(forwards, readers, sources)
    pairs, pair_of_tensor = np.unique(earlier * num_groups + later, return_inverse=True)
    edges = np.stack(np.divmod(pairs, num_groups), axis=1).astype(np.int32)
    return edges, sums_by_key(pair_of_tensor, graph.tensor_bytes[tensors], len(pairs))
