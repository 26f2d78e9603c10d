"""Which groups can reach which, and which ops are reached from some."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.digraphs import compress_rows
from placeto_graphs.errors import GraphError
from placeto_graphs.schema.grouping import GroupGraph
from placeto_graphs.schema.op_graph import OpGraph

MAX_GROUPS = 32_768  # three matrices of a gigabyte each


@dataclass(frozen=True, eq=False)
class Reachability:
    """For each of G groups, which others can reach it, which it can reach, and which neither.

    Row ``v`` of each array describes group ``v``. A group is in none of its own three sets; every
    other group is in exactly one.

    Attributes
    ----------
    ancestors : bool[G, G]
        The groups from which a path leads to ``v``.
    descendants : bool[G, G]
        The groups to which a path leads from ``v``.
    parallel : bool[G, G]
        All other groups.
    """

    ancestors: NDArray[np.bool_]
    descendants: NDArray[np.bool_]
    parallel: NDArray[np.bool_]


def reachability(graph: GroupGraph, *, max_groups: int = MAX_GROUPS) -> Reachability:
    """Return the ancestors, descendants and parallel groups of each group.

    10,000 groups take about two seconds.

    Parameters
    ----------
    graph
        A graph of G groups.
    max_groups
        Largest G that is taken: matrices of G * G bytes have to fit memory.

    Raises
    ------
    GraphError
        When the graph has more than ``max_groups`` groups.

    Examples
    --------
    >>> chain = GroupGraph(
    ...     compute_time=np.ones((3, 1)),
    ...     output_bytes=[8, 8, 0],
    ...     parameter_bytes=[0, 0, 0],
    ...     edges=[[0, 1], [1, 2]],
    ...     edge_bytes=[8, 8],
    ... )
    >>> reachability(chain).ancestors[2]
    array([ True,  True, False])
    """
    num_groups = graph.num_groups
    if num_groups > max_groups:
        raise GraphError(
            f"graph: expected at most {max_groups} groups, got {num_groups}; merge them first"
        )
    descendants = np.zeros((num_groups, num_groups), np.bool_)
    successors = compress_rows(num_groups, *graph.edges.T)
    for group in graph.topological_order[::-1]:
        following = successors[group]
        np.logical_or.reduce(descendants[following], axis=0, out=descendants[group])
        descendants[group, following] = True
    ancestors = np.ascontiguousarray(descendants.T)
    parallel = ~(ancestors | descendants)
    np.fill_diagonal(parallel, val=False)
    for matrix in (ancestors, descendants, parallel):
        matrix.flags.writeable = False
    return Reachability(ancestors, descendants, parallel)


def reached(
    graph: OpGraph,
    is_source: NDArray[np.bool_],
    passes_on: NDArray[np.bool_] | None = None,
    waits: NDArray[np.int32] | None = None,
    *,
    backwards: bool = False,
) -> NDArray[np.bool_]:
    """Return bool[V], the ops that edges lead to from some, through such as pass it on.

    By default all pass it on. Some waits of the graph may lead on as edges do. Backwards, each edge
    leads from its consumer to its producer.
    """
    from placeto_graphs.grouping.loops import spread  # noqa: PLC0415

    is_reached = is_source.copy()
    passes = np.ones(graph.num_ops, np.bool_) if passes_on is None else passes_on
    rows = graph.precedences[: graph.num_edges]  # by edges, and not by waits
    if waits is not None:
        rows = np.concatenate([rows, waits[:, ::-1]])
    sources, targets = rows.T[::-1] if backwards else rows.T
    places = graph.topological_index[sources]
    in_order = np.argsort(-places if backwards else places, kind="stable")
    spread(is_reached, passes, sources[in_order], targets[in_order])
    return is_reached
