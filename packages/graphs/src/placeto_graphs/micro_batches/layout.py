"""Which op of a step in micro-batches is which: copies, sums of gradients, and their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.micro_batches.roles import accumulated_gradients, ops_of_batch
from placeto_graphs.schema.op_graph import OpGraph

ONCE = -1  # the micro-batch of an op that runs once


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the ops and tensors of a graph are in the step of its m micro-batches.

    The graph has V ops, T tensors, and A gradients of weights. Numbers from V on stand for the ops
    that sum up gradients, and numbers from T on for their sums, one for each gradient. The step
    has V' ops and T' tensors.

    Attributes
    ----------
    op : int64[m, V + A]
        The op of the step for each micro-batch. One that runs once is the same for all of them. Of
        sums there are none for the first micro-batch (-1).
    tensor : int64[m, T + A]
        The tensor of the step for each micro-batch. The sum up to the first one is its gradient.
    source_op : int64[V']
        The op in ``range(V + A)`` that each op of the step stands for.
    micro_batch : int64[V']
        The micro-batch that each op of the step is for, or `ONCE`.
    source_tensor : int64[T']
        The tensor in ``range(T + A)`` that each tensor of the step stands for.
    tensor_producer : int32[T']
        The op of the step that makes each tensor.
    gradients : int64[A]
        The tensors that are gradients of weights.
    of_batch : bool[V]
        Whether an op runs once for each micro-batch.
    """

    op: NDArray[np.int64]
    tensor: NDArray[np.int64]
    source_op: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    source_tensor: NDArray[np.int64]
    tensor_producer: NDArray[np.int32]
    gradients: NDArray[np.int64]
    of_batch: NDArray[np.bool_]


def layout_of(graph: OpGraph, count: int) -> Layout:
    """Return where everything is in the step of ``count`` micro-batches.

    Ops are in the order of their phases; in each phase first what runs once, then one micro-batch
    after the other, each in the order of the graph, a sum right behind what makes the gradient.
    Tensors are in the order of the ops that make them.
    """
    of_batch = ops_of_batch(graph)
    gradients = np.flatnonzero(accumulated_gradients(graph, of_batch))
    num_sums = len(gradients)
    origin = np.append(np.arange(graph.num_ops), graph.tensor_producer[gradients]).astype(np.int64)
    maker = np.append(graph.tensor_producer, graph.num_ops + np.arange(num_sums))

    each, is_sum = of_batch[origin], np.arange(len(origin)) >= graph.num_ops
    number = np.arange(count)[:, None]
    exists = np.where(number == 0, ~is_sum, each)
    micro_batch = np.where(each, number, ONCE)
    op, source_op = _numbered(exists, [origin, micro_batch, graph.phases[origin]])
    tensor, source_tensor = _numbered(exists[:, maker], [op[:, maker]])
    tensor_producer = np.sort(op[:, maker][exists[:, maker]]).astype(np.int32)

    micro_batch_of_op = micro_batch[exists][np.argsort(op[exists])]
    op[:, ~each] = op[0, ~each]
    tensor[:, ~each[maker]] = tensor[0, ~each[maker]]
    tensor[0, graph.num_tensors :] = tensor[0, gradients]
    return Layout(
        op=op,
        tensor=tensor,
        source_op=source_op,
        micro_batch=micro_batch_of_op,
        source_tensor=source_tensor,
        tensor_producer=tensor_producer,
        gradients=gradients,
        of_batch=of_batch,
    )


def _numbered(
    exists: NDArray[np.bool_], keys: Sequence[NDArray[np.integer[Any]]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return numbers of what exists, by keys, the last one first, and then by column.

    Parameters
    ----------
    exists : bool[m, N]
        What there is of each column for each micro-batch.
    keys : int[N] or int[m, N] each
        What it is sorted by.

    Returns
    -------
    int64[m, N]
        The number of each, or -1.
    int64[K]
        The column of each number.
    """
    rows, columns = np.nonzero(exists)
    order = np.lexsort([columns, *(np.broadcast_to(key, exists.shape)[exists] for key in keys)])
    numbers = np.full(exists.shape, -1)
    numbers[rows[order], columns[order]] = np.arange(len(order))
    return numbers, columns[order]
