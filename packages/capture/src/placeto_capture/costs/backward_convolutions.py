"""The FLOPs of backward convolutions, which torch overstates where they have groups."""

import numpy as np
from numpy.typing import NDArray

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.functions import split_type
from placeto_graphs import OpGraph

BACKWARD = "aten.convolution_backward"
GRADIENTS = 2  # of the input and of the weights, each as much work as the convolution itself


def performed_flops(graph: OpGraph) -> NDArray[np.float64]:
    """Return float64[V], the FLOPs that each op performs.

    They are those of the graph, but a backward convolution has at most twice as many as the
    largest convolution that it shares its colocation id with: a step in micro-batches has several
    of equal size. The formula of ``torch.utils.flop_counter`` for the gradient of the weights
    leaves groups out of account, and so counts those of a depthwise convolution as many times as
    it has channels.

    Parameters
    ----------
    graph
        The V ops.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_node("depthwise", op_type="aten.convolution", flops=1e6, colocation=0)
    >>> ops.add_node("its gradient", op_type=BACKWARD, flops=65e6, colocation=0)
    >>> performed_flops(from_networkx(ops)).tolist()
    [1000000.0, 2000000.0]
    """
    backward = np.array([split_type(op_type)[0] == BACKWARD for op_type in graph.op_types])
    colocated = graph.colocation >= 0
    forward = colocated & ~backward & _convolutions(graph)
    flops_of_id = np.zeros(int(graph.colocation.max()) + 1)
    np.maximum.at(flops_of_id, graph.colocation[forward], graph.flops[forward])
    limited = colocated & backward
    limited[limited] &= flops_of_id[graph.colocation[limited]] > 0
    flops = graph.flops.copy()
    flops[limited] = np.minimum(flops[limited], GRADIENTS * flops_of_id[graph.colocation[limited]])
    return flops


def _convolutions(graph: OpGraph) -> NDArray[np.bool_]:
    return np.array([class_of_type(op_type) is OpClass.CONVOLUTION for op_type in graph.op_types])
