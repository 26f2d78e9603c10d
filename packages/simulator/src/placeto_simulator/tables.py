"""A placement problem as the flat arrays that the event loop walks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem


class Tables(NamedTuple):
    """What does not depend on the placement: V ops, T tensors, E reads, D devices.

    Tensors are renumbered so that those of one op follow each other. A read is a position in
    ``readers``, where the ops that read one tensor follow each other in the order of the edges.

    Attributes
    ----------
    group_of : int32[V]
        The group of each op.
    compute_time : float64[V, D]
        Seconds.
    num_inputs : int32[V]
        How many tensors each op reads.
    ready_ops : int32[]
        The ops that read none.
    first_output_read : int32[V + 1]
        Where the reads of each op's tensors start.
    first_reader : int32[T + 1]
        Where the reads of each tensor start.
    readers, read_tensor : int32[E]
        The op and the tensor of each read.
    first_input : int32[V + 1]
        Where the entries of each op in the next two fields start.
    input_read, input_tensor : int32[E]
        The reads of each op, and their tensors.
    tensor_bytes : int64[T]
        What a copy of each tensor takes.
    stored_bytes : int64[T]
        What each tensor takes on its producer's device: nothing if it lives in parameters.
    output_bytes, unread_bytes : int64[V]
        The stored bytes of all tensors of each op, and of those that nothing reads.
    parameter_bytes, workspace_bytes : int64[V]
        As in `OpGraph`.
    op_overhead, transfer_overhead : float64[D]
        Seconds.
    bandwidth, latency : float64[D, D]
        Bytes per second, seconds.
    """

    group_of: NDArray[np.int32]
    compute_time: NDArray[np.float64]
    num_inputs: NDArray[np.int32]
    ready_ops: NDArray[np.int32]
    first_output_read: NDArray[np.int32]
    first_reader: NDArray[np.int32]
    readers: NDArray[np.int32]
    read_tensor: NDArray[np.int32]
    first_input: NDArray[np.int32]
    input_read: NDArray[np.int32]
    input_tensor: NDArray[np.int32]
    tensor_bytes: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]
    output_bytes: NDArray[np.int64]
    unread_bytes: NDArray[np.int64]
    parameter_bytes: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    op_overhead: NDArray[np.float64]
    transfer_overhead: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]


def tables_of(problem: PlacementProblem) -> Tables:
    """Return the tables of a problem."""
    graph, cluster = problem.graph, problem.cluster
    tensors = graph.tensors_of_op.values  # the number in the graph of each tensor in the tables
    renumbered = np.empty(graph.num_tensors, np.int32)
    renumbered[tensors] = np.arange(graph.num_tensors, dtype=np.int32)
    tensor_of_edge = renumbered[graph.edges[:, 0]]
    by_tensor = np.argsort(tensor_of_edge, kind="stable")
    readers = graph.edges[by_tensor, 1]
    by_reader = np.argsort(readers, kind="stable")
    first_reader = _starts(np.bincount(tensor_of_edge, minlength=graph.num_tensors))
    num_inputs = np.bincount(readers, minlength=graph.num_ops)
    producers = graph.tensor_producer[tensors]
    tensor_bytes = graph.tensor_bytes[tensors]
    stored_bytes = np.where(graph.parameter_bytes[producers] > 0, 0, tensor_bytes)
    output_bytes = np.zeros(graph.num_ops, np.int64)
    np.add.at(output_bytes, producers, stored_bytes)
    unread_bytes = np.zeros(graph.num_ops, np.int64)
    unread = np.diff(first_reader) == 0
    np.add.at(unread_bytes, producers[unread], stored_bytes[unread])
    return Tables(
        group_of=problem.grouping.group_of,
        compute_time=problem.compute_time,
        num_inputs=num_inputs.astype(np.int32),
        ready_ops=np.flatnonzero(num_inputs == 0).astype(np.int32),
        first_output_read=first_reader[graph.tensors_of_op.offsets],
        first_reader=first_reader,
        readers=readers,
        read_tensor=tensor_of_edge[by_tensor],
        first_input=_starts(num_inputs),
        input_read=by_reader.astype(np.int32),
        input_tensor=tensor_of_edge[by_tensor][by_reader],
        tensor_bytes=tensor_bytes,
        stored_bytes=stored_bytes,
        output_bytes=output_bytes,
        unread_bytes=unread_bytes,
        parameter_bytes=graph.parameter_bytes,
        workspace_bytes=graph.workspace_bytes,
        op_overhead=np.array([device.op_overhead for device in cluster.devices]),
        transfer_overhead=np.array([device.transfer_overhead for device in cluster.devices]),
        bandwidth=cluster.bandwidth,
        latency=cluster.latency,
    )


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts
