"""A placement problem, and the state of a simulated step, as the flat arrays of the event loop."""

from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Cluster, PlacementProblem, compress_rows, sums_by_key
from placeto_simulator.errors import SimulationError

# What `Tables.readers` says beside the op that reads.
FIRST_OF_TENSOR = np.uint32(1 << 31)
LAST_OF_TENSOR = np.uint32(1 << 30)
LAST_OF_OP = np.uint32(1 << 29)
NO_LINK = -1
OP = np.uint32(LAST_OF_OP - 1)

NEVER = np.inf
LINE = 64  # bytes that processors cache together


class Tables(NamedTuple):
    """Tables that do not depend on the placement: V ops, T tensors, E reads, G groups, D devices.

    Tensors are renumbered so that those of one op follow each other. A read is a position in
    ``readers``, where the reads of one tensor follow each other in the order of the edges. Each
    read holds a store: the tensor on its producer's device (store E + tensor), or a copy of it on
    another device (the store of the first read there).

    Resources R are the D devices, and then W wires (`event_loop`). A device feeds the wires of what
    it sends; a wire feeds itself.

    Indices are unsigned: Numba then need not look for negative ones, which count from the end.
    """

    group_of: NDArray[np.uint32]  # [V]
    group_parameter_bytes: NDArray[np.int64]  # [G], kept for the whole step
    compute_time: NDArray[np.float64]  # [V, D] seconds
    num_awaited: NDArray[np.int32]  # [V], tensors that each op reads, and ops that it waits for
    # [V], the place of each op where backward comes first: update, backward, forward, by number
    # within each; and the op of each place.
    rank: NDArray[np.uint32]
    op_of_rank: NDArray[np.uint32]
    ready_ops: NDArray[np.uint32]  # that read none and wait for none
    first_waiter: NDArray[np.uint32]  # [V + 1], start of ...
    waiters: NDArray[np.uint32]  # ... the ops that wait for each op
    first_output_read: NDArray[np.uint32]  # [V + 1], start of the reads of each op's tensors
    # [E], the op of each read, and in the highest bits whether it is the first or the last read of
    # its tensor, and the last of the tensors of its producer.
    readers: NDArray[np.uint32]
    tensor_of_read: NDArray[np.uint32]  # [E]
    producer_of_read: NDArray[np.uint32]  # [E]
    first_input: NDArray[np.uint32]  # [V + 1], start of the inputs of each op
    input_of_read: NDArray[np.uint32]  # [E], number of the input that each read is
    producer_of_input: NDArray[np.uint32]  # [E]
    first_awaited: NDArray[np.uint32]  # [V + 1], start of ...
    awaited: NDArray[np.uint32]  # ... the ops that each op waits for
    tensor_bytes: NDArray[np.int64]  # [T], of a copy
    # [E + T], what each store releases: 0 for a tensor that lives in parameters or is held.
    store_bytes: NDArray[np.int64]
    start_bytes: NDArray[np.int64]  # [V], taken by an op's start: its workspace and its tensors
    end_bytes: NDArray[np.int64]  # [V], released by its end: of tensors those that nothing uses
    op_overhead: NDArray[np.float64]  # [D] seconds
    transfer_overhead: NDArray[np.float64]
    bandwidth: NDArray[np.float64]  # [D, D] bytes per second
    latency: NDArray[np.float64]  # [D, D] seconds
    link_of: NDArray[np.uint32]  # [D, D], the queue of what one device sends another: D + its link
    # [D, D], the resource on which that arrives. Wires are in the order of their links, those of
    # one link of falling latencies.
    wire_of: NDArray[np.uint32]
    first_fed_wire: NDArray[np.uint32]  # [R + 1], start of ...
    fed_wires: NDArray[np.uint32]  # ... the wires that each resource feeds
    num_resources: int


