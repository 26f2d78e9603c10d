"""Merge-and-colocate: from many small groups to few (Addanki et al. 2019, appendix)."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.grouping.labels import grouping_of_labels
from placeto_graphs.schema.arrays import INT64_MAX, integer
from placeto_graphs.schema.grouping import Grouping, check_num_ops, group_output_bytes
from placeto_graphs.schema.op_graph import OpGraph

LEVEL_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""How many groups the levels of a problem have, from coarse to fine."""


def merge_and_colocate(
    graph: OpGraph,
    grouping: Grouping,
    *,
    num_groups: int | None = None,
    min_output_bytes: int | None = None,
) -> Grouping:
    """Merge the cheapest group into a neighbour, again and again.

    The cost of a group is the bytes of all tensors that its ops make. The group of lowest cost
    joins the group that reads the largest tensor it sends. A group that sends none joins the one
    that makes the largest tensor it reads. Of equal groups the first counts, and of equal tensors
    the one that is read first. Merging ends when ``num_groups`` groups are left, or no group costs
    less than ``min_output_bytes``. A group without neighbours, such as a counter that nothing else
    reads, joins the next group without neighbours.

    Ops that are together stay together. Time and memory grow nearly linearly with ops and edges.

    Parameters
    ----------
    graph
        A graph of V ops.
    grouping
        Groups to begin with, such as those of `colocate`.
    num_groups
        Number of groups to stop at, at least 1; by default 1.
    min_output_bytes
        Bytes of output from which on a group stays, at least 1; by default none is enough.

    Raises
    ------
    GraphError
        When neither target is given, one is not an integer >= 1, or the grouping is of another
        graph.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=10)
    >>> chain.add_edge("b", "c", bytes=1000)
    >>> chain.add_edge("c", "d", bytes=100)
    >>> graph = from_networkx(chain)
    >>> merge_and_colocate(graph, colocate(graph, rules=()), num_groups=2).group_of
    array([0, 0, 1, 1], dtype=int32)
    """
    if num_groups is None and min_output_bytes is None:
        raise GraphError("num_groups, min_output_bytes: expected one of the two, got neither")
    fewest = 1 if num_groups is None else integer("num_groups", num_groups, minimum=1)
    min_cost = INT64_MAX
    if min_output_bytes is not None:
        min_cost = integer("min_output_bytes", min_output_bytes, minimum=1)
    return _merged(graph, grouping, _merges(graph, grouping, fewest, min_cost))


def nested_groupings(
    graph: OpGraph, grouping: Grouping, num_groups: Iterable[int] = LEVEL_SIZES
) -> tuple[Grouping, ...]:
    """Return nested groupings, which merge-and-colocate passes through.

    Each is the result of `merge_and_colocate` for that number of groups, and all are made in one
    run. They go from coarse to fine, each once. Ops of one group are also in one group of every
    coarser grouping. Numbers that are not fewer than there are give ``grouping`` itself.

    Parameters
    ----------
    graph
        A graph of V ops.
    grouping
        Groups to begin with, such as those of `colocate`.
    num_groups
        Numbers of groups, each at least 1, in any order.

    Raises
    ------
    GraphError
        When no number is given, one is not an integer >= 1, or the grouping is of another graph.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx
    >>> graph = from_networkx(nx.path_graph(6, create_using=nx.DiGraph))
    >>> nested_groupings(graph, colocate(graph, rules=()), num_groups=[4, 2])
    (Grouping(ops=6, groups=2), Grouping(ops=6, groups=4))
    """
    requested_sizes = {integer("num_groups", count, minimum=1) for count in num_groups}
    if not requested_sizes:
        raise GraphError("num_groups: expected at least one number of groups, got none")
    sizes = sorted({min(count, grouping.num_groups) for count in requested_sizes})
    merges = _merges(graph, grouping, sizes[0], INT64_MAX)
    return tuple(
        grouping
        if size == grouping.num_groups
        else _merged(graph, grouping, merges[: grouping.num_groups - size])
        for size in sizes
    )


def _merges(graph: OpGraph, grouping: Grouping, fewest: int, min_cost: int) -> NDArray[np.int64]:
    """Return int64[M, 2], rows of a group and the neighbour that it is merged into, in order."""
    from placeto_graphs.grouping.loops import NOTHING, merge_cheapest  # noqa: PLC0415

    check_num_ops("grouping", grouping, graph.num_ops)
    cost = group_output_bytes(graph, grouping)
    begins, ends = _edges_by_priority(graph, grouping)
    # At first the edges of a group form a chain, the most urgent first.
    root = np.full((2, grouping.num_groups), NOTHING)
    left, right = np.full((2, *ends.shape), NOTHING)
    for direction, groups in enumerate(begins):
        edges = np.argsort(groups, kind="stable")
        in_order = groups[edges]
        follows = in_order[1:] == in_order[:-1]
        left[direction, edges[:-1][follows]] = edges[1:][follows]
        senders, first_edges = np.unique(groups, return_index=True)
        root[direction, senders] = first_edges
    merges = np.empty((max(grouping.num_groups - fewest, 0), 2), np.int64)
    count = merge_cheapest(
        cost.copy(),
        cost,
        np.argsort(cost, kind="stable"),
        ends,
        root,
        left,
        right,
        np.arange(grouping.num_groups),
        merges,
        min_cost,
    )
    return merges[:count]


def _merged(graph: OpGraph, grouping: Grouping, merges: NDArray[np.int64]) -> Grouping:
    labels = np.arange(grouping.num_groups)
    labels[merges[:, 0]] = merges[:, 1]
    while not np.array_equal(labels[labels], labels):
        labels = labels[labels]
    return grouping_of_labels(graph, labels[grouping.group_of])


def _edges_by_priority(
    graph: OpGraph, grouping: Grouping
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return twice int64[2, E], the edges between groups, as groups and their neighbours.

    The most urgent come first. The first direction has the edges that groups send along, the
    second those that they read from.
    """
    sizes = graph.tensor_bytes[graph.edges[:, 0]]
    producers, consumers = graph.edge_producers, graph.edge_consumers
    ends = grouping.group_of[np.stack([producers, consumers])]
    crosses = ends[0] != ends[1]
    ends, descending_size = ends[:, crosses], -sizes[crosses]
    made_at = graph.topological_index[producers[crosses]]
    read_at = graph.topological_index[consumers[crosses]]
    largest_first_read = np.lexsort((made_at, read_at, descending_size))
    largest_first_made = np.lexsort((read_at, made_at, descending_size))
    sent, read = ends[:, largest_first_read], ends[::-1, largest_first_made]
    begins_and_ends = np.stack([sent, read], axis=1).astype(np.int64)
    return begins_and_ends[0], begins_and_ends[1]
