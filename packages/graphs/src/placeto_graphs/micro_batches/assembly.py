"""Puts the step of several micro-batches together, as its layout says."""

from collections.abc import Sequence
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.micro_batches.layout import ONCE, Layout
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import OpGraph, Phase

SUM_TYPE = "placeto.add_gradients"
BYTES_PER_NUMBER = 4  # of float32: what tells how many numbers a gradient has
PASSES_OF_SUM = 3  # it reads the sum so far and the new gradient, and writes the new sum

Value = TypeVar("Value", np.int8, np.int32, np.int64, np.float64)


def repeated_grouping(graph: OpGraph, grouping: Grouping, layout: Layout) -> Grouping:
    """Return the groups of the ops of a step: those of what they are copies of, or sums for."""
    group_of_sum = grouping.group_of[graph.tensor_producer[layout.gradients]]
    group_of = np.append(grouping.group_of, group_of_sum)[layout.source_op]
    return Grouping(group_of=group_of, group_names=grouping.group_names)


def repeated_times(
    graph: OpGraph, seconds: NDArray[np.float64], layout: Layout
) -> NDArray[np.float64]:
    """Return float64[V', ...], the times of the ops of a step, from float64[V, ...]."""
    return np.concatenate([seconds, _times_of_sums(graph, seconds, layout)])[layout.source_op]


def repeated_graph(graph: OpGraph, layout: Layout) -> OpGraph:
    """Return the graph of the step of several micro-batches."""
    makers = graph.tensor_producer[layout.gradients]
    sizes = graph.tensor_bytes[layout.gradients]
    none = np.zeros(len(makers), np.int64)
    scopes_of_sums = [graph.scopes[maker] for maker in makers.tolist()]

    def of_ops(values: NDArray[Value], of_sums: NDArray[np.generic]) -> NDArray[Value]:
        return np.append(values, of_sums.astype(values.dtype))[layout.source_op]

    def texts_of_ops(values: Sequence[str], of_sums: Sequence[str]) -> list[str]:
        every = [*values, *of_sums]
        return [every[op] for op in layout.source_op.tolist()]

    return OpGraph(
        op_names=_names(graph, layout),
        op_types=tuple(texts_of_ops(graph.op_types, [SUM_TYPE] * len(makers))),
        scopes=tuple(texts_of_ops(graph.scopes, scopes_of_sums)),
        phases=of_ops(graph.phases, none + Phase.BACKWARD),
        flops=of_ops(graph.flops, sizes / BYTES_PER_NUMBER),
        bytes_accessed=of_ops(graph.bytes_accessed, PASSES_OF_SUM * sizes),
        parameter_bytes=_shared_out(of_ops(graph.parameter_bytes, none), layout),
        workspace_bytes=of_ops(graph.workspace_bytes, none),
        colocation=of_ops(graph.colocation, graph.colocation[makers]),
        tensor_producer=layout.tensor_producer,
        tensor_bytes=np.append(graph.tensor_bytes, sizes)[layout.source_tensor],
        edges=_edges(graph, layout),
        measured_time={
            kind: repeated_times(graph, seconds, layout)
            for kind, seconds in graph.measured_time.items()
        },
    )