def tables_of(problem: PlacementProblem) -> Tables:
    """Return the tables of a problem."""
    graph, cluster = problem.graph, problem.cluster
    num_ops, num_tensors, num_groups = graph.num_ops, graph.num_tensors, problem.num_groups
    if num_ops > OP:
        raise SimulationError(f"graph: expected at most {OP} ops, got {num_ops}")
    group_of = problem.grouping.group_of

    tensors = graph.tensors_of_op.values  # the number in the graph of each tensor in the tables
    renumbered = np.empty(num_tensors, np.int32)
    renumbered[tensors] = np.arange(num_tensors, dtype=np.int32)
    tensor_of_edge = renumbered[graph.edges[:, 0]]
    reads = compress_rows(num_tensors, tensor_of_edge, graph.edges[:, 1])
    readers, first_reader = reads.values, reads.offsets
    read_tensor = np.repeat(np.arange(num_tensors), np.diff(first_reader))
    reads_of_op = compress_rows(num_ops, readers, np.arange(len(readers)))
    awaited = compress_rows(num_ops, *graph.waits.T)
    num_awaited = np.diff(reads_of_op.offsets) + np.diff(awaited.offsets)
    first_output_read = first_reader[graph.tensors_of_op.offsets]

    producers = graph.tensor_producer[tensors]
    tensor_bytes = graph.tensor_bytes[tensors]
    stored_bytes = tensor_bytes * ~graph.lives_in_weights[tensors]
    released_bytes = np.where(np.isin(tensors, graph.held_tensors), 0, stored_bytes)
    unread = np.diff(first_reader) == 0
    by_reader = reads_of_op.values  # the read that each input is
    op_of_rank = np.argsort(-graph.phases, kind="stable")
    wire_of = cluster.num_devices + _wire_of(cluster)
    num_resources = int(wire_of.max()) + 1
    fed = [np.unique(row[link != NO_LINK]) for row, link in zip(wire_of, cluster.link, strict=True)]
    fed += [np.array([wire]) for wire in range(cluster.num_devices, num_resources)]
    columns = {
        "group_of": group_of,
        "group_parameter_bytes": sums_by_key(group_of, graph.parameter_bytes, num_groups),
        "compute_time": problem.compute_time,
        "num_awaited": num_awaited,
        "rank": np.argsort(op_of_rank),
        "op_of_rank": op_of_rank,
        "ready_ops": np.flatnonzero(num_awaited == 0),
        "first_waiter": graph.waiters_of_op.offsets,
        "waiters": graph.waiters_of_op.values,
        "first_output_read": first_output_read,
        "readers": _with_ends_marked(readers, first_reader, first_output_read),
        "tensor_of_read": read_tensor,
        "producer_of_read": producers[read_tensor],
        "first_input": reads_of_op.offsets,
        "input_of_read": np.argsort(by_reader),
        "producer_of_input": producers[read_tensor[by_reader]],
        "first_awaited": awaited.offsets,
        "awaited": awaited.values,
        "tensor_bytes": tensor_bytes,
        "store_bytes": np.concatenate([tensor_bytes[read_tensor], released_bytes]),
        "start_bytes": graph.workspace_bytes + sums_by_key(producers, stored_bytes, num_ops),
        "end_bytes": graph.workspace_bytes
        + sums_by_key(producers[unread], released_bytes[unread], num_ops),
        "op_overhead": np.array([device.op_overhead for device in cluster.devices]),
        "transfer_overhead": np.array([device.transfer_overhead for device in cluster.devices]),
        "bandwidth": cluster.bandwidth,
        "latency": cluster.latency,
        "link_of": cluster.num_devices + cluster.link,
        "wire_of": wire_of,
        "first_fed_wire": np.cumsum([0, *map(len, fed)]),
        "fed_wires": np.concatenate(fed),
    }
    dtypes = _dtypes_of(Tables)
    arrays = {name: np.asarray(column, dtypes[name]) for name, column in columns.items()}
    return Tables(**arrays, num_resources=num_resources)


def _wire_of(cluster: Cluster) -> NDArray[np.int64]:
    """Return int64[D, D], the number of each pair's wire; it is that of no pair on the diagonal."""
    pairs = cluster.link != NO_LINK
    wires = np.zeros(pairs.shape, np.int64)
    kinds = np.stack([cluster.link[pairs], -cluster.latency[pairs]])
    wires[pairs] = np.unique(kinds, axis=1, return_inverse=True)[1].ravel()
    return wires


def _with_ends_marked(
    readers: NDArray[np.int32],
    first_reader: NDArray[np.int32],
    first_output_read: NDArray[np.int32],
) -> NDArray[np.uint32]:
    marked = readers.astype(np.uint32)
    read = np.diff(first_reader) > 0
    marked[first_reader[:-1][read]] |= FIRST_OF_TENSOR
    marked[first_reader[1:][read] - 1] |= LAST_OF_TENSOR
    marked[first_output_read[1:][np.diff(first_output_read) > 0] - 1] |= LAST_OF_OP
    return marked


