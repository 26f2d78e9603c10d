"""The event loop, compiled: what `reference.py` does, with the same names, on flat arrays.

In short, without the account of memory and the log::

    while something is ahead:
        now = the time of the first event ahead
        for each resource that completes at it:           # by number: devices, then links
            op_done or transfer_done                      # fills queues
        for each device and link whose queue that may have filled:
            if it is at rest and its queue is not empty:  # its overhead may not be over yet
                start_op or start_transfer                # puts an event ahead

In the reference a resource picks when its overhead is over. No event between its last completion
and that moment changes its choice. Here it picks at once the element that starts then, and has one
event ahead, not two. An element that takes no time may not be picked early, because it would
complete one round too soon. Such a resource gets a wakeup ahead, and picks then.

The place of the next element in a queue is computed rather than branched on: in a random placement
a processor mispredicts most branches, and a misprediction costs as much as the rest of an event.
Each array has a local name, because Numba counts a reference at every access to a field. The
handlers of events are functions inside the loop's, because they are compiled into it.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeto_simulator.state import NEVER, Log, Memory, State
from placeto_simulator.tables import FIRST_OF_TENSOR, LAST_OF_OP, LAST_OF_TENSOR, OP, Tables

# To mypy an unsigned index is an int, as what `range` gives.
unsigned = cast(Callable[[Any], int], np.uint64)

# Numba adds a signed number to an unsigned one as floats, so that every constant is unsigned.
ZERO = unsigned(0)
ONE = unsigned(1)

# Events of so many resources are looked through one by one; among more a knockout is faster.
FEW = unsigned(16)

# What a variant of the loop does (`batches.loops_of`): each is compiled with values of its own.
TRACKS_MEMORY = True
BACKWARD_FIRST = True


def simulate(  # noqa: PLR0915
    tables: Tables, state: State, memory: Memory, log: Log, placement: NDArray[np.int32]
) -> float:
    """Simulate a placement int32[G]; return the runtime, or NaN where not all ops were done."""
    group_of = tables.group_of
    num_awaited = tables.num_awaited
    first_waiter = tables.first_waiter
    waiters = tables.waiters
    compute_time = tables.compute_time
    first_output_read = tables.first_output_read
    readers = tables.readers
    producer_of_read = tables.producer_of_read
    tensor_of_read = tables.tensor_of_read
    tensor_bytes = tables.tensor_bytes
    op_overhead = tables.op_overhead
    transfer_overhead = tables.transfer_overhead
    bandwidth = tables.bandwidth
    latency = tables.latency
    link_of = tables.link_of
    rank = tables.rank
    op_of_rank = tables.op_of_rank
    first_fed_link = tables.first_fed_link
    fed_links = tables.fed_links
    device_of = state.device_of
    missing = state.missing
    sent_to = state.sent_to
    after = state.after
    taken = state.taken
    last = state.last
    next_time = state.next_time
    free_at = state.free_at
    is_waking = state.is_waking
    heap = state.heap
    first_ready = state.first_ready
    num_ready = state.num_ready
    winner = state.winner
    completed = state.completed
    fed_device = state.fed_device
    op_start = state.op_start
    op_end = state.op_end
    op_before = state.op_before
    first_input = tables.first_input
    input_of_read = tables.input_of_read
    store_bytes = tables.store_bytes
    start_bytes = tables.start_bytes
    end_bytes = tables.end_bytes
    store_of_input = memory.store_of_input
    uses_left = memory.uses_left
    store_on = memory.store_on
    num_holds = memory.num_holds
    hold_start = memory.hold_start
    hold_device = memory.hold_device
    hold_bytes = memory.hold_bytes
    held = memory.held
    peak = memory.peak
    num_ops = unsigned(len(num_awaited))
    num_reads = unsigned(len(readers))
    num_devices = unsigned(len(op_overhead))
    num_resources = unsigned(len(free_at))
    num_leaves = unsigned(len(next_time))
    first_sentinel = num_ops + num_reads
    has_many_resources = num_resources > FEW
    has_waits = len(waiters) > 0
    keeps_log = len(log.event_time) > 0  # only together with memory

    # --- queues of which the first is backward, or else of the earliest micro-batch ----------

    def lay_out_heaps() -> None:
        """Give the heap of each device room for all its ops."""
        num_ready[:] = 0
        for op in range(num_ops):
            num_ready[device_of[op]] += np.uint32(1)
        start = np.uint32(0)
        for device in range(num_devices):
            first_ready[device] = start
            start += num_ready[device]
        num_ready[:] = 0

    def push(device: int, op: int) -> None:
        """Put an op on the heap of a device."""
        root = unsigned(first_ready[device])
        position = unsigned(num_ready[device])
        num_ready[device] += np.uint32(1)
        while position > ZERO:
            parent = (position - ONE) >> ONE
            if heap[root + parent] < rank[op]:
                break
            heap[root + position] = heap[root + parent]
            position = parent
        heap[root + position] = rank[op]

    def pop(device: int) -> int:
        """Take the op of the lowest rank from the heap of a device."""
        root = unsigned(first_ready[device])
        lowest = heap[root]
        num_ready[device] -= np.uint32(1)
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
        return unsigned(op_of_rank[lowest])

    def has_waiting(device: int) -> bool:
        """Return whether an op waits for a device."""
        if BACKWARD_FIRST:
            return bool(num_ready[device] > 0)
        return bool(taken[device] != last[device])

    def begin() -> None:
        """Empty all queues, then fill them with the ops without inputs."""
        for op in range(num_ops):
            device_of[op] = placement[group_of[op]]
            missing[op] = num_awaited[op]
        for device in range(num_devices):
            sent_to[device] = 0
        for resource in range(num_resources + ONE):
            taken[resource] = last[resource] = np.uint32(first_sentinel + resource)
        for resource in range(num_resources):
            free_at[resource] = -NEVER
            is_waking[resource] = False
        for resource in range(num_leaves):
            next_time[resource] = NEVER
        if has_many_resources:
            for resource in range(num_leaves):
                winner[num_leaves + resource] = np.uint32(resource)
            for distance in range(ONE, num_leaves):
                node = num_leaves - distance
                winner[node] = winner[node + node]
        if BACKWARD_FIRST:
            lay_out_heaps()
        for ready_op in tables.ready_ops:
            device = unsigned(device_of[ready_op])
            if BACKWARD_FIRST:
                push(device, unsigned(ready_op))
            else:
                after[last[device]] = ready_op
                last[device] = ready_op
        if TRACKS_MEMORY:
            num_holds[ZERO] = 0
            held[:] = 0
            peak[:] = 0
        if TRACKS_MEMORY and keeps_log:
            log.num_events[ZERO] = log.num_memory_changes[ZERO] = log.round[ZERO] = 0

    def put_ahead(resource: int, time: float) -> None:
        """Set when a resource has its event; among many, let it play its knockout again."""
        next_time[resource] = time
        if has_many_resources:
            first, first_time = resource, time
            node = num_leaves + resource
            while node > ONE:
                other = unsigned(winner[node ^ ONE])
                other_time = next_time[other]
                if other_time < first_time or (other_time == first_time and other < first):
                    first, first_time = other, other_time
                node >>= ONE
                winner[node] = np.uint32(first)

    def earliest() -> int:
        """Return the resource whose event comes first; of several, the first one."""
        if has_many_resources:
            return unsigned(winner[ONE])
        first, time = ZERO, next_time[ZERO]
        for resource in range(ONE, num_resources):
            if next_time[resource] < time:
                first, time = resource, next_time[resource]
        return first

    def earlier(one: int, other: int) -> int:
        """Return the resource of two whose event comes first."""
        time, other_time = next_time[one], next_time[other]
        return one if time < other_time or (time == other_time and one < other) else other

    # --- what happened -----------------------------------------------------------------------

    def log_event(now: float, resource: int, is_wakeup: bool) -> None:
        """Write down that what a resource runs is done, or that it starts something."""
        count = log.num_events[ZERO]
        log.num_events[ZERO] = count + 1
        log.event_time[count] = now
        log.event_round[count] = log.round[ZERO]
        log.event_is_wakeup[count] = is_wakeup
        log.event_resource[count] = np.uint32(resource)
        log.event_element[count] = taken[resource]

    def log_memory(time: float, device: int, size: int) -> None:
        """Write down that a device holds more or fewer bytes from a time on."""
        count = log.num_memory_changes[ZERO]
        log.num_memory_changes[ZERO] = count + 1
        log.memory_time[count] = time
        log.memory_device[count] = np.uint32(device)
        log.memory_bytes[count] = size

    # --- memory ------------------------------------------------------------------------------

    def hold(start: float, device: int, size: int) -> None:
        """Note that memory is taken on a device from a time on that is not over yet."""
        count = num_holds[ZERO]
        num_holds[ZERO] = count + 1
        hold_start[count] = start
        hold_device[count] = np.uint32(device)
        hold_bytes[count] = size
        if keeps_log:
            log_memory(start, device, size)

    def take(then: float) -> None:
        """Take what was held before a time, after all that was released before it."""
        kept = 0
        for count in range(num_holds[ZERO]):
            start, device, size = hold_start[count], hold_device[count], hold_bytes[count]
            if start < then:
                held[device] += size
                peak[device] = max(peak[device], held[device])
            else:
                hold_start[kept], hold_device[kept], hold_bytes[kept] = start, device, size
                kept += 1
        num_holds[ZERO] = kept

    def freed_by(store: int) -> int:
        """End a use of what a device stores; return how many bytes that frees."""
        uses = uses_left[store] - np.int32(1)
        uses_left[store] = uses
        return int(store_bytes[store] * np.int64(uses == 0))

    def release(now: float, device: int, size: int) -> None:
        """Give memory back at once: what is released at a time is not there any more then."""
        held[device] -= size
        if keeps_log:
            log_memory(now, device, -size)

    # --- what happens ------------------------------------------------------------------------

    def either(condition: bool, one: int, other: int) -> int:
        """Return one number or another, computed: compilers make branches of expressions."""
        return other ^ ((one ^ other) & (ZERO - unsigned(condition)))

    def op_done(now: float, device: int) -> None:
        """Hand the tensors of an op to their readers: at once here, by transfers elsewhere."""
        op = unsigned(taken[device])
        if TRACKS_MEMORY:
            freed = end_bytes[op]
            for position in range(first_input[op], first_input[op + ONE]):
                freed += freed_by(store_of_input[position])
            release(now, device, freed)
        read = unsigned(first_output_read[op])
        if read == first_output_read[op + ONE]:
            return
        last_op = unsigned(last[device])
        tensor = ZERO  # named by its first read, and 1 more than that
        local_store, local_uses = ZERO, np.int32(0)
        while True:
            code = readers[read]
            reader = code & OP
            there = unsigned(device_of[reader])
            is_first = code >= FIRST_OF_TENSOR
            tensor = either(is_first, read + ONE, tensor)
            sent_to[device] = np.uint32(tensor)
            is_new = sent_to[there] != tensor
            sent_to[there] = np.uint32(tensor)
            is_local = there == device
            left = missing[reader] - np.int32(is_local)
            missing[reader] = left
            if BACKWARD_FIRST:
                if is_local and left == 0:
                    push(device, unsigned(reader))
            else:
                after[last_op] = np.uint32(reader)
                last_op = either(is_local & (left == 0), unsigned(reader), last_op)
            link = link_of[device, there]
            last_transfer = unsigned(last[link])
            after[last_transfer] = np.uint32(num_ops + read)
            last[link] = np.uint32(either(is_new, num_ops + read, last_transfer))
            if TRACKS_MEMORY:
                local_store = num_reads + tensor_of_read[read] if is_first else local_store
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
        last[device] = np.uint32(last_op)

    def release_waiters(op: int) -> bool:
        """Enqueue the ops, wherever they run, that lacked nothing but that an op is done.

        Return whether there are any.
        """
        fills = False
        for position in range(first_waiter[op], first_waiter[op + ONE]):
            waiter = unsigned(waiters[position])
            missing[waiter] -= np.int32(1)
            if missing[waiter] == 0:
                fills = True
                there = unsigned(device_of[waiter])
                if BACKWARD_FIRST:
                    push(there, waiter)
                else:
                    after[last[there]] = np.uint32(waiter)
                    last[there] = np.uint32(waiter)
        return fills

    def transfer_done(now: float, link: int) -> int:
        """Hand a copy to its readers on the device where it arrived, and return that."""
        read = unsigned(taken[link]) - num_ops
        device = unsigned(device_of[readers[read] & OP])
        if TRACKS_MEMORY:
            source = device_of[producer_of_read[read]]
            release(now, source, freed_by(num_reads + tensor_of_read[read]))
        last_op = unsigned(last[device])
        while True:
            code = readers[read]
            reader = code & OP
            is_here = device_of[reader] == device
            left = missing[reader] - np.int32(is_here)
            missing[reader] = left
            if BACKWARD_FIRST:
                if is_here and left == 0:
                    push(device, unsigned(reader))
            else:
                after[last_op] = np.uint32(reader)
                last_op = either(is_here & (left == 0), unsigned(reader), last_op)
            read += ONE
            if code & LAST_OF_TENSOR:
                break
        last[device] = np.uint32(last_op)
        return device

    def start_op(now: float, device: int) -> None:
        """Start the first op in the queue of a device at rest, or wake it up later."""
        start = max(now, free_at[device])
        if BACKWARD_FIRST:
            if start > now:  # until then a better one may come
                is_waking[device] = True
                put_ahead(device, start)
                return
            op = pop(device)
        else:
            op = unsigned(after[taken[device]])
        duration = compute_time[op, device]
        end = start + duration
        if not BACKWARD_FIRST and end == start and start > now:
            is_waking[device] = True
            put_ahead(device, start)
            return
        if TRACKS_MEMORY:
            op_before[op] = taken[device]
        taken[device] = np.uint32(op)
        if TRACKS_MEMORY and keeps_log and free_at[device] < now:
            log_event(now, device, True)
        free_at[device] = end + (op_overhead[device] if duration > 0 else 0.0)
        put_ahead(device, end)
        if TRACKS_MEMORY:
            op_start[op] = start
            op_end[op] = end
            hold(start, device, start_bytes[op])

    def start_transfer(now: float, link: int) -> None:
        """Start the first transfer in the queue of a link at rest, or wake it up later."""
        transfer = after[taken[link]]
        read = unsigned(transfer) - num_ops
        source = unsigned(device_of[producer_of_read[read]])
        destination = unsigned(device_of[readers[read] & OP])
        size = tensor_bytes[tensor_of_read[read]]
        start = max(now, free_at[link])
        end = start + (latency[source, destination] + size / bandwidth[source, destination])
        if end == start and start > now:
            is_waking[link] = True
            put_ahead(link, start)
            return
        taken[link] = transfer
        if TRACKS_MEMORY and keeps_log:
            log.transfer_start[read] = start
            log.transfer_end[read] = end
            if free_at[link] < now:
                log_event(now, link, True)
        free_at[link] = end + transfer_overhead[source]
        put_ahead(link, end)
        if TRACKS_MEMORY:
            hold(start, destination, size)

    begin()
    now = 0.0
    num_done = count = event = bus = device = ZERO
    fills_all = True  # at first every device may have something in its queue
    while True:
        # Every resource at rest picks, of those whose queues may have got something ...
        if fills_all:
            fills_all = False
            for each in range(num_devices):
                if next_time[each] == NEVER and has_waiting(each):
                    start_op(now, each)
                    event = earlier(each, event)
        for number in range(count):
            if count > ONE:
                device, bus = unsigned(fed_device[number]), unsigned(completed[number])
            if next_time[device] == NEVER and has_waiting(device):
                start_op(now, device)
                event = earlier(device, event)
            for position in range(first_fed_link[bus], first_fed_link[bus + ONE]):
                link = unsigned(fed_links[position])
                if next_time[link] == NEVER and taken[link] != last[link]:
                    start_transfer(now, link)
                    event = earlier(link, event)
        then = next_time[event]
        if then > now:
            if TRACKS_MEMORY:
                take(then)
            if then == NEVER:
                break
            now = then
        # ... then everything that completes at the next time is delivered.
        count = ZERO
        if TRACKS_MEMORY and keeps_log:
            log.round[ZERO] += 1
        while next_time[event] == now:
            put_ahead(event, NEVER)
            device = event
            if is_waking[event]:
                is_waking[event] = False
                device = event if event < num_devices else ZERO
            elif event < num_devices:
                if TRACKS_MEMORY and keeps_log:
                    log_event(now, event, False)
                num_done += ONE
                op_done(now, event)
                if has_waits:
                    fills_all |= release_waiters(unsigned(taken[event]))
            else:
                if TRACKS_MEMORY and keeps_log:
                    log_event(now, event, False)
                device = transfer_done(now, event)
            completed[count], fed_device[count] = np.uint32(event), np.uint32(device)
            bus = event
            count += ONE
            event = earliest()
    return now if num_done == num_ops else np.nan
