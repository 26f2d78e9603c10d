"""Smaller problems that cost about the same: ops of a group that run in turn become one op."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.schema.arrays import sums_by_key
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph

if TYPE_CHECKING:
    from placeto_graphs.schema.problem import PlacementProblem

NUM_PHASES = 3


def contracted(problem: "PlacementProblem", max_ops: int) -> "PlacementProblem":
    """Return a problem of at most ``max_ops`` ops, whose placements cost about the same.

    Ops that a group runs at about the same time become one op, a *block*: those of one micro-batch,
    one phase and one slice of the topological order, weights apart from others. There are as many
    slices as the number of ops allows. The groups are those of the finest level with no more
    blocks without slices, or of the coarsest.

    A block takes the time of its ops with their overheads. It starts when all that they read is
    there, and its tensors are ready when all of it is done. Tensors that the same blocks read are
    one. If tensors flow both ways between two blocks, all of them go from the earlier to the later.

    Parameters
    ----------
    problem
        Problem of V ops, which itself is returned if these are no more than ``max_ops``.
    max_ops
        Most ops of the result. If the coarsest level has more blocks, it has these.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(nx.path_graph(100, create_using=nx.DiGraph)),
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.ones((100, 2)),
    ... )
    >>> contracted(problem, 64)
    PlacementProblem(ops=64, groups=64, devices=2)
    """
    from placeto_graphs.schema.problem import PlacementProblem  # noqa: PLC0415

    graph = problem.graph
    if graph.num_ops <= max_ops:
        return problem
    levels, parts = problem.levels[: problem.level + 1], _parts(graph)
    for level in reversed(levels):
        labels = level.group_of * (parts.max() + 1) + parts
        if np.count_nonzero(np.bincount(labels)) <= max_ops:
            break
    block_of = _blocks(graph, labels, max_ops)
    first_ops = np.empty(int(block_of.max()) + 1, np.int64)
    in_reverse = graph.topological_order[::-1]
    first_ops[block_of[in_reverse]] = in_reverse
    groupings = tuple(
        Grouping(group_of=level.group_of[first_ops], group_names=level.group_names)
        for level in levels[: levels.index(level) + 1]
    )
    return PlacementProblem(
        graph=_graph_of_blocks(graph, block_of, first_ops),
        cluster=problem.cluster,
        compute_time=_seconds_of_blocks(problem, block_of),
        grouping=groupings[-1],
        hierarchy=groupings,
    )


def _parts(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[V], equal for ops of a micro-batch and a phase, weights apart from others."""
    reads_none = np.ones(graph.num_ops, np.bool_)
    reads_none[graph.edge_consumers] = False
    is_weight = reads_none & (graph.parameter_bytes > 0)
    parts = (graph.micro_batch.astype(np.int64) + 1) * NUM_PHASES + graph.phases
    return 2 * parts + is_weight


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what `numpy.unique` does, in half of its time."""
    ordered = np.sort(values)
    differs = np.append(True, np.diff(ordered) != 0)[: len(ordered)]
    distinct: NDArray[np.int64] = ordered[differs]
    return distinct


def _distinct_pairs(
    first: NDArray[np.int64], second: NDArray[np.int64], count: int
) -> NDArray[np.int32]:
    """Return int32[N, 2], pairs once each, whose second numbers are below ``count``."""
    return np.stack(np.divmod(_distinct(first * count + second), count), axis=1).astype(np.int32)


def _blocks(graph: OpGraph, labels: NDArray[np.int64], max_ops: int) -> NDArray[np.int64]:
    """Return int64[V], blocks of equal labels in slices of the order, by their first ops."""
    index = graph.topological_index.astype(np.int64)
    order = np.lexsort((index, labels))
    begins = np.append(True, np.diff(labels[order]) != 0)
    num_slices, places = 1, index[order]
    best = begins
    while num_slices < graph.num_ops:
        num_slices *= 2
        slices = places * num_slices // graph.num_ops
        sliced = begins | np.append(True, np.diff(slices) != 0)
        if sliced.sum() > max_ops:
            break
        best = sliced
    rank = np.empty(int(best.sum()), np.int64)
    rank[np.argsort(places[best])] = np.arange(len(rank))
    block_of = np.empty(graph.num_ops, np.int64)
    block_of[order] = rank[np.cumsum(best) - 1]
    return block_of


def _seconds_of_blocks(
    problem: "PlacementProblem", block_of: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return float64[B, D], seconds of all ops of a block and of the overheads between them."""
    columns = []
    for device, seconds in zip(problem.cluster.devices, problem.compute_time.T, strict=True):
        total = np.bincount(block_of, seconds)
        num_timed = np.bincount(block_of, seconds > 0)
        columns.append(total + device.op_overhead * np.maximum(num_timed - 1, 0))
    return np.stack(columns, axis=1)


