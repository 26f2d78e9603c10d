"""The event loop, compiled: what `reference.py` does, with the same names, on flat arrays.

In short, without the account of memory::

    while something is ahead:
        now = the time of the first event ahead
        for each resource that completes at it:           # by number: devices, then wires
            op_done or transfer_done                      # fills queues
        for each device and wire whose queue that may have filled:
            if it is at rest and its queue is not empty:  # its overhead may not be over yet
                start_op or await_transfer                # puts an event ahead

In the reference a device or link picks when its overhead is over. No event until then changes the
choice of what is first in, first out. Here a device picks at once the op that starts then, and has
one event ahead, not two. A transfer has its start and its end as soon as it is in the queue of its
link, which has no events. It then is on a *wire*, one for each link and latency, on which transfers
arrive in the order in which they start. What takes no time may not be picked early, because it
would complete one round too soon. Its resource gets a wakeup ahead, and picks then.

The place of the next element in a queue is computed rather than branched on: in a random placement
a processor mispredicts most branches, and a misprediction costs as much as the rest of an event.
The handlers of events are functions inside the loop's, because they are compiled into it.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import called_by_compiled
from placeto_simulator.tables import (
    FIRST_OF_TENSOR,
    LAST_OF_OP,
    LAST_OF_TENSOR,
    NEVER,
    OP,
    State,
    Tables,
)

# To mypy an unsigned index is an int, as what `range` gives.
unsigned = cast(Callable[[Any], int], np.uint64)

# Numba adds a signed number to an unsigned one as floats, so that every constant is unsigned.
ZERO = unsigned(0)
ONE = unsigned(1)
NOTHING = unsigned(2**32 - 1)  # is behind the last transfer on a wire

# Events of so many resources are looked through one by one; among more a knockout is faster.
FEW = unsigned(16)

# What a variant of the loop does (`batches.loop_of`): each is compiled with a value of its own.
BACKWARD_FIRST = True


def simulate(  # noqa: PLR0915
    tables: Tables, state: State, placement: NDArray[np.int32]
) -> float:
    """Simulate a placement int32[G]; return the runtime, or NaN where not all ops were done."""
    num_ops = unsigned(len(tables.num_awaited))
    num_reads = unsigned(len(tables.readers))
    num_devices = unsigned(len(tables.op_overhead))
    num_resources = unsigned(len(state.current))
    num_leaves = unsigned(len(state.next_time))
    has_waits = len(tables.waiters) > 0
    tracks_memory = state.tracks_memory[ZERO]

    def enqueue(device: int, op: int) -> None:
        """Put an op into the queue of a device."""
        if BACKWARD_FIRST:
            push(state.heap, state.first_ready, state.num_ready, device, tables.rank[op])
        else:
            state.successor[state.last[device]] = op
            state.last[device] = op

    def has_waiting(device: int) -> bool:
        """Return whether an op waits for a device."""
        if BACKWARD_FIRST:
            return bool(state.num_ready[device] > 0)
        return bool(state.current[device] != state.last[device])

    def begin() -> None:
        """Empty all queues, then fill them with the ops without inputs."""
        for op in range(num_ops):
            state.device_of[op] = placement[tables.group_of[op]]
            state.missing[op] = tables.num_awaited[op]
        for device in range(num_devices):
            state.sent_to[device] = 0
        for resource in range(num_resources):
            sentinel = np.uint32(num_ops + num_reads + resource)
            state.current[resource] = state.last[resource] = sentinel
            state.start[sentinel] = -NEVER
        for resource in range(num_resources):
            state.is_waking[resource] = False
        for queue in range(len(state.free_at)):
            state.free_at[queue] = -NEVER
        for leaf in range(num_leaves):
            state.next_time[leaf] = NEVER
            state.winner[num_leaves + leaf] = leaf
        for distance in range(ONE, num_leaves):
            node = num_leaves - distance
            state.winner[node] = state.winner[node + node]
        if BACKWARD_FIRST:
            lay_out_heaps(state.first_ready, state.num_ready, state.device_of)
        for ready_op in tables.ready_ops:
            enqueue(unsigned(state.device_of[ready_op]), ready_op)
        if tracks_memory:
            state.num_held[ZERO] = 0
            for device in range(num_devices):
                state.held_bytes[device] = 0
            for group in range(len(placement)):
                state.held_bytes[placement[group]] += tables.group_parameter_bytes[group]
            for device in range(num_devices):
                state.peak[device] = state.held_bytes[device]

    def put_ahead(resource: int, time: float) -> None:
        """Set when a resource has its event; among many, let it play its knockout again."""
        state.next_time[resource] = time
        if num_resources > FEW:
            play_again(state.winner, state.next_time, resource)

    def earliest() -> int:
        """Return the resource whose event comes first; of several, the first one."""
        if num_resources > FEW:
            return unsigned(state.winner[ONE])
        first, time = ZERO, state.next_time[ZERO]
        for resource in range(ONE, num_resources):
            if state.next_time[resource] < time:
                first, time = resource, state.next_time[resource]
        return first

    # --- memory ------------------------------------------------------------------------------

    def hold(element: int, is_first: bool) -> None:
        """Note what takes memory from its start on, if it is the first of its device or wire."""
        state.first_held[state.num_held[ZERO]] = element
        state.num_held[ZERO] += is_first

    def take(then: float) -> None:
        """Take the memory of what starts before a time, after all that was released before it."""
        num_kept = 0
        for count in range(state.num_held[ZERO]):
            element = state.first_held[count]
            while element != NOTHING and state.start[element] < then:
                if element < num_ops:
                    device, size = state.device_of[element], tables.start_bytes[element]
                    element = NOTHING
                else:
                    read = element - num_ops
                    device = state.device_of[tables.readers[read] & OP]
                    size = tables.tensor_bytes[tables.tensor_of_read[read]]
                    element = state.successor[element]
                state.held_bytes[device] += size
                state.peak[device] = max(state.peak[device], state.held_bytes[device])
            state.first_held[num_kept] = element
            num_kept += element != NOTHING
        state.num_held[ZERO] = num_kept

    def freed_by(store: int) -> int:
        """End a use of what a device stores; return how many bytes that frees."""
        uses = state.uses_left[store] - 1
        state.uses_left[store] = uses
        freed: int = tables.store_bytes[store] * (uses == 0)
        return freed

    # --- what happens ------------------------------------------------------------------------

    def send(now: float, read: int, source: int, destination: int) -> None:
        """Put a transfer into the queue of its link: its times are known at once."""
        transfer, link = num_ops + read, tables.link_of[source, destination]
        size = tables.tensor_bytes[tables.tensor_of_read[read]]
        start = max(now, state.free_at[link])
        sent = start + size / tables.bandwidth[source, destination]
        state.free_at[link] = sent + tables.transfer_overhead[source]
        state.start[transfer] = start
        state.end[transfer] = sent + tables.latency[source, destination]
        wire = tables.wire_of[source, destination]
        last = state.last[wire]
        state.successor[last] = transfer
        state.last[wire] = transfer
        if tracks_memory:
            state.predecessor[transfer] = state.sent[link]
            state.sent[link] = transfer
            state.successor[transfer] = NOTHING
            hold(transfer, state.start[last] < now)

    def op_done(now: float, device: int) -> None:
        """Hand the tensors of an op to their readers: at once here, by transfers elsewhere."""
        op = state.current[device]
        if tracks_memory:
            freed = tables.end_bytes[op]
            for position in range(tables.first_input[op], tables.first_input[op + ONE]):
                freed += freed_by(state.store_of_input[position])
            state.held_bytes[device] -= freed
        read = tables.first_output_read[op]
        if read == tables.first_output_read[op + ONE]:
            return
        last_op = state.last[device]
        tensor = ZERO  # named by its first read, and 1 more than that
        local_store, local_uses = ZERO, 0
        while True:
            code = tables.readers[read]
            reader = code & OP
            reader_device = state.device_of[reader]
            is_first = code >= FIRST_OF_TENSOR
            tensor = either(is_first, read + ONE, tensor)
            state.sent_to[device] = tensor
            is_new = state.sent_to[reader_device] != tensor
            state.sent_to[reader_device] = tensor
            is_local = reader_device == device
            num_missing = state.missing[reader] - is_local
            state.missing[reader] = num_missing
            if BACKWARD_FIRST:
                if is_local and num_missing == 0:
                    enqueue(device, reader)
            else:
                state.successor[last_op] = reader
                last_op = either(is_local & (num_missing == 0), reader, last_op)
            if is_new:
                send(now, read, device, reader_device)
            if tracks_memory:
                local_store = num_reads + tables.tensor_of_read[read] if is_first else local_store
                local_uses = 0 if is_first else local_uses
                local_uses += is_local | is_new
                copy = read if is_new else state.store_on[reader_device]
                store = local_store if is_local else copy
                state.store_on[reader_device] = store
                state.store_of_input[tables.input_of_read[read]] = store
                uses = 0 if is_new else state.uses_left[store]
                state.uses_left[store] = uses + 1
                state.uses_left[local_store] = local_uses
            read += ONE
            if code & LAST_OF_OP:
                break
        state.last[device] = last_op

    def release_waiters(op: int) -> bool:
        """Enqueue the ops, wherever they run, that lacked nothing but that an op is done.

        Return whether there are any.
        """
        fills = False
        for position in range(tables.first_waiter[op], tables.first_waiter[op + ONE]):
            waiter = tables.waiters[position]
            state.missing[waiter] -= 1
            if state.missing[waiter] == 0:
                fills = True
                enqueue(unsigned(state.device_of[waiter]), waiter)
        return fills

    def transfer_done(wire: int) -> int:
        """Hand a copy to its readers on the device where it arrives, and return that."""
        transfer = state.successor[state.current[wire]]
        state.current[wire] = transfer
        read = transfer - num_ops
        device = unsigned(state.device_of[tables.readers[read] & OP])
        if tracks_memory:
            source = state.device_of[tables.producer_of_read[read]]
            state.held_bytes[source] -= freed_by(num_reads + tables.tensor_of_read[read])
        last_op = state.last[device]
        while True:
            code = tables.readers[read]
            reader = code & OP
            is_here = state.device_of[reader] == device
            num_missing = state.missing[reader] - is_here
            state.missing[reader] = num_missing
            if BACKWARD_FIRST:
                if is_here and num_missing == 0:
                    enqueue(device, reader)
            else:
                state.successor[last_op] = reader
                last_op = either(is_here & (num_missing == 0), reader, last_op)
            read += ONE
            if code & LAST_OF_TENSOR:
                break
        state.last[device] = last_op
        return device

    def start_op(now: float, device: int) -> float:
        """Start the first op in the queue of a device at rest, and return when it ends.

        If that may not be decided before the end of an overhead, return when that is.
        """
        start: float = max(now, state.free_at[device])
        if BACKWARD_FIRST:
            state.is_waking[device] = start > now  # until then a better one may come
            if start > now:
                return start
            lowest = pop(state.heap, state.first_ready, state.num_ready, device)
            op = tables.op_of_rank[lowest]
        else:
            op = state.successor[state.current[device]]
        duration: float = tables.compute_time[op, device]
        end = start + duration
        if not BACKWARD_FIRST:
            state.is_waking[device] = end == start and start > now
            if state.is_waking[device]:
                return start
        if tracks_memory:
            state.start[op], state.end[op] = start, end
            state.predecessor[op] = state.current[device]
            hold(op, True)
        state.free_at[device] = end + (tables.op_overhead[device] if duration > 0 else 0.0)
        state.current[device] = op
        return end

    def await_transfer(now: float, wire: int) -> float:
        """Return when the first transfer that is under way on a wire arrives."""
        transfer = state.successor[state.current[wire]]
        start: float = state.start[transfer]
        end: float = state.end[transfer]
        state.is_waking[wire] = end == start and start > now
        return end

    def arrives_too(now: float, wire: int) -> bool:
        """Return whether the next transfer on a wire arrives now, in the same round as this one."""
        this, last = state.current[wire], state.under_way[wire]
        if this == last:
            return False
        transfer = state.successor[this]
        takes_time = state.start[transfer] < now
        return bool(state.end[transfer] == now and (takes_time or state.start[this] == now))

    begin()
    now = 0.0
    num_done = count = event = bus = device = ZERO
    fills_all = True  # at first every device may have something in its queue
    while True:
        # Every resource at rest picks, of those whose queues may have got something ...
        for index in range(num_devices if fills_all else count):
            if fills_all:
                device = index
            elif count > ONE:
                device = state.fed_device[index]
            if state.next_time[device] == NEVER and has_waiting(device):
                put_ahead(device, start_op(now, device))
                event = earlier(state.next_time, device, event)
        fills_all = False
        for index in range(count):
            if count > ONE:
                bus = state.completed[index]
            for position in range(tables.first_fed_wire[bus], tables.first_fed_wire[bus + ONE]):
                wire = unsigned(tables.fed_wires[position])
                state.under_way[wire] = state.last[wire]
                if state.next_time[wire] == NEVER and state.current[wire] != state.last[wire]:
                    put_ahead(wire, await_transfer(now, wire))
                    event = earlier(state.next_time, wire, event)
        then = state.next_time[event]
        if then > now:
            if tracks_memory:
                take(then)
            if then == NEVER:
                break
            now = then
        # ... then everything that completes at the next time is delivered.
        count = ZERO
        while state.next_time[event] == now:
            put_ahead(event, NEVER)
            device = event
            if state.is_waking[event]:
                state.is_waking[event] = False
                device = event if event < num_devices else ZERO
            elif event < num_devices:
                num_done += ONE
                op_done(now, event)
                if has_waits:
                    fills_all |= release_waiters(state.current[event])
            else:
                while True:
                    device = transfer_done(event)
                    if not arrives_too(now, event):
                        break
                    fills_all = True  # maybe on other devices
            state.completed[count], state.fed_device[count] = event, device
            bus = event
            count += ONE
            event = earliest()
    return now if num_done == num_ops else np.nan


@called_by_compiled
def either(condition: bool, if_true: int, if_false: int) -> int:
    """Return one number or another, computed: compilers make branches of expressions."""
    return if_false ^ ((if_true ^ if_false) & (ZERO - unsigned(condition)))


@called_by_compiled
def earlier(next_time: NDArray[np.float64], first: int, second: int) -> int:
    """Return the resource of two whose event comes first."""
    first_time, second_time = next_time[first], next_time[second]
    is_first = first_time < second_time or (first_time == second_time and first < second)
    return first if is_first else second


@called_by_compiled
def play_again(winner: NDArray[np.uint32], next_time: NDArray[np.float64], resource: int) -> None:
    """Let a resource play its knockout again."""
    first, first_time = resource, next_time[resource]
    node = unsigned(len(next_time)) + resource
    while node > ONE:
        rival = unsigned(winner[node ^ ONE])
        rival_time = next_time[rival]
        if rival_time < first_time or (rival_time == first_time and rival < first):
            first, first_time = rival, rival_time
        node >>= ONE
        winner[node] = first


# --- queues of which the first is backward, or else of the earliest micro-batch --------------


@called_by_compiled
def lay_out_heaps(
    first_ready: NDArray[np.uint32], num_ready: NDArray[np.uint32], device_of: NDArray[np.uint16]
) -> None:
    """Give the heap of each device room for all its ops."""
    for device in range(len(num_ready)):
        num_ready[device] = 0
    for device in device_of:
        num_ready[device] += 1
    start = np.uint32(0)
    for device in range(len(num_ready)):
        first_ready[device] = start
        start += num_ready[device]
        num_ready[device] = 0


@called_by_compiled
def push(
    heap: NDArray[np.uint32],
    first_ready: NDArray[np.uint32],
    num_ready: NDArray[np.uint32],
    device: int,
    rank: int,
) -> None:
    """Put the rank of an op on the heap of a device."""
    root = unsigned(first_ready[device])
    position = unsigned(num_ready[device])
    num_ready[device] += 1
    while position > ZERO:
        parent = (position - ONE) >> ONE
        if heap[root + parent] < rank:
            break
        heap[root + position] = heap[root + parent]
        position = parent
    heap[root + position] = rank


@called_by_compiled
def pop(
    heap: NDArray[np.uint32],
    first_ready: NDArray[np.uint32],
    num_ready: NDArray[np.uint32],
    device: int,
) -> int:
    """Take the lowest rank from the heap of a device."""
    root = unsigned(first_ready[device])
    lowest = int(heap[root])
    num_ready[device] -= 1
    end = unsigned(num_ready[device])
    moved = heap[root + end]
    position = ZERO
    while True:
        child = position + position + ONE
        if child >= end:
            break
        if child + ONE < end and heap[root + child + ONE] < heap[root + child]:
            child += ONE
        if moved < heap[root + child]:
            break
        heap[root + position] = heap[root + child]
        position = child
    heap[root + position] = moved
    return lowest
