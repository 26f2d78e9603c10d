"""The event loop: what happens on D devices and their D buses, in the order in which it happens.

A device or bus has at most one event ahead of it, so events wait in one slot per resource: the
devices first, then their buses. A resource whose slot is `NEVER` is at rest and picks the first
element of its queue, which starts when the overhead of the one before is over.

At one timestamp everything that completes is delivered, then everything at rest picks; what a pick
completes at once is the next round of the same timestamp.

Where the next element goes in a queue, and whether it counts, is computed rather than branched on:
of a random placement a processor can foresee nothing, and a wrong guess costs as much as the rest
of an event.
"""

from collections.abc import Callable
from typing import Any
from typing import cast

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.state import Memory
from placeto_simulator.state import State
from placeto_simulator.tables import FIRST_OF_TENSOR
from placeto_simulator.tables import LAST_OF_OP
from placeto_simulator.tables import LAST_OF_TENSOR
from placeto_simulator.tables import OP
from placeto_simulator.tables import Tables

# To mypy an unsigned index is an int, as what `range` gives.
unsigned = cast(Callable[[Any], int], np.uint64)

NEVER = np.inf
WHOLE_STEP = np.iinfo(np.int64).max  # a number of ops that is never reached
# Numba adds a signed number to an unsigned one as floats, so that every constant is unsigned.
ZERO = unsigned(0)
ONE = unsigned(1)


@compiled
def begin(tables: Tables, state: State, placement: NDArray[np.int32]) -> None:
    """Lay out the queues for a placement int32[G], and fill them with the ops without inputs."""
    num_devices = len(tables.op_overhead)
    group_of, num_inputs = tables.group_of, tables.num_inputs
    device_of, missing = state.device_of, state.missing
    region, head, tail, queue = state.region, state.head, state.tail, state.queue
    for op in range(len(num_inputs)):
        device_of[op] = placement[group_of[op]]
        missing[op] = num_inputs[op]
    lay_out(tables, placement, region)
    for resource in range(2 * num_devices):
        head[resource] = tail[resource] = region[resource]
        state.next_time[resource] = NEVER
        state.free_at[resource] = 0.0
    for op in tables.ready_ops:
        queue[tail[device_of[op]]] = op
        tail[device_of[op]] += np.uint32(1)
    state.clock[0] = 0.0
    state.num_done[0] = 0


@compiled
def lay_out(tables: Tables, placement: NDArray[np.int32], region: NDArray[np.uint32]) -> None:
    """Give each queue room for what a placement can ever put there, and for one element more."""
    num_devices = len(tables.op_overhead)
    region[:] = 1
    for group in range(len(placement)):
        region[placement[group]] += np.uint32(tables.group_ops[group])
        region[num_devices + placement[group]] += np.uint32(tables.group_reads[group])
    start = np.uint32(0)
    for resource in range(2 * num_devices):
        length = region[resource]
        region[resource] = start
        start += length


@compiled
def begin_memory(memory: Memory) -> None:
    """Forget what was held. `uses_left` is all zeros after each step that was simulated whole."""
    memory.hold_time[:] = NEVER
    memory.held[:] = 0
    memory.peak[:] = 0


Advance = Callable[[Tables, State, Memory, float, int], float]


