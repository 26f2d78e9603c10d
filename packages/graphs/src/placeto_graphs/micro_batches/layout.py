"""Ops that run once for each micro-batch, and the positions of their copies."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.grouping.reachability import reached
from placeto_graphs.schema.op_graph import FREE_TYPE, ONCE, OpGraph, Phase


def ops_of_batch(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], the ops that run once for each micro-batch: they depend on the batch.

    The batch is what enters the step: ops without inputs that hold no weights. Constants are among
    them, as their sizes mostly go with that of the batch. All that can be reached from there
    depends on the batch, except the update and what only the update leads to. So does what waits
    in the backward pass for such an op, as a weight that is cast again where activations are
    computed again, unless it only makes gradients that are the same for all, such as that of an L2
    penalty. All else is the same for every micro-batch: weights, buffers, and what is computed of
    weights alone.

    If no result of the step depends on an input of the forward pass, the batch is not in the graph.
    An example is a profile whose first layer reads its weights only. Then all ops depend on the
    batch but the update and those that only hold weights.
    """
    passes_on: NDArray[np.bool_] = graph.phases != Phase.UPDATE
    has_inputs = np.zeros(graph.num_ops, np.bool_)
    has_inputs[graph.edge_consumers] = True
    holds_nothing: NDArray[np.bool_] = graph.parameter_bytes == 0
    inputs = ~has_inputs & holds_nothing & passes_on
    of_forward = reached(graph, inputs & (graph.phases == Phase.FORWARD), passes_on)
    if not of_forward[_results(graph)].any():
        return (has_inputs | holds_nothing) & passes_on
    backward = graph.phases[graph.waits[:, 0]] == Phase.BACKWARD
    of_batch = reached(graph, inputs, passes_on)
    makes_gradient = np.zeros(graph.num_ops, np.bool_)
    makes_gradient[graph.edge_producers[_edges_to_update(graph)]] = True
    before_gradient, before_batch = (
        reached(graph, ops, backwards=True) for ops in (makes_gradient, of_batch)
    )
    waiting = reached(graph, inputs, passes_on, graph.waits[backward])
    makes_the_same = before_gradient & ~before_batch
    return reached(graph, waiting & ~makes_the_same, passes_on)


def _results(graph: OpGraph) -> NDArray[np.int32]:
    """Return the ops that make gradients of weights; without any, those before the update."""
    of_update = _edges_to_update(graph)
    of_backward = graph.phases[graph.edge_producers] == Phase.BACKWARD
    makers: NDArray[np.int32] = graph.edge_producers[of_update & of_backward]
    if len(makers):
        return makers
    is_read = np.zeros(graph.num_ops, np.bool_)
    is_read[graph.edge_producers[~of_update]] = True
    return np.flatnonzero(~is_read & (graph.phases != Phase.UPDATE)).astype(np.int32)


def _edges_to_update(graph: OpGraph) -> NDArray[np.bool_]:
    computes = np.array(graph.op_types, np.str_) != FREE_TYPE
    of_update: NDArray[np.bool_] = (graph.phases == Phase.UPDATE) & computes
    return of_update[graph.edge_consumers]


