"""Merge-and-colocate: from many small groups to few (Addanki et al. 2019, appendix)."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np

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
    cheapest_left = INT64_MAX
    if min_output_bytes is not None:
        cheapest_left = integer("min_output_bytes", min_output_bytes, minimum=1)
    return _merged(graph, grouping, _merges(graph, grouping, fewest, cheapest_left))


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


def _merges(
    graph: OpGraph, grouping: Grouping, fewest: int, cheapest_left: int
) -> list[tuple[int, int]]:
    """Return pairs of a group and the neighbour that it is merged into, in order.

    An edge is its place in the order of priority, so that the first edge of a heap is next. Of two
    groups the shorter heap joins the longer one: no edge moves more than log2(E) times.
    """
    check_num_ops("grouping", grouping, graph.num_ops)
    cost = group_output_bytes(graph, grouping).tolist()
    by_direction = _edges_by_priority(graph, grouping)
    heaps: list[list[list[int]]] = [[[] for _ in cost] for _ in by_direction]
    for heap_of, (begins, _) in zip(heaps, by_direction, strict=True):
        for edge, group in enumerate(begins):
            heap_of[group].append(edge)
    merged_into = list(range(len(cost)))

    def present(group: int) -> int:
        while merged_into[group] != group:
            merged_into[group] = group = merged_into[merged_into[group]]
        return group

    def neighbour_of(group: int) -> int | None:
        for heap_of, (_, ends) in zip(heaps, by_direction, strict=True):
            heap = heap_of[group]
            while heap:
                neighbour = present(ends[heap[0]])
                if neighbour != group:
                    return neighbour
                heappop(heap)  # by now within the group
        return None

    cheapest = [(size, group) for group, size in enumerate(cost)]
    heapify(cheapest)
    merges: list[tuple[int, int]] = []
    waiting = None  # a group without neighbours, for the next one of that kind
    while len(merges) < len(cost) - fewest and cheapest:
        size, group = heappop(cheapest)
        if size >= cheapest_left:
            break
        if merged_into[group] != group or cost[group] != size or group == waiting:
            continue  # it was merged, grew, or came to wait since it was put here
        neighbour = neighbour_of(group)
        if neighbour is None:
            if waiting is None:
                waiting = group
                continue
            group, neighbour, waiting = waiting, group, None
        merges.append((group, neighbour))
        merged_into[group] = neighbour
        cost[neighbour] += cost[group]
        for heap_of in heaps:
            shorter, longer = sorted((heap_of[group], heap_of[neighbour]), key=len)
            for edge in shorter:
                heappush(longer, edge)
            heap_of[group], heap_of[neighbour] = [], longer
        heappush(cheapest, (cost[neighbour], neighbour))
    return merges


def _merged(graph: OpGraph, grouping: Grouping, merges: list[tuple[int, int]]) -> Grouping:
    labels = np.arange(grouping.num_groups)
    for group, neighbour in reversed(merges):  # where a neighbour ends up is known by then
        labels[group] = labels[neighbour]
    return grouping_of_labels(graph, labels[grouping.group_of])


def _edges_by_priority(
    graph: OpGraph, grouping: Grouping
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the edges between groups, the most urgent first, as groups and their neighbours.

    The first are those that groups send along, the second those that they read from.
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
    return ends[:, largest_first_read].tolist(), ends[::-1, largest_first_made].tolist()