def _advance(tracks_memory: bool) -> Advance:  # noqa: PLR0915 (a statement per array)
    """Return the event loop, compiled with or without the account of memory."""

    @compiled
    def advance(  # noqa: PLR0915
        tables: Tables, state: State, memory: Memory, until: float, num_done_until: int
    ) -> float:
        """Simulate up to the first event at or after a time, or until so many ops are done.

        It stops only where the clock goes on, never between two events of one timestamp. Each
        array has a local name, because Numba counts a reference at every access to a field; and
        what happens at an event is a function in here, because it is compiled into the loop.

        Returns
        -------
        float
            The time of the next event; `NEVER` at the end of the step, whose runtime is then what
            the clock shows.
        """
        compute_time = tables.compute_time
        first_output_read = tables.first_output_read
        readers = tables.readers
        read_tensor = tables.read_tensor
        tensor_bytes = tables.tensor_bytes
        op_overhead = tables.op_overhead
        transfer_overhead = tables.transfer_overhead
        bandwidth = tables.bandwidth
        latency = tables.latency
        device_of = state.device_of
        missing = state.missing
        queue = state.queue
        head = state.head
        tail = state.tail
        running = state.running
        target = state.target
        next_time = state.next_time
        free_at = state.free_at
        op_start = state.op_start
        transfer_start = state.transfer_start
        num_devices = unsigned(len(op_overhead))
        num_resources = num_devices + num_devices
        first_input = tables.first_input
        input_of_read = tables.input_of_read
        store_bytes = tables.store_bytes
        start_bytes = tables.start_bytes
        end_bytes = tables.end_bytes
        store_of_input = memory.store_of_input
        uses_left = memory.uses_left
        store_on = memory.store_on
        hold_time = memory.hold_time
        hold_device = memory.hold_device
        hold_bytes = memory.hold_bytes
        held = memory.held
        peak = memory.peak
        num_reads = unsigned(len(readers))

        def hold_from(start: float, resource: int, device: int, size: int) -> None:
            """Note that what a resource starts takes memory on a device from then on."""
            if hold_time[resource] != NEVER:
                held[hold_device[resource]] += hold_bytes[resource]
            hold_time[resource] = start
            hold_device[resource] = device
            hold_bytes[resource] = size

        def pick_op(now: float, device: int) -> None:
            """Start the first op in the queue of a device at rest."""
            op = queue[head[device]]
            head[device] += np.uint32(1)
            running[device] = op
            duration = compute_time[op, device]
            start = max(now, free_at[device])
            end = start + duration
            op_start[op] = start
            next_time[device] = end
            free_at[device] = end + (op_overhead[device] if duration > 0 else 0.0)
            if tracks_memory:
                hold_from(start, device, device, start_bytes[op])

        def pick_transfer(now: float, bus: int) -> None:
            """Start the first transfer in the queue of a bus at rest."""
            transfer = queue[head[bus]]
            head[bus] += np.uint32(1)
            running[bus] = transfer
            source = bus - num_devices
            destination = device_of[readers[transfer] & OP]
            target[bus] = destination
            size = tensor_bytes[read_tensor[transfer]]
            start = max(now, free_at[bus])
            end = start + (latency[source, destination] + size / bandwidth[source, destination])
            transfer_start[transfer] = start
            next_time[bus] = end
            free_at[bus] = end + transfer_overhead[source]
            if tracks_memory:
                hold_from(start, bus, destination, size)

        def freed_by(store: int) -> int:
            """End a use of what a device stores; return how many bytes that frees."""
            uses = uses_left[store] - np.int32(1)
            uses_left[store] = uses
            return int(store_bytes[store] * np.int64(uses == 0))

        def op_done(device: int) -> None:
            """Hand the tensors of an op to their readers: at once here, by transfers elsewhere."""
            op = unsigned(running[device])
            if tracks_memory:
                freed = end_bytes[op]
                for position in range(first_input[op], first_input[op + ONE]):
                    freed += freed_by(store_of_input[position])
                held[device] -= freed
            read = unsigned(first_output_read[op])
            if read == first_output_read[op + ONE]:
                return
            bus = num_devices + device
            end_of_ops, end_of_transfers = unsigned(tail[device]), unsigned(tail[bus])
            own = ONE << device
            sent = own  # a bit for each device that has the tensor or gets it
            local_store, local_uses = ZERO, np.int32(0)
            while True:
                code = readers[read]
                reader = code & OP
                there = unsigned(device_of[reader])
                is_first = code >= FIRST_OF_TENSOR
                sent = own if is_first else sent
                is_new = ONE ^ ((sent >> there) & ONE)
                sent |= ONE << there
                is_local = there == device
                left = missing[reader] - np.int32(is_local)
                missing[reader] = left
                queue[end_of_ops] = np.uint32(reader)
                end_of_ops += unsigned(is_local & (left == 0))
                queue[end_of_transfers] = np.uint32(read)
                end_of_transfers += is_new
                if tracks_memory:
                    local_store = num_reads + read_tensor[read] if is_first else local_store
                    local_uses = np.int32(0) if is_first else local_uses
                    local_uses += np.int32(is_local) | np.int32(is_new)
                    copy = read if is_new else unsigned(store_on[there])
                    store = local_store if is_local else copy
                    store_on[there] = np.uint32(store)
                    store_of_input[input_of_read[read]] = np.uint32(store)
                    uses_left[store] = (np.int32(0) if is_new else uses_left[store]) + np.int32(1)
                    uses_left[local_store] = local_uses
                read += ONE
                if code & LAST_OF_OP:
                    break
            tail[device], tail[bus] = np.uint32(end_of_ops), np.uint32(end_of_transfers)

        def transfer_done(bus: int) -> None:
            """Hand a copy to its readers on the device where it arrived."""
            read = unsigned(running[bus])
            device = unsigned(target[bus])
            if tracks_memory:
                held[bus - num_devices] -= freed_by(num_reads + read_tensor[read])
            end_of_ops = unsigned(tail[device])
            while True:
                code = readers[read]
                reader = code & OP
                is_here = device_of[reader] == device
                left = missing[reader] - np.int32(is_here)
                missing[reader] = left
                queue[end_of_ops] = np.uint32(reader)
                end_of_ops += unsigned(is_here & (left == 0))
                read += ONE
                if code & LAST_OF_TENSOR:
                    break
            tail[device] = np.uint32(end_of_ops)

        def earliest() -> int:
            """Return the resource whose event comes first; of several, the first one."""
            first, time = ZERO, next_time[ZERO]
            for resource in range(ONE, num_resources):
                if next_time[resource] < time:
                    first, time = resource, next_time[resource]
            return first

        def comes_before(one: int, other: int) -> bool:
            """Return whether the event of one resource comes before that of another."""
            time, other_time = next_time[one], next_time[other]
            return bool(time < other_time or (time == other_time and one < other))

        def take(resource: int, then: float) -> bool:
            """Take what the last pick of a resource needs, or return that it starts later."""
            start = hold_time[resource]
            if start < then:
                device = hold_device[resource]
                size = held[device] + hold_bytes[resource]
                held[device] = size
                peak[device] = max(peak[device], size)
                hold_time[resource] = NEVER
            return bool(then <= start < NEVER)

        def take_all(then: float) -> bool:
            """Take what the last picks of all resources need; return whether some start later."""
            some_later = False
            for resource in range(num_resources):
                some_later |= take(resource, then)
            for device in range(num_devices):
                peak[device] = max(peak[device], held[device])
            return some_later

        now = state.clock[0]
        num_done = state.num_done[0]
        # At one event only a device and a bus are looked at, unless several events come together.
        look_at_all = True
        some_hold_later = True
        device = bus = ZERO
        event = earliest()
        while True:
            # Everything at rest picks. No pick changes what another one sees: any order will do.
            first, end = (ZERO, num_devices) if look_at_all else (device, device + ONE)
            for resource in range(first, end):
                if next_time[resource] == NEVER and head[resource] < tail[resource]:
                    pick_op(now, resource)
                    if comes_before(resource, event):
                        event = resource
            first, end = (num_devices, num_resources) if look_at_all else (bus, bus + ONE)
            for resource in range(first, end):
                if next_time[resource] == NEVER and head[resource] < tail[resource]:
                    pick_transfer(now, resource)
                    if comes_before(resource, event):
                        event = resource
            then = next_time[event]
            if then > now:
                if tracks_memory:
                    # After what was released by `now`, and before anything is released at `then`.
                    if look_at_all or some_hold_later:
                        some_hold_later = take_all(then)
                    else:
                        some_hold_later = take(device, then) | take(bus, then)
                if then >= until or num_done >= num_done_until:
                    state.clock[0] = now
                    state.num_done[0] = num_done
                    return float(then)
            else:
                some_hold_later = True
            now = then
            look_at_all = False
            while True:
                next_time[event] = NEVER
                device = unsigned(target[event])
                if event < num_devices:
                    bus = num_devices + event
                    num_done += 1
                    op_done(event)
                else:
                    bus = event
                    transfer_done(event)
                event = earliest()
                if next_time[event] > now:
                    break
                look_at_all = True

    return advance


