"""What changes while a step is simulated: arrays that are used again for every placement."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_simulator.tables import Tables


class State(NamedTuple):
    """Queues and clocks of a simulated step: V ops, E reads, D devices.

    The D devices come first among the 2 D resources, then their buses.

    Attributes
    ----------
    device_of : uint8[V]
        The device of each op.
    missing : int32[V]
        How many inputs each op still waits for.
    queue : uint32[V + E + 2 D]
        A region for the queue of each resource, long enough for all that will ever be in it, and
        an element more: the ops of each device, and the transfers of each bus. A transfer is named
        by the first read of its tensor on its destination.
    region, head, tail : uint32[2 D]
        Where the region of each resource starts, and its queue from first to behind the last.
    running, target : uint32[2 D]
        The op or transfer that completes at the event of each resource, and the device where it
        hands over its tensors.
    next_time, free_at : float64[2 D]
        The event ahead of each resource (`NEVER` where it is at rest), and when the overhead of
        the last thing that it picked is over; seconds.
    op_start, transfer_start : float64[V], float64[E]
        When each op and each transfer started; seconds.
    clock : float64[1]
        The time of the last event; seconds.
    num_done : int64[1]
        How many ops are done.
    """

    device_of: NDArray[np.uint8]
    missing: NDArray[np.int32]
    queue: NDArray[np.uint32]
    region: NDArray[np.uint32]
    head: NDArray[np.uint32]
    tail: NDArray[np.uint32]
    running: NDArray[np.uint32]
    target: NDArray[np.uint32]
    next_time: NDArray[np.float64]
    free_at: NDArray[np.float64]
    op_start: NDArray[np.float64]
    transfer_start: NDArray[np.float64]
    clock: NDArray[np.float64]
    num_done: NDArray[np.int64]


class Memory(NamedTuple):
    """Who holds how many bytes besides parameters: T tensors, E reads, D devices.

    Attributes
    ----------
    store_of_input : uint32[E]
        The store that each input holds on to (see `Tables`).
    uses_left : int32[E + T]
        How many reads and outgoing transfers each store still has to outlive.
    store_on : uint32[D]
        The store on each device of the tensor that is handed over.
    hold_time, hold_device, hold_bytes : float64[2 D], uint32[2 D], int64[2 D]
        From when on the last pick of each resource takes how many bytes where; `NEVER` once they
        are counted.
    held, peak : int64[D]
        Bytes on each device now, and at most so far.
    """

    store_of_input: NDArray[np.uint32]
    uses_left: NDArray[np.int32]
    store_on: NDArray[np.uint32]
    hold_time: NDArray[np.float64]
    hold_device: NDArray[np.uint32]
    hold_bytes: NDArray[np.int64]
    held: NDArray[np.int64]
    peak: NDArray[np.int64]


def new_state(tables: Tables) -> State:
    """Return a state for simulations with these tables."""
    ops, reads, devices = len(tables.num_inputs), len(tables.readers), len(tables.op_overhead)
    return State(
        device_of=np.zeros(ops, np.uint8),
        missing=np.zeros(ops, np.int32),
        queue=np.zeros(ops + reads + 2 * devices, np.uint32),
        region=np.zeros(2 * devices, np.uint32),
        head=np.zeros(2 * devices, np.uint32),
        tail=np.zeros(2 * devices, np.uint32),
        running=np.zeros(2 * devices, np.uint32),
        target=np.tile(np.arange(devices, dtype=np.uint32), 2),
        next_time=np.zeros(2 * devices),
        free_at=np.zeros(2 * devices),
        op_start=np.zeros(ops),
        transfer_start=np.zeros(reads),
        clock=np.zeros(1),
        num_done=np.zeros(1, np.int64),
    )


def new_memory(tables: Tables) -> Memory:
    """Return an account of memory for simulations with these tables."""
    reads, devices = len(tables.readers), len(tables.op_overhead)
    return Memory(
        store_of_input=np.zeros(reads, np.uint32),
        uses_left=np.zeros(len(tables.store_bytes), np.int32),
        store_on=np.zeros(devices, np.uint32),
        hold_time=np.zeros(2 * devices),
        hold_device=np.zeros(2 * devices, np.uint32),
        hold_bytes=np.zeros(2 * devices, np.int64),
        held=np.zeros(devices, np.int64),
        peak=np.zeros(devices, np.int64),
    )
