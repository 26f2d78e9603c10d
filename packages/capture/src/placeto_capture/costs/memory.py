"""The memory that a training step keeps for its backward pass, without a simulator."""

import numpy as np

from placeto_graphs import OpGraph, Phase


def activation_bytes(graph: OpGraph) -> int:
    """Return the bytes of the tensors that forward ops make and backward ops read.

    A step keeps them from its forward pass for its backward pass. Inputs of the step count;
    parameters and buffers do not.

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
    kept = (
        read_by_backward
        & (producer_phase == Phase.FORWARD)
        & (graph.parameter_bytes[graph.tensor_producer] == 0)
    )
    return int(graph.tensor_bytes[kept].sum())