advance = _advance(tracks_memory=True)
advance_runtime = _advance(tracks_memory=False)


@compiled
def simulate_runtime(
    tables: Tables, state: State, memory: Memory, placement: NDArray[np.int32]
) -> float:
    """Simulate a placement int32[G] and return its runtime, without the account of memory."""
    begin(tables, state, placement)
    advance_runtime(tables, state, memory, NEVER, WHOLE_STEP)
    return float(state.clock[0])


@compiled
def evaluate_runtimes(
    tables: Tables,
    state: State,
    memory: Memory,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
) -> None:
    """Simulate placements int32[B, G] one by one into runtime[B]."""
    for row in range(len(placements)):
        runtime[row] = simulate_runtime(tables, state, memory, placements[row])


@compiled
def evaluate(
    tables: Tables,
    state: State,
    memory: Memory,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    peak_memory: NDArray[np.int64],
) -> None:
    """Simulate placements int32[B, G] one by one into runtime[B] and peak_memory[B, D]."""
    for row in range(len(placements)):
        begin(tables, state, placements[row])
        begin_memory(memory)
        advance(tables, state, memory, NEVER, WHOLE_STEP)
        runtime[row] = state.clock[0]
        add_parameters(tables, memory, placements[row], peak_memory[row])


@compiled
def add_parameters(
    tables: Tables,
    memory: Memory,
    placement: NDArray[np.int32],
    peak_memory: NDArray[np.int64],
) -> None:
    """Write the peak memory of each device: parameters stay for the whole step."""
    peak_memory[:] = memory.peak
    for group in range(len(placement)):
        peak_memory[placement[group]] += tables.group_parameter_bytes[group]
