"""The event loop: what happens on D devices and their D buses, in the order in which it happens.

A device or bus has at most one event ahead of it, so events wait in one slot per resource: the
devices first, then their buses. A resource whose slot is `NEVER` is at rest and takes the first
element of its queue, which starts when the overhead of the one before is over. Queues are linked
lists through the ops and transfers.

At one timestamp everything that completes is delivered, then everything at rest picks; what a pick
completes at once is the next round of the same timestamp.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_simulator.compilation import compiled
from placeto_simulator.tables import Tables

NONE = -1
NEVER = np.inf


class State(NamedTuple):
    """What changes while a step is simulated; one per thread, used again for every placement.

    Attributes
    ----------
    device_of : int32[V]
        The device of each op.
    missing : int32[V]
        How many inputs each op still waits for.
    next_op : int32[V]
        The op behind each op in the queue of its device.
    first_op, last_op : int32[D]
        Both ends of the queue of each device.
    running_op : int32[D]
        The op that completes at the event of each device.
    transfer_tensor, transfer_destination : int32[E]
        What each transfer carries, and to which device; in the order in which they were queued.
    next_transfer, first_transfer, last_transfer, running_transfer : int32[E], int32[D] each
        The queues of the buses, as those of the devices.
    num_transfers : int32[1]
        How many transfers were queued.
    num_started, op_turn : int32[1], int32[V]
        How many ops started, and how many before each op.
    op_start, transfer_start : float64[V], float64[E]
        When each op and each transfer started; seconds.
    sent_to : int32[D]
        The last tensor of which a copy was queued for each device.
    next_time, free_at : float64[2 D]
        The event ahead of each resource, and when its last overhead is over; seconds.
    uses_left : int32[T]
        Local reads and outgoing transfers that each tensor still has to outlive.
    copy : int32[E]
        The transfer that brings the tensor of each read; none where it is local.
    copy_of : int32[D]
        The last transfer that was queued for each device.
    copy_uses_left : int32[E]
        Reads that the copy of each transfer still has to outlive.
    looked_at, num_looked_at : int32[4 D], int32[1]
        The resources that may pick after this round, some of them twice.
    hold_time, hold_device, hold_bytes : float64[2 D], int32[2 D], int64[2 D]
        From when on the last pick of each resource takes how many bytes where; `NEVER` once they
        are counted.
    held, peak : int64[D]
        Bytes on each device now, and at most so far.
    """

    device_of: NDArray[np.int32]
    missing: NDArray[np.int32]
    next_op: NDArray[np.int32]
    first_op: NDArray[np.int32]
    last_op: NDArray[np.int32]
    running_op: NDArray[np.int32]
    transfer_tensor: NDArray[np.int32]
    transfer_destination: NDArray[np.int32]
    next_transfer: NDArray[np.int32]
    first_transfer: NDArray[np.int32]
    last_transfer: NDArray[np.int32]
    running_transfer: NDArray[np.int32]
    num_transfers: NDArray[np.int32]
    num_started: NDArray[np.int32]
    op_turn: NDArray[np.int32]
    op_start: NDArray[np.float64]
    transfer_start: NDArray[np.float64]
    sent_to: NDArray[np.int32]
    next_time: NDArray[np.float64]
    free_at: NDArray[np.float64]
    uses_left: NDArray[np.int32]
    copy: NDArray[np.int32]
    copy_of: NDArray[np.int32]
    copy_uses_left: NDArray[np.int32]
    looked_at: NDArray[np.int32]
    num_looked_at: NDArray[np.int32]
    hold_time: NDArray[np.float64]
    hold_device: NDArray[np.int32]
    hold_bytes: NDArray[np.int64]
    held: NDArray[np.int64]
    peak: NDArray[np.int64]


def new_state(tables: Tables) -> State:
    """Return a state for simulations with these tables."""
    ops, devices = len(tables.num_inputs), len(tables.op_overhead)
    tensors, reads = len(tables.tensor_bytes), len(tables.readers)

    def ids(length: int) -> NDArray[np.int32]:
        return np.zeros(length, np.int32)

    def seconds(length: int) -> NDArray[np.float64]:
        return np.zeros(length, np.float64)

    def sizes(length: int) -> NDArray[np.int64]:
        return np.zeros(length, np.int64)

    return State(
        device_of=ids(ops),
        missing=ids(ops),
        next_op=ids(ops),
        first_op=ids(devices),
        last_op=ids(devices),
        running_op=ids(devices),
        transfer_tensor=ids(reads),
        transfer_destination=ids(reads),
        next_transfer=ids(reads),
        first_transfer=ids(devices),
        last_transfer=ids(devices),
        running_transfer=ids(devices),
        num_transfers=ids(1),
        num_started=ids(1),
        op_turn=ids(ops),
        op_start=seconds(ops),
        transfer_start=seconds(reads),
        sent_to=ids(devices),
        next_time=seconds(2 * devices),
        free_at=seconds(2 * devices),
        uses_left=ids(tensors),
        copy=ids(reads),
        copy_of=ids(devices),
        copy_uses_left=ids(reads),
        looked_at=ids(4 * devices),
        num_looked_at=ids(1),
        hold_time=seconds(2 * devices),
        hold_device=ids(2 * devices),
        hold_bytes=sizes(2 * devices),
        held=sizes(devices),
        peak=sizes(devices),
    )


@compiled
def evaluate(
    tables: Tables,
    state: State,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    peak_memory: NDArray[np.int64],
) -> None:
    """Simulate placements int32[B, G] one by one into runtime[B] and peak_memory[B, D]."""
    for row in range(len(placements)):
        for op in range(len(tables.group_of)):
            state.device_of[op] = placements[row, tables.group_of[op]]
        runtime[row] = simulate(tables, state)
        for device in range(len(state.peak)):
            peak_memory[row, device] = state.peak[device]


@compiled
def simulate(tables: Tables, state: State) -> float:  # noqa: PLR0915 (one statement per array)
    """Simulate one step with ``state.device_of`` and return its runtime in seconds.

    Each array has a local name, because Numba counts a reference at every access to a field; and
    what happens at an event is a function in here, because it is then compiled into the loop.
    """
    compute_time = tables.compute_time
    first_output_read = tables.first_output_read
    read_tensor = tables.read_tensor
    unread_bytes = tables.unread_bytes
    first_reader = tables.first_reader
    readers = tables.readers
    first_input = tables.first_input
    input_read = tables.input_read
    input_tensor = tables.input_tensor
    tensor_bytes = tables.tensor_bytes
    stored_bytes = tables.stored_bytes
    output_bytes = tables.output_bytes
    workspace_bytes = tables.workspace_bytes
    op_overhead = tables.op_overhead
    transfer_overhead = tables.transfer_overhead
    bandwidth = tables.bandwidth
    latency = tables.latency
    device_of = state.device_of
    missing = state.missing
    next_op = state.next_op
    first_op = state.first_op
    last_op = state.last_op
    running_op = state.running_op
    transfer_tensor = state.transfer_tensor
    transfer_destination = state.transfer_destination
    next_transfer = state.next_transfer
    first_transfer = state.first_transfer
    last_transfer = state.last_transfer
    running_transfer = state.running_transfer
    num_transfers = state.num_transfers
    num_started = state.num_started
    op_turn = state.op_turn
    op_start = state.op_start
    transfer_start = state.transfer_start
    sent_to = state.sent_to
    next_time = state.next_time
    free_at = state.free_at
    uses_left = state.uses_left
    copy = state.copy
    copy_of = state.copy_of
    copy_uses_left = state.copy_uses_left
    looked_at = state.looked_at
    num_looked_at = state.num_looked_at
    hold_time = state.hold_time
    hold_device = state.hold_device
    hold_bytes = state.hold_bytes
    held = state.held
    peak = state.peak
    num_ops = len(tables.num_inputs)
    num_devices = len(op_overhead)

    def may_pick(resource: int) -> None:
        """Look at a resource when this round's deliveries are over."""
        looked_at[num_looked_at[0]] = resource
        num_looked_at[0] += 1

    def queue_op(op: int) -> None:
        """Put a runnable op at the end of the queue of its device."""
        device = device_of[op]
        next_op[op] = NONE
        if first_op[device] == NONE:
            first_op[device] = op
            may_pick(device)
        else:
            next_op[last_op[device]] = op
        last_op[device] = op

    def queue_transfer(tensor: int, source: int, destination: int) -> None:
        """Put a copy of a tensor at the end of the queue of its producer's bus."""
        transfer = num_transfers[0]
        num_transfers[0] += 1
        transfer_tensor[transfer] = tensor
        transfer_destination[transfer] = destination
        next_transfer[transfer] = NONE
        if first_transfer[source] == NONE:
            first_transfer[source] = transfer
            may_pick(num_devices + source)
        else:
            next_transfer[last_transfer[source]] = transfer
        last_transfer[source] = transfer
        sent_to[destination] = tensor
        copy_of[destination] = transfer
        copy_uses_left[transfer] = 0

    def input_arrived(op: int) -> None:
        """Give an op one of its inputs; the last one makes it runnable."""
        missing[op] -= 1
        if missing[op] == 0:
            queue_op(op)

    def hold_from(start: float, resource: int, device: int, size: int) -> None:
        """Note that what a resource starts takes memory on a device from then on."""
        if hold_time[resource] != NEVER:
            held[hold_device[resource]] += hold_bytes[resource]
        hold_time[resource] = start
        hold_device[resource] = device
        hold_bytes[resource] = size

    def pick_op(now: float, device: int) -> None:
        """Start the first op in the queue of a device at rest."""
        op = first_op[device]
        first_op[device] = next_op[op]
        running_op[device] = op
        start = max(now, free_at[device])
        op_start[op] = start
        op_turn[op] = num_started[0]
        num_started[0] += 1
        next_time[device] = start + compute_time[op, device]
        hold_from(start, device, device, workspace_bytes[op] + output_bytes[op])

    def pick_transfer(now: float, source: int) -> None:
        """Start the first transfer in the queue of a bus at rest."""
        bus = num_devices + source
        transfer = first_transfer[source]
        first_transfer[source] = next_transfer[transfer]
        running_transfer[source] = transfer
        destination = transfer_destination[transfer]
        size = tensor_bytes[transfer_tensor[transfer]]
        duration = latency[source, destination] + size / bandwidth[source, destination]
        start = max(now, free_at[bus])
        transfer_start[transfer] = start
        next_time[bus] = start + duration
        hold_from(start, bus, destination, size)

    def release_local_use(tensor: int, device: int) -> None:
        """End a local read or an outgoing transfer of a tensor; the last one frees its memory."""
        uses_left[tensor] -= 1
        if uses_left[tensor] == 0:
            held[device] -= stored_bytes[tensor]

    def release_inputs(op: int, device: int) -> None:
        """End the reads of an op that is done; the last read of a copy frees its memory."""
        for position in range(first_input[op], first_input[op + 1]):
            tensor = input_tensor[position]
            transfer = copy[input_read[position]]
            if transfer == NONE:
                release_local_use(tensor, device)
            else:
                copy_uses_left[transfer] -= 1
                if copy_uses_left[transfer] == 0:
                    held[device] -= tensor_bytes[tensor]

    def op_done(now: float, device: int) -> None:
        """Hand the outputs of an op to its readers."""
        op = running_op[device]
        overhead = op_overhead[device] if compute_time[op, device] > 0 else 0.0
        free_at[device] = now + overhead
        for read in range(first_output_read[op], first_output_read[op + 1]):
            reader = readers[read]
            there = device_of[reader]
            if there == device:
                copy[read] = NONE
                input_arrived(reader)
            else:
                tensor = read_tensor[read]
                if sent_to[there] != tensor:
                    queue_transfer(tensor, device, there)
                else:
                    uses_left[tensor] -= 1  # several reads, but one transfer
                copy[read] = copy_of[there]
                copy_uses_left[copy_of[there]] += 1
        held[device] -= workspace_bytes[op] + unread_bytes[op]
        release_inputs(op, device)

    def transfer_done(now: float, source: int) -> None:
        """Hand a copy to its readers on the device where it arrived."""
        transfer = running_transfer[source]
        tensor = transfer_tensor[transfer]
        destination = transfer_destination[transfer]
        free_at[num_devices + source] = now + transfer_overhead[source]
        release_local_use(tensor, source)
        for read in range(first_reader[tensor], first_reader[tensor + 1]):
            reader = readers[read]
            if device_of[reader] == destination:
                input_arrived(reader)

    for device in range(num_devices):
        first_op[device] = NONE
        first_transfer[device] = NONE
        sent_to[device] = NONE
        held[device] = 0
    for resource in range(2 * num_devices):
        next_time[resource] = NEVER
        free_at[resource] = 0.0
        hold_time[resource] = NEVER
    num_looked_at[0] = 0
    for op in range(num_ops):
        missing[op] = tables.num_inputs[op]
        held[device_of[op]] += tables.parameter_bytes[op]
    for tensor in range(len(tensor_bytes)):
        uses_left[tensor] = first_reader[tensor + 1] - first_reader[tensor]
    for op in tables.ready_ops:
        queue_op(op)
    for device in range(num_devices):
        peak[device] = held[device]
    num_transfers[0] = 0
    num_started[0] = 0
    runtime = 0.0
    now = 0.0
    while True:
        # Everything at rest picks. No pick changes what another one sees, so any order will do.
        for look in range(num_looked_at[0]):
            resource = looked_at[look]
            if next_time[resource] == NEVER:
                if resource < num_devices:
                    if first_op[resource] != NONE:
                        pick_op(now, resource)
                elif first_transfer[resource - num_devices] != NONE:
                    pick_transfer(now, resource - num_devices)
        num_looked_at[0] = 0
        then = NEVER
        for resource in range(2 * num_devices):
            then = min(then, next_time[resource])
        if then > now:
            # What started before `then` takes its memory now: after what was released by `now`,
            # and before anything else is.
            for resource in range(2 * num_devices):
                if hold_time[resource] < then:
                    held[hold_device[resource]] += hold_bytes[resource]
                    hold_time[resource] = NEVER
            for device in range(num_devices):
                peak[device] = max(peak[device], held[device])
        if then == NEVER:
            return runtime
        now = then
        # Everything that completes is delivered: ops by device, then transfers by source.
        for device in range(num_devices):
            if next_time[device] == now:
                next_time[device] = NEVER
                op_done(now, device)
                may_pick(device)
                runtime = now
        for device in range(num_devices):
            if next_time[num_devices + device] == now:
                next_time[num_devices + device] = NEVER
                transfer_done(now, device)
                may_pick(num_devices + device)
