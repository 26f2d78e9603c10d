"""What the tensors of a training step hold in memory, without a simulator.

All of it follows the memory rule of the schema: what a parameter makes lives in the parameter.
"""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph, Phase

ADDITIONS = frozenset({"aten.add", "aten.add_"})


def activation_bytes(graph: OpGraph) -> int:
    """Return the bytes of the tensors that forward ops make and backward ops read.

    They are what a step keeps from its forward for its backward, the inputs of the step among
    them, parameters and buffers not.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_node("gradient", phase=1)
    >>> ops.add_node("relu", outputs={"mask": 64, "values": 32})
    >>> ops.add_edge("relu", "gradient", tensors=["mask"])
    >>> ops.add_edge("relu", "next", tensors=["values"])
    >>> activation_bytes(from_networkx(ops))
    64
    """
    producer_phase = graph.phases[graph.tensor_producer]
    read_by_backward = np.zeros(graph.num_tensors, np.bool_)
    tensors, readers = graph.edges.T
    read_by_backward[tensors[graph.phases[readers] == Phase.BACKWARD]] = True
    kept = read_by_backward & (producer_phase == Phase.FORWARD) & ~_in_parameters(graph)
    return int(graph.tensor_bytes[kept].sum())


def gradient_term_bytes(graph: OpGraph) -> int:
    """Return the bytes of the terms that are added up to the gradients of weights.

    The gradient of a weight that several ops read, as the steps of an unrolled network do, is a sum
    with a term from each.

    Examples
    --------
    Two steps and a weight of 64 bytes:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_nodes_from(["step 1", "step 2"], phase=1)
    >>> ops.add_node("sum", op_type="aten.add", phase=1)
    >>> ops.add_node("update", phase=2)
    >>> ops.add_edge("step 1", "sum", bytes=64)
    >>> ops.add_edge("step 2", "sum", bytes=64)
    >>> ops.add_edge("sum", "update", bytes=64)
    >>> gradient_term_bytes(from_networkx(ops))
    128
    """
    tensors, readers = graph.edges.T
    producers = graph.tensor_producer[tensors]
    enter_update = (graph.phases[readers] == Phase.UPDATE) & (
        graph.phases[producers] == Phase.BACKWARD
    )
    waiting = np.unique(tensors[enter_update]).tolist()
    seen = set(waiting)
    terms: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        summands = _summands(graph, tensor)
        if not summands:
            terms.add(tensor)
        waiting += [summand for summand in summands if summand not in seen]
        seen.update(summands)
    return int(graph.tensor_bytes[list(terms)].sum())


def peak_bytes(graph: OpGraph) -> int:
    """Return the most bytes in use when all ops run on one device in the order of their indices.

    For a captured graph that is the order in which PyTorch ran them. A tensor is held from the
    start of its producer to the end of its last reader; parameters all the time.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=100)
    >>> chain.add_edge("b", "c", bytes=50)
    >>> peak_bytes(from_networkx(chain))
    150
    """
    return int(_held_bytes(graph).max())


def bytes_held_twice(graph: OpGraph) -> int:
    """Return how many of `peak_bytes` are there because in-place ops are counted as others are.

    An op that works in place, one whose name ends with an underscore, makes a new version of what
    it changes. While it runs both are held: as many bytes as it makes, if it reads as many.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_node("a", op_type="aten.mm", outputs={"values": 100})
    >>> ops.add_node("b", op_type="aten.relu_", outputs={"changed": 100})
    >>> ops.add_edge("a", "b", tensors=["values"])
    >>> graph = from_networkx(ops)
    >>> peak_bytes(graph), bytes_held_twice(graph)
    (200, 100)
    """
    works_in_place = np.array([op_type.endswith("_") for op_type in graph.op_types])
    sizes = _taken_bytes(graph)
    tensors, readers = graph.edges.T
    made = np.bincount(graph.tensor_producer, sizes, minlength=graph.num_ops)
    read = np.bincount(readers, sizes[tensors], minlength=graph.num_ops)
    twice = np.where(works_in_place, np.minimum(made, read), 0).astype(np.int64)
    held = _held_bytes(graph)
    return int(held.max() - (held - twice).max())


def _held_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[V], the bytes that are held while each op runs, one after the other."""
    last_reader = graph.tensor_producer.astype(np.int64)
    np.maximum.at(last_reader, graph.edges[:, 0], graph.edges[:, 1])
    sizes = _taken_bytes(graph)
    change = np.zeros(graph.num_ops + 1, np.int64)
    np.add.at(change, graph.tensor_producer, sizes)
    np.subtract.at(change, last_reader + 1, sizes)
    resident = int(graph.parameter_bytes.sum())
    held: NDArray[np.int64] = np.cumsum(change)[:-1] + graph.workspace_bytes + resident
    return held


def _taken_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[T], the bytes that each tensor takes on the device of its op."""
    return np.where(_in_parameters(graph), 0, graph.tensor_bytes)


def _in_parameters(graph: OpGraph) -> NDArray[np.bool_]:
    return graph.parameter_bytes[graph.tensor_producer] > 0


def _summands(graph: OpGraph, tensor: int) -> list[int]:
    """Return the tensors of equal size that are added up to a tensor of the backward phase."""
    producer = int(graph.tensor_producer[tensor])
    if graph.op_types[producer] not in ADDITIONS or graph.phases[producer] != Phase.BACKWARD:
        return []
    read: list[int] = graph.inputs_of_op[producer].tolist()
    return [other for other in read if graph.tensor_bytes[other] == graph.tensor_bytes[tensor]]
