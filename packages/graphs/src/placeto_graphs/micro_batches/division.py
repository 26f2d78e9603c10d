"""From a step to one of its micro-batches, in linear parts."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.micro_batches.roles import checked_count, gradients_and_terms, ops_of_batch
from placeto_graphs.schema.op_graph import OpGraph


def one_micro_batch(graph: OpGraph, num_micro_batches: int) -> OpGraph:
    """Return the graph of a step with one of m equal parts of the batch, in linear parts.

    Ops that depend on the batch (as in `micro_batched`) keep one part of m of their FLOPs, bytes
    accessed, workspace, measured times and tensors. Gradients of weights and the terms that they
    are sums of keep their sizes. Bytes of tensors and workspaces are rounded up, so that none
    vanishes. A smaller batch uses a device worse in truth, and an op that adds gradients takes as
    long for it: a step that was captured with the smaller batch knows that, and needs no division.

    Parameters
    ----------
    graph
        The graph of the undivided step.
    num_micro_batches
        The number m of parts, >= 1.

    Returns
    -------
    OpGraph
        The same ops, tensors and edges.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> step = nx.DiGraph()
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("matmul", flops=1000)
    >>> step.add_edge("weights", "matmul", bytes=64)
    >>> step.add_edge("images", "matmul", bytes=10)
    >>> part = one_micro_batch(from_networkx(step), 4)
    >>> part.tensor_bytes.tolist(), part.flops.tolist()
    ([64, 3], [0.0, 250.0, 0.0])
    """
    count = checked_count(num_micro_batches)
    of_batch = ops_of_batch(graph)
    parts = np.where(of_batch, count, 1)
    whole = gradients_and_terms(graph, of_batch)
    parts_of_tensor = np.where(whole, 1, parts[graph.tensor_producer])
    return replace(
        graph,
        flops=graph.flops / parts,
        bytes_accessed=graph.bytes_accessed / parts,
        workspace_bytes=_rounded_up(graph.workspace_bytes, parts),
        tensor_bytes=_rounded_up(graph.tensor_bytes, parts_of_tensor),
        measured_time={kind: seconds / parts for kind, seconds in graph.measured_time.items()},
    )


def _rounded_up(sizes: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-sizes // parts)