class State(NamedTuple):
    r"""Queues, clocks and memory of a simulated step; its arrays are reused for every placement.

    Elements of queues are numbered: the V ops, then the E reads, then a sentinel for each resource.
    A transfer has the number of the first read of its tensor on its destination. A sentinel stands
    before the first element of its queue::

        current[r]                     last[r]
           |                              |
           v                              v
        element -> element -> ... -> element        successor[element] is the next one
           |       \__________________________/
           |                    |
        what r runs      what waits; nothing where current[r] == last[r]
        (if next_time[r] is not NEVER, and r is not waking up)

    The start and end of ops, the predecessor of elements, and all of memory, are not written if
    only runtimes are wanted.
    """

    device_of: NDArray[np.uint16]  # [V]
    missing: NDArray[np.int32]  # [V], inputs, and ops that it waits for, that each op still lacks
    sent_to: NDArray[np.uint32]  # [D], the tensor that each got last: its first read, and 1 more
    successor: NDArray[np.uint32]  # [V + E + R], the element behind each element in its queue
    current: NDArray[np.uint32]  # [R], the element that each resource took last ...
    last: NDArray[np.uint32]  # ... and the last one in its queue
    under_way: NDArray[np.uint32]  # [R], the last transfer on each wire when the round began
    sent: NDArray[np.uint32]  # [D + L], the transfer that each link got last
    # [N], the event ahead of each resource, seconds; `NEVER` where it is at rest, and from R on: N
    # is the next power of two.
    next_time: NDArray[np.float64]
    free_at: NDArray[np.float64]  # [D + L], when each device or link may take what is next; seconds
    is_waking: NDArray[np.bool_]  # [R], the event ahead is the end of an overhead, no completion
    # [2 N], a knockout among the resources: N + r is resource r, the nodes 2 n and 2 n + 1 play for
    # node n, and the resource in node 1 has the first event of all, of several at one time the
    # first resource.
    winner: NDArray[np.uint32]
    completed: NDArray[np.uint32]  # [R], the resources that complete now ...
    fed_device: NDArray[np.uint32]  # ... and the device where each hands over its tensors
    heap: NDArray[np.uint32]  # [V], ranks of the ops that wait, where backward comes first
    first_ready: NDArray[np.uint32]  # [D], start of the heap of each device ...
    num_ready: NDArray[np.uint32]  # ... and the number of ops on it
    start: NDArray[np.float64]  # [V + E + R] seconds, of each op and transfer
    end: NDArray[np.float64]  # [V + E] seconds
    predecessor: NDArray[np.uint32]  # [V + E], what its device or link took before it
    path: NDArray[np.uint32]  # [V + E], the critical path backwards ...
    reason: NDArray[np.uint8]  # ... and what each element waited for (`batches.REASONS`)
    store_of_input: NDArray[np.uint32]  # [E], the store that each input holds on to
    uses_left: NDArray[np.int32]  # [E + T], reads and outgoing transfers that a store outlives
    store_on: NDArray[np.uint32]  # [D], the store of the tensor that is handed over
    tracks_memory: NDArray[np.bool_]  # [1], whether more than the runtime is wanted
    # Number of devices and wires with elements that take memory from a time on that is not over
    # yet, and the first of these elements of each.
    num_held: NDArray[np.int64]  # [1]
    first_held: NDArray[np.uint32]  # [V + R + 1]
    held_bytes: NDArray[np.int64]  # [D], now
    peak: NDArray[np.int64]  # [D], the most bytes so far


def new_state(tables: Tables) -> State:
    """Return a state for simulations with these tables."""
    ops, reads = len(tables.num_awaited), len(tables.readers)
    devices, resources = len(tables.op_overhead), tables.num_resources
    queues = int(tables.link_of.max()) + 1
    leaves = 1 << (resources - 1).bit_length()
    lengths = {
        "device_of": ops,
        "missing": ops,
        "sent_to": devices,
        "successor": ops + reads + resources,
        "current": resources,
        "last": resources,
        "under_way": resources,
        "sent": queues,
        "next_time": leaves,
        "free_at": queues,
        "is_waking": resources,
        "winner": 2 * leaves,
        "completed": resources,
        "fed_device": resources,
        "heap": ops,
        "first_ready": devices,
        "num_ready": devices,
        "start": ops + reads + resources,
        "end": ops + reads,
        "predecessor": ops + reads,
        "path": ops + reads,
        "reason": ops + reads,
        "store_of_input": reads,
        "uses_left": len(tables.store_bytes),
        "store_on": devices,
        "tracks_memory": 1,
        "num_held": 1,
        "first_held": ops + resources + 1,
        "held_bytes": devices,
        "peak": devices,
    }
    dtypes = _dtypes_of(State)
    return State(**{name: _in_own_lines(length, dtypes[name]) for name, length in lengths.items()})


def _dtypes_of(arrays: type[NamedTuple]) -> dict[str, type[np.generic]]:
    """Return the dtype of each array in a named tuple, as its annotation says."""
    of_arrays = {name: get_args(hint) for name, hint in get_type_hints(arrays).items()}
    return {name: get_args(hints[1])[0] for name, hints in of_arrays.items() if hints}


def _in_own_lines(length: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return zeros in lines of the cache of their own.

    Two threads that write to one line wait for each other. With the arrays of two states side by
    side, two threads were barely faster than one.
    """
    size = length * np.dtype(dtype).itemsize
    memory = np.zeros(size + 3 * LINE, np.uint8)
    start = 2 * LINE - memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype)