def accumulated_gradients(graph: OpGraph, of_batch: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the gradients of weights: the tensors that the update reads of the backward pass."""
    read: NDArray[np.int64] = np.unique(graph.edges[_edges_to_update(graph), 0]).astype(np.int64)
    return read[_made_by_backward(graph, of_batch)[read]]


def gradients_and_terms(graph: OpGraph, of_batch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[T], the gradients of weights and the terms that they are sums of.

    An op whose inputs from the backward pass are all as large as the gradient that it makes adds or
    scales them. Whatever the batch, these terms are as large as the weight.
    """
    waiting: list[int] = accumulated_gradients(graph, of_batch).tolist()
    candidates = _made_by_backward(graph, of_batch)
    sizes, result = graph.tensor_bytes, np.zeros(graph.num_tensors, np.bool_)
    result[waiting] = True
    while waiting:
        tensor = waiting.pop()
        read = graph.inputs_of_op[graph.tensor_producer[tensor]]
        read = read[sizes[read] > 0]
        if (candidates[read] & (sizes[read] == sizes[tensor])).all():
            new = read[~result[read]]
            result[new] = True
            waiting += new.tolist()
    return result


def _made_by_backward(graph: OpGraph, of_batch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    producers = graph.tensor_producer
    backward: NDArray[np.bool_] = graph.phases[producers] == Phase.BACKWARD
    return of_batch[producers] & backward & (graph.tensor_bytes > 0)


class Layout(NamedTuple):
    """Where the ops and tensors of a graph are in the step of its m micro-batches.

    The graph has V ops, T tensors, and A gradients of weights. Numbers from V on stand for the ops
    that add to the gradient of the first micro-batch, one for each gradient, and then for those
    that pass on its total; numbers from T on for what they make. The step has V' ops and T'
    tensors. A copy that there is not is -1: a sum of the first micro-batch, a total of any but the
    last one.
    """

    op: NDArray[np.int64]  # [m, V + 2 A], in the step
    tensor: NDArray[np.int64]  # [m, T + 2 A]
    source_op: NDArray[np.int64]  # [V'], what each op of the step stands for
    origin: NDArray[np.int64]  # [V'], the op that it copies, or whose gradient it adds or passes on
    micro_batch: NDArray[np.int64]  # [V'], or `ONCE`
    source_tensor: NDArray[np.int64]  # [T']
    tensor_producer: NDArray[np.int32]  # [T'], an op of the step
    gradients: NDArray[np.int64]  # [A], tensors of the graph
    of_batch: NDArray[np.bool_]  # [V], ops that run once for each micro-batch


def layout_of(graph: OpGraph, count: int) -> Layout:
    """Return where everything is in the step of ``count`` micro-batches.

    Ops are in the order of their phases. In each phase the ops that run once come first, then one
    micro-batch after the other, each in the order of the graph. A sum, and then the
    total, follows the op that makes the gradient. Tensors are in the order of their makers.
    """
    of_batch = ops_of_batch(graph)
    gradients = accumulated_gradients(graph, of_batch)
    num_sums = len(gradients)
    makers = graph.tensor_producer[gradients]
    origin = np.concatenate([np.arange(graph.num_ops), makers, makers]).astype(np.int64)
    maker = np.append(graph.tensor_producer, graph.num_ops + np.arange(2 * num_sums))

    is_repeated, column = of_batch[origin], np.arange(len(origin))
    index = np.arange(count)[:, None]
    exists = np.where(index == 0, column < graph.num_ops, is_repeated)
    exists[:-1, graph.num_ops + num_sums :] = False
    micro_batch = np.where(is_repeated, index, ONCE)
    op, source_op = _numbered(exists, [origin, micro_batch, graph.phases[origin]])
    tensor, source_tensor = _numbered(exists[:, maker], [op[:, maker]])
    tensor_producer = np.sort(op[:, maker][exists[:, maker]]).astype(np.int32)

    batch_of_op = micro_batch[exists][np.argsort(op[exists])]
    op[:, ~is_repeated] = op[0, ~is_repeated]
    tensor[:, ~is_repeated[maker]] = tensor[0, ~is_repeated[maker]]
    ops = op, tensor, source_op, origin[source_op], batch_of_op
    return Layout(*ops, source_tensor, tensor_producer, gradients, of_batch)


def _numbered(
    exists: NDArray[np.bool_], keys: Sequence[NDArray[np.integer[Any]]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return numbers of what exists by keys, the last one first, and then by column.

    They are int64[m, N], -1 where nothing exists, and with them goes int64[K], the column of each.
    """
    rows, columns = np.nonzero(exists)
    order = np.lexsort([columns, *(np.broadcast_to(key, exists.shape)[exists] for key in keys)])
    positions = np.full(exists.shape, -1)
    positions[rows[order], columns[order]] = np.arange(len(order))
    return positions, columns[order]