def _graph_of_blocks(
    graph: OpGraph, block_of: NDArray[np.int64], first_ops: NDArray[np.int64]
) -> OpGraph:
    """Return the graph of blocks, which has no cycles: all edges go to later blocks."""
    count = len(first_ops)
    tensor = graph.edges[:, 0].astype(np.int64)
    maker, reader = block_of[graph.edge_producers], block_of[graph.edge_consumers]
    once = _distinct(tensor[maker != reader] * count + reader[maker != reader])
    tensor, reader = np.divmod(once, count)
    maker = block_of[graph.tensor_producer[tensor]]
    is_held = np.zeros(graph.num_tensors, np.bool_)
    is_held[graph.held_tensors] = True
    # A tensor is as all that the same block makes for the same others. One that flows back is
    # made by its reader instead.
    number = np.random.default_rng(0).integers(0, 2**62, count + 2, np.uint64)
    forwards = reader > maker
    readers = np.zeros(graph.num_tensors, np.uint64)
    np.add.at(readers, tensor[forwards], number[reader[forwards]])
    kept = (readers > 0) | is_held
    back_maker, back_reader = reader[~forwards], maker[~forwards]
    makers = np.append(block_of[graph.tensor_producer[kept]], back_maker)
    held = np.append(is_held[kept], np.zeros(len(back_maker), np.bool_))
    sizes = np.append(graph.tensor_bytes[kept], graph.tensor_bytes[tensor[~forwards]])
    look = np.append(readers[kept], number[back_reader])
    look = (look + held * number[-1]) * (2 * number[makers] + np.uint64(1))
    _, first, merged = np.unique(look, return_index=True, return_inverse=True)
    merged_of_tensor = np.zeros(graph.num_tensors, np.int64)
    num_kept = int(kept.sum())
    merged_of_tensor[kept] = merged[:num_kept]
    edge_tensors = np.append(merged_of_tensor[tensor[forwards]], merged[num_kept:])
    edge_readers = np.append(reader[forwards], back_reader)
    waiters, awaited = block_of[graph.waits].T
    workspace = np.zeros(count, np.int64)
    np.maximum.at(workspace, block_of, graph.workspace_bytes)
    chosen = first_ops.tolist()
    return OpGraph(
        op_names=tuple(graph.op_names[op] for op in chosen),
        op_types=tuple(graph.op_types[op] for op in chosen),
        scopes=tuple(graph.scopes[op] for op in chosen),
        phases=graph.phases[first_ops],
        parameter_bytes=sums_by_key(block_of, graph.parameter_bytes, count),
        workspace_bytes=workspace,
        tensor_producer=makers[first].astype(np.int32),
        tensor_bytes=sums_by_key(merged, sizes, len(first)),
        edges=_distinct_pairs(edge_tensors, edge_readers, count),
        micro_batch=graph.micro_batch[first_ops],
        waits=_distinct_pairs(waiters[awaited < waiters], awaited[awaited < waiters], count),
        held_tensors=np.flatnonzero(np.bincount(merged, held, len(first))).astype(np.int32),
    )
