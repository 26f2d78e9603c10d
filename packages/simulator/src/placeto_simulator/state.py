r"""The state of a simulated step: arrays that are reused for every placement.

Resources are numbered: the D devices, then the L links. Elements of queues are numbered: the V ops,
then the E reads, then a sentinel for each resource. A transfer has the number of the first read of
its tensor on its destination. A sentinel stands before the first element of its queue::

    taken[r]                       last[r]
       |                              |
       v                              v
    element -> element -> ... -> element        after[element] is the next one
       |       \__________________________/
       |                    |
    what r runs      what waits; nothing where taken[r] == last[r]
    (if next_time[r] is not NEVER, and r is not waking up)
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_simulator.tables import Tables

NEVER = np.inf
LINE = 64  # bytes that processors cache together


class State(NamedTuple):
    """Queues and clocks of a simulated step: V ops, E reads, D devices, L links, R resources.

    Attributes
    ----------
    device_of : uint16[V]
        The device of each op.
    missing : int32[V]
        Number of inputs, and of ops that it waits for, that each op still lacks.
    sent_to : uint32[D]
        The tensor that each device got last; a tensor is named by its first read, and 1 more.
    after : uint32[V + E + R + 1]
        The element behind each element in its queue.
    taken, last : uint32[R + 1]
        The element that each resource took last, and the last one in its queue; and the same of one
        that never gets any.
    next_time : float64[N]
        The event ahead of each resource, seconds; `NEVER` where it is at rest, and from R on: N is
        the next power of two.
    free_at : float64[R]
        End of the overhead of the element that each resource took last, seconds.
    is_waking : bool[R]
        True if the event ahead is the end of an overhead, and no completion.
    winner : uint32[2 N]
        A knockout among the resources: N + r is resource r, the nodes 2 n and 2 n + 1 play for
        node n, and the resource in node 1 has the first event of all, of several at one time the
        first resource.
    completed, fed_device : uint32[R]
        The resources that complete now, and the device where each hands over its tensors.
    heap : uint32[V]
        The ranks of the ops that wait for each device, where backward comes first.
    first_ready, num_ready : uint32[D]
        Start of the heap of each device, and the number of ops on it.
    op_start, op_end : float64[V]
        Start and end of each op, seconds; not written if only runtimes are wanted.
    op_before : uint32[V]
        The element that the device of each op took before it; not written there either.
    """

    device_of: NDArray[np.uint16]
    missing: NDArray[np.int32]
    sent_to: NDArray[np.uint32]
    after: NDArray[np.uint32]
    taken: NDArray[np.uint32]
    last: NDArray[np.uint32]
    next_time: NDArray[np.float64]
    free_at: NDArray[np.float64]
    is_waking: NDArray[np.bool_]
    winner: NDArray[np.uint32]
    completed: NDArray[np.uint32]
    fed_device: NDArray[np.uint32]
    heap: NDArray[np.uint32]
    first_ready: NDArray[np.uint32]
    num_ready: NDArray[np.uint32]
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]
    op_before: NDArray[np.uint32]


class Memory(NamedTuple):
    """Bytes that are held besides parameters: T tensors, E reads, D devices.

    Attributes
    ----------
    store_of_input : uint32[E]
        The store that each input holds on to (see `Tables`).
    uses_left : int32[E + T]
        Number of reads and outgoing transfers that each store still has to outlive.
    store_on : uint32[D]
        The store on each device of the tensor that is handed over.
    num_holds : int64[1]
        Number of what follows.
    hold_start, hold_device, hold_bytes : float64[V + E], uint32[V + E], int64[V + E]
        Times (seconds) from which started elements hold bytes, their devices and these bytes, until
        the clock has passed that time.
    held, peak : int64[D]
        Bytes on each device now, and at most so far.
    """

    store_of_input: NDArray[np.uint32]
    uses_left: NDArray[np.int32]
    store_on: NDArray[np.uint32]
    num_holds: NDArray[np.int64]
    hold_start: NDArray[np.float64]
    hold_device: NDArray[np.uint32]
    hold_bytes: NDArray[np.int64]
    held: NDArray[np.int64]
    peak: NDArray[np.int64]


class Log(NamedTuple):
    """Log of one step; all arrays are empty if no log is wanted.

    Attributes
    ----------
    num_events, num_memory_changes, round : int64[1]
        Numbers of what has been written, and of the times at which something completed so far.
    event_time, event_round, event_is_wakeup, event_resource, event_element : [2 (V + E)]
        Events: when (seconds), in which round, whether a resource at rest started something
        or what it ran was done, and what that was.
    memory_time, memory_device, memory_bytes : [4 (V + E)]
        Times (seconds) from which a device holds so many bytes more, or fewer.
    transfer_start, transfer_end : float64[E]
        Start and end of each transfer, seconds.
    """

    num_events: NDArray[np.int64]
    num_memory_changes: NDArray[np.int64]
    round: NDArray[np.int64]
    event_time: NDArray[np.float64]
    event_round: NDArray[np.int64]
    event_is_wakeup: NDArray[np.bool_]
    event_resource: NDArray[np.uint32]
    event_element: NDArray[np.uint32]
    memory_time: NDArray[np.float64]
    memory_device: NDArray[np.uint32]
    memory_bytes: NDArray[np.int64]
    transfer_start: NDArray[np.float64]
    transfer_end: NDArray[np.float64]


def new_state(tables: Tables) -> State:
    """Return a state for simulations with these tables."""
    ops, reads = len(tables.num_awaited), len(tables.readers)
    devices, resources = len(tables.op_overhead), tables.num_resources
    leaves = 1 << (resources - 1).bit_length()
    return State(
        device_of=_alone(ops, np.uint16),
        missing=_alone(ops, np.int32),
        sent_to=_alone(devices, np.uint32),
        after=_alone(ops + reads + resources + 1, np.uint32),
        taken=_alone(resources + 1, np.uint32),
        last=_alone(resources + 1, np.uint32),
        next_time=_alone(leaves),
        free_at=_alone(resources),
        is_waking=_alone(resources, np.bool_),
        winner=_alone(2 * leaves, np.uint32),
        completed=_alone(resources, np.uint32),
        fed_device=_alone(resources, np.uint32),
        heap=_alone(ops, np.uint32),
        first_ready=_alone(devices, np.uint32),
        num_ready=_alone(devices, np.uint32),
        op_start=_alone(ops),
        op_end=_alone(ops),
        op_before=_alone(ops, np.uint32),
    )


def new_memory(tables: Tables) -> Memory:
    """Return an account of memory for simulations with these tables."""
    ops, reads, devices = len(tables.num_awaited), len(tables.readers), len(tables.op_overhead)
    return Memory(
        store_of_input=_alone(reads, np.uint32),
        uses_left=_alone(len(tables.store_bytes), np.int32),
        store_on=_alone(devices, np.uint32),
        num_holds=_alone(1, np.int64),
        hold_start=_alone(ops + reads),
        hold_device=_alone(ops + reads, np.uint32),
        hold_bytes=_alone(ops + reads, np.int64),
        held=_alone(devices, np.int64),
        peak=_alone(devices, np.int64),
    )


def new_log(num_ops: int, num_reads: int) -> Log:
    """Return a log for steps of so many ops and reads."""
    events = 2 * (num_ops + num_reads)
    return Log(
        num_events=np.zeros(1, np.int64),
        num_memory_changes=np.zeros(1, np.int64),
        round=np.zeros(1, np.int64),
        event_time=np.zeros(events),
        event_round=np.zeros(events, np.int64),
        event_is_wakeup=np.zeros(events, np.bool_),
        event_resource=np.zeros(events, np.uint32),
        event_element=np.zeros(events, np.uint32),
        memory_time=np.zeros(2 * events),
        memory_device=np.zeros(2 * events, np.uint32),
        memory_bytes=np.zeros(2 * events, np.int64),
        transfer_start=np.zeros(num_reads),
        transfer_end=np.zeros(num_reads),
    )


def _alone(length: int, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
    """Return zeros in lines of the cache of their own.

    Two threads that write to one line wait for each other. With the arrays of two states side by
    side, two threads were barely faster than one.
    """
    size = length * np.dtype(dtype).itemsize
    memory = np.zeros(size + 3 * LINE, np.uint8)
    start = 2 * LINE - memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype)