def _shared_out(parameter_bytes: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
    """Return what each copy holds of the weights of its op: about as much as any other.

    Were they all the first copy's, the outputs of the others would live outside that storage.
    """
    count, number = len(layout.op), layout.micro_batch
    return np.where(
        number == ONCE, parameter_bytes, (parameter_bytes + count - 1 - number) // count
    )


def _names(graph: OpGraph, layout: Layout) -> tuple[str, ...]:
    """Return names with the number of the micro-batch, ``conv@3``, of what does not run once."""
    copies = list(zip(layout.source_op.tolist(), layout.micro_batch.tolist(), strict=True))
    for signs in count(1):  # more where an op of the graph has the name of a copy or of a sum
        sums = [_name_of_sum(graph, tensor, "/" * signs) for tensor in layout.gradients]
        names = [*graph.op_names, *sums]
        made = [names[op] if i == ONCE else f"{names[op]}{'@' * signs}{i}" for op, i in copies]
        if len(set(made)) == len(made):
            break
    return tuple(made)


def _name_of_sum(graph: OpGraph, gradient: np.int64, separator: str) -> str:
    maker = int(graph.tensor_producer[gradient])
    position = np.searchsorted(graph.tensors_of_op[maker], gradient)
    return f"{graph.op_names[maker]}{separator}sum{position}"


def _edges(graph: OpGraph, layout: Layout) -> NDArray[np.int32]:
    """Return the edges by phase and micro-batch of their consumers, and then as in the graph."""
    tensors, consumers = graph.edges.T.astype(np.int64)
    rows, of_batch = np.arange(graph.num_edges), layout.of_batch
    sums = graph.num_tensors + np.arange(len(layout.gradients))
    in_sum = np.arange(graph.num_tensors)
    in_sum[layout.gradients] = sums
    to_copies = of_batch[consumers]
    from_each = ~to_copies & of_batch[graph.edge_producers] & (in_sum[tensors] == tensors)
    from_one = ~to_copies & ~from_each
    add = layout.op[1:, graph.num_ops :]
    pieces = (
        (layout.tensor[:, tensors[to_copies]], layout.op[:, consumers[to_copies]], rows[to_copies]),
        (layout.tensor[:, tensors[from_each]], layout.op[:, consumers[from_each]], rows[from_each]),
        (
            layout.tensor[-1:, in_sum[tensors[from_one]]],
            layout.op[-1:, consumers[from_one]],
            rows[from_one],
        ),
        (layout.tensor[:-1, sums], add, graph.num_edges + sums),  # the sum so far
        (layout.tensor[1:, layout.gradients], add, graph.num_edges + sums),  # and what is new
    )
    read = np.concatenate([piece[0].ravel() for piece in pieces])
    reader = np.concatenate([piece[1].ravel() for piece in pieces])
    row = np.concatenate([np.broadcast_to(piece[2], piece[0].shape).ravel() for piece in pieces])
    phases = np.append(graph.phases, np.full(len(sums), Phase.BACKWARD))[layout.source_op]
    order = np.lexsort([read, row, layout.micro_batch[reader], phases[reader]])
    return np.stack([read, reader], axis=1)[order].astype(np.int32)


def _times_of_sums(
    graph: OpGraph, seconds: NDArray[np.float64], layout: Layout
) -> NDArray[np.float64]:
    """Return float64[A, ...], what it takes to add to each gradient, from float64[V, ...].

    It is the least time of an update op that reads the gradient, as a rule of one multiplication
    and addition moves as many bytes; of one that reads several gradients, or moves more bytes, it
    is that part. Where none is known to take time it is 0.
    """
    tensors, readers = graph.edges.T
    place = np.full(graph.num_tensors, -1)
    place[layout.gradients] = np.arange(len(layout.gradients))
    by_update = (place[tensors] >= 0) & (graph.phases[readers] == Phase.UPDATE)
    tensors, readers = tensors[by_update], readers[by_update]
    moved = PASSES_OF_SUM * graph.tensor_bytes[tensors]
    of_reader = np.bincount(readers, moved, graph.num_ops)[readers]
    whole = np.maximum(graph.bytes_accessed[readers], of_reader)
    equal = 1.0 / np.bincount(readers)[readers]
    part = np.divide(moved, whole, out=equal, where=whole > 0)
    known = np.where(seconds[readers] > 0, seconds[readers], np.inf)
    least = np.full((len(layout.gradients), *seconds.shape[1:]), np.inf)
    np.minimum.at(least, place[tensors], (known.T * part).T)
    return np.where(np.isinf(least), 0.0, least)
