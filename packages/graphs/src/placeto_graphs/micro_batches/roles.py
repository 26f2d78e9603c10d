"""What of a step is done for each micro-batch, and which tensors are gradients of weights."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.schema.arrays import integer
from placeto_graphs.schema.op_graph import OpGraph, Phase


def checked_count(num_micro_batches: Any) -> int:
    """Return a number of micro-batches, which must be an integer >= 1."""
    return integer("num_micro_batches", num_micro_batches, minimum=1)


def ops_of_batch(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], the ops that run once for each micro-batch: they depend on the batch.

    The batch is what enters the step: ops without inputs that hold no weights. Constants are among
    them, as their sizes mostly go with that of the batch. All that can be reached from there
    depends on the batch, except the update and what only the update leads to. All else is the same
    for every micro-batch: weights, buffers, and what is computed of weights alone.

    Where nothing that the step is there for depends on an input of the forward pass, as in a
    profile whose first layer reads its weights only, the batch is not in the graph. Then all ops
    depend on it but the update and those that do nothing but hold weights.
    """
    passes_on: NDArray[np.bool_] = graph.phases != Phase.UPDATE
    has_inputs = np.zeros(graph.num_ops, np.bool_)
    has_inputs[graph.edge_consumers] = True
    holds_nothing: NDArray[np.bool_] = graph.parameter_bytes == 0
    inputs = ~has_inputs & holds_nothing & passes_on
    of_forward = _reached(graph, inputs & (graph.phases == Phase.FORWARD), passes_on)
    if not of_forward[_results(graph)].any():
        return (has_inputs | holds_nothing) & passes_on
    return _reached(graph, inputs, passes_on)


def _results(graph: OpGraph) -> NDArray[np.int32]:
    """Return the ops that make gradients of weights; without any, those before the update."""
    of_update = graph.phases[graph.edge_consumers] == Phase.UPDATE
    of_backward = graph.phases[graph.edge_producers] == Phase.BACKWARD
    makers: NDArray[np.int32] = graph.edge_producers[of_update & of_backward]
    if len(makers):
        return makers
    is_read = np.zeros(graph.num_ops, np.bool_)
    is_read[graph.edge_producers[~of_update]] = True
    return np.flatnonzero(~is_read & (graph.phases != Phase.UPDATE)).astype(np.int32)


def _reached(
    graph: OpGraph, begins: NDArray[np.bool_], passes_on: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return bool[V], the ops that edges lead to from some, through such as pass it on."""
    reached = begins.tolist()
    producers, consumers = _edges_in_topological_order(graph)
    follows = passes_on.tolist()
    for producer, consumer in zip(producers, consumers, strict=True):
        if reached[producer] and follows[consumer]:
            reached[consumer] = True
    return np.array(reached, np.bool_)


def accumulated_gradients(graph: OpGraph, of_batch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[T], the gradients of weights: what the update reads of the backward pass.

    Parameters
    ----------
    graph
        The graph.
    of_batch : bool[V]
        `ops_of_batch`.
    """
    tensors, consumers = graph.edges.T
    read_by_update = np.zeros(graph.num_tensors, np.bool_)
    read_by_update[tensors[graph.phases[consumers] == Phase.UPDATE]] = True
    return read_by_update & _made_by_backward(graph, of_batch)


def gradients_and_terms(graph: OpGraph, of_batch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[T], the gradients of weights and the terms that they are sums of.

    What makes a gradient of tensors of the backward pass that are all as large as the gradient adds
    or scales them: they are as large as the weight, too, whatever the batch.

    Parameters
    ----------
    graph
        The graph.
    of_batch : bool[V]
        `ops_of_batch`.
    """
    result = accumulated_gradients(graph, of_batch)
    candidates = _made_by_backward(graph, of_batch)
    sizes = graph.tensor_bytes
    waiting: list[int] = np.flatnonzero(result).tolist()
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


def _edges_in_topological_order(graph: OpGraph) -> tuple[Iterable[int], Iterable[int]]:
    producers, consumers = graph.edge_producers, graph.edge_consumers
    order = np.argsort(graph.topological_index[producers], kind="stable")
    return producers[order].tolist(), consumers[order].tolist()
