"""From a label per op to a `Grouping`, and how groupings are joined."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.schema.arrays import INT64_MAX, int_array
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph


def grouping_of_labels(graph: OpGraph, labels: NDArray[np.integer[Any]]) -> Grouping:
    """Return the grouping in which ops with equal labels share a group.

    Groups are numbered in the topological order of their first ops, and have the names of these.
    Equal partitions thus give equal groupings.

    Parameters
    ----------
    graph
        A graph of V ops.
    labels : int[V]
        Label of each op, any integer of int64.

    Raises
    ------
    GraphError
        When the labels are not one integer for each op.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> graph = from_networkx(nx.DiGraph([("a", "b"), ("b", "c")]))
    >>> grouping_of_labels(graph, np.array([7, 5, 7])).group_of
    array([0, 1, 0], dtype=int32)
    """
    labels = int_array("labels", labels, np.int64, (graph.num_ops,), minimum=-INT64_MAX)
    order = graph.topological_order
    _, first, label_in_order = np.unique(labels[order], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    group_of = np.empty(graph.num_ops, np.int32)
    group_of[order] = rank[label_in_order]
    first_ops = order[np.sort(first)]
    return Grouping(
        group_of=group_of, group_names=tuple(graph.op_names[op] for op in first_ops.tolist())
    )


def join_pairs(
    num_nodes: int, first_nodes: NDArray[np.integer[Any]], second_nodes: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Return int64[N], the lowest node of each node's connected component.

    Every node takes the lowest label among its neighbours until nothing changes. Each round also
    replaces labels by their own labels, so that there are logarithmically many rounds in practice.
    """
    labels = np.arange(num_nodes)
    while True:
        low, high = labels[first_nodes], labels[second_nodes]
        apart = low != high
        if not apart.any():
            return labels
        first_nodes, second_nodes = first_nodes[apart], second_nodes[apart]
        low, high = np.minimum(low[apart], high[apart]), np.maximum(low[apart], high[apart])
        np.minimum.at(labels, high, low)
        while not np.array_equal(labels[labels], labels):
            labels = labels[labels]
