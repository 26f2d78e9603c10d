"""Saved states of a simulated step, so that one which differs from it can go on from there."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import NEVER
from placeto_simulator.event_loop import WHOLE_STEP
from placeto_simulator.event_loop import add_parameters
from placeto_simulator.event_loop import advance
from placeto_simulator.event_loop import begin
from placeto_simulator.event_loop import begin_memory
from placeto_simulator.event_loop import lay_out
from placeto_simulator.state import Memory
from placeto_simulator.state import State
from placeto_simulator.tables import OP
from placeto_simulator.tables import Tables

LATEST = np.finfo(np.float64).max


class Checkpoints(NamedTuple):
    """States of one simulated step at K moments, and of two that may take its place.

    The first moment is when as many ops are done as have no inputs, the others share out the rest.
    At each moment the clock is about to go on to the next event.

    Attributes
    ----------
    row, spare_row : int64[K], int64[2, K]
        Where in the fields below the state of the step at each moment is, and where those of the
        two others are put.
    num_done_until : int64[K]
        How many ops are done by then, at least.
    next_event : float64[3 K]
        The time of the next event; `NEVER` where the step was over before. Seconds.
    clock, num_done : float64[3 K], int64[3 K]
        As in `State`.
    missing, running, target, next_time, free_at : [3 K, ...]
        As in `State`.
    queue, queue_length : uint32[3 K, V + E], uint32[3 K, 2 D]
        What the queues hold, one after the other, and how much each of them.
    uses_left, hold_time, hold_device, hold_bytes, held, peak : [3 K, ...]
        As in `Memory`.
    op_start, store_of_input : float64[V], uint32[E]
        As in `State` and `Memory`, at the end of the step.
    device_of : uint8[V]
        The device of each op in the step.
    """

    row: NDArray[np.int64]
    spare_row: NDArray[np.int64]
    num_done_until: NDArray[np.int64]
    next_event: NDArray[np.float64]
    clock: NDArray[np.float64]
    num_done: NDArray[np.int64]
    missing: NDArray[np.int32]
    running: NDArray[np.uint32]
    target: NDArray[np.uint32]
    next_time: NDArray[np.float64]
    free_at: NDArray[np.float64]
    queue: NDArray[np.uint32]
    queue_length: NDArray[np.uint32]
    uses_left: NDArray[np.int32]
    hold_time: NDArray[np.float64]
    hold_device: NDArray[np.uint32]
    hold_bytes: NDArray[np.int64]
    held: NDArray[np.int64]
    peak: NDArray[np.int64]
    op_start: NDArray[np.float64]
    store_of_input: NDArray[np.uint32]
    device_of: NDArray[np.uint8]


def new_checkpoints(tables: Tables, count: int) -> Checkpoints:
    """Return room for states at so many moments."""
    ops, reads, devices = len(tables.num_inputs), len(tables.readers), len(tables.op_overhead)
    rows = 3 * count
    ready = len(tables.ready_ops)
    return Checkpoints(
        row=np.arange(count),
        spare_row=np.arange(count, rows).reshape(2, count),
        num_done_until=ready + np.arange(count) * (ops - ready) // count,
        next_event=np.zeros(rows),
        clock=np.zeros(rows),
        num_done=np.zeros(rows, np.int64),
        missing=np.zeros((rows, ops), np.int32),
        running=np.zeros((rows, 2 * devices), np.uint32),
        target=np.zeros((rows, 2 * devices), np.uint32),
        next_time=np.zeros((rows, 2 * devices)),
        free_at=np.zeros((rows, 2 * devices)),
        queue=np.zeros((rows, ops + reads), np.uint32),
        queue_length=np.zeros((rows, 2 * devices), np.uint32),
        uses_left=np.zeros((rows, len(tables.store_bytes)), np.int32),
        hold_time=np.zeros((rows, 2 * devices)),
        hold_device=np.zeros((rows, 2 * devices), np.uint32),
        hold_bytes=np.zeros((rows, 2 * devices), np.int64),
        held=np.zeros((rows, devices), np.int64),
        peak=np.zeros((rows, devices), np.int64),
        op_start=np.zeros(ops),
        store_of_input=np.zeros(reads, np.uint32),
        device_of=np.zeros(ops, np.uint8),
    )


@compiled
def simulate(
    tables: Tables,
    state: State,
    memory: Memory,
    saved: Checkpoints,
    placement: NDArray[np.int32],
    peak_memory: NDArray[np.int64],
) -> float:
    """Simulate a placement int32[G] from the beginning, save it, and return its runtime."""
    begin(tables, state, placement)
    begin_memory(memory)
    finish(tables, state, memory, saved, 0, 0)
    adopt(state, memory, saved, 0, 0)
    add_parameters(tables, memory, placement, peak_memory)
    return float(state.clock[0])


@compiled
def simulate_move(
    tables: Tables,
    state: State,
    memory: Memory,
    saved: Checkpoints,
    spare: int,
    placement: NDArray[np.int32],
    inputs_from: NDArray[np.uint32],
    begins_at_zero: bool,
    peak_memory: NDArray[np.int64],
) -> tuple[float, int]:
    """Simulate a placement that differs from the saved one in one group.

    Both steps are the same until the first op is done whose tensors the group reads. Where the
    group has ops without inputs, as parameters are, they already differ at the beginning; but most
    often these take no time, and once they are done nothing tells that they ran elsewhere.

    Parameters
    ----------
    spare
        Which of the two spare rows take the moments of the new step that both do not share.
    placement : int32[G]
        The placement.
    inputs_from : uint32[]
        The ops outside of the group whose tensors are read in it.
    begins_at_zero
        Whether the group has ops without inputs.

    Returns
    -------
    float, int
        The runtime in seconds, and how many moments the two steps share.
    """
    shared = 0
    if not begins_at_zero:
        shared = moments_before(tables, saved, inputs_from, 0.0)
    if shared > 0:
        restore(tables, state, memory, saved, shared - 1, placement)
    else:
        begin(tables, state, placement)
        begin_memory(memory)
        first_row = saved.row[0]
        then = advance(tables, state, memory, saved.next_event[first_row], WHOLE_STEP)
        if equals(tables, state, memory, saved, first_row, then):
            shared = moments_before(tables, saved, inputs_from, then)
            if shared > 1:
                restore(tables, state, memory, saved, shared - 1, placement)
        else:
            save(state, memory, saved, saved.spare_row[spare, 0], then)
    finish(tables, state, memory, saved, spare, max(shared, 1))
    add_parameters(tables, memory, placement, peak_memory)
    return float(state.clock[0]), shared


@compiled
def moments_before(
    tables: Tables, saved: Checkpoints, ops: NDArray[np.uint32], since: float
) -> int:
    """Return how many moments of the saved step come before the first of some ops is done.

    Ops that were done before ``since`` do not count.
    """
    first_done = LATEST
    for op in ops:
        done = saved.op_start[op] + tables.compute_time[op, saved.device_of[op]]
        if since <= done < first_done:
            first_done = done
    count = 0
    while count < len(saved.row) and saved.next_event[saved.row[count]] <= first_done:
        count += 1
    return count


@compiled
def finish(
    tables: Tables, state: State, memory: Memory, saved: Checkpoints, spare: int, first: int
) -> None:
    """Simulate to the end, and save the moments from a first one on in spare rows."""
    for moment in range(first, len(saved.row)):
        then = advance(tables, state, memory, NEVER, saved.num_done_until[moment])
        save(state, memory, saved, saved.spare_row[spare, moment], then)
    advance(tables, state, memory, NEVER, WHOLE_STEP)


@compiled
def adopt(state: State, memory: Memory, saved: Checkpoints, spare: int, shared: int) -> None:
    """Let a step that was simulated and saved in spare rows take the place of the saved one."""
    for moment in range(shared, len(saved.row)):
        row = saved.row[moment]
        saved.row[moment] = saved.spare_row[spare, moment]
        saved.spare_row[spare, moment] = row
    saved.op_start[:] = state.op_start
    saved.store_of_input[:] = memory.store_of_input
    saved.device_of[:] = state.device_of


@compiled
def save(state: State, memory: Memory, saved: Checkpoints, row: int, then: float) -> None:
    """Save a state, whose next event is at a time, in a row."""
    saved.next_event[row] = then
    if then == NEVER:
        return
    saved.clock[row] = state.clock[0]
    saved.num_done[row] = state.num_done[0]
    saved.missing[row] = state.missing
    saved.running[row] = state.running
    saved.target[row] = state.target
    saved.next_time[row] = state.next_time
    saved.free_at[row] = state.free_at
    end = 0
    for resource in range(len(state.head)):
        start = end
        for position in range(state.head[resource], state.tail[resource]):
            saved.queue[row, end] = state.queue[position]
            end += 1
        saved.queue_length[row, resource] = end - start
    saved.uses_left[row] = memory.uses_left
    saved.hold_time[row] = memory.hold_time
    saved.hold_device[row] = memory.hold_device
    saved.hold_bytes[row] = memory.hold_bytes
    saved.held[row] = memory.held
    saved.peak[row] = memory.peak


@compiled
def restore(
    tables: Tables,
    state: State,
    memory: Memory,
    saved: Checkpoints,
    moment: int,
    placement: NDArray[np.int32],
) -> None:
    """Return to a moment of the saved step, with a placement int32[G] from then on."""
    row = saved.row[moment]
    for op in range(len(tables.group_of)):
        state.device_of[op] = placement[tables.group_of[op]]
    state.clock[0] = saved.clock[row]
    state.num_done[0] = saved.num_done[row]
    state.missing[:] = saved.missing[row]
    state.running[:] = saved.running[row]
    state.target[:] = saved.target[row]
    state.next_time[:] = saved.next_time[row]
    state.free_at[:] = saved.free_at[row]
    state.op_start[:] = saved.op_start
    lay_out(tables, placement, state.region)
    saved_position = 0
    for resource in range(len(state.head)):
        length = saved.queue_length[row, resource]
        start = state.region[resource]
        state.head[resource] = start
        state.tail[resource] = start + length
        for position in range(start, start + length):
            state.queue[position] = saved.queue[row, saved_position]
            saved_position += 1
    memory.store_of_input[:] = saved.store_of_input
    memory.uses_left[:] = saved.uses_left[row]
    memory.hold_time[:] = saved.hold_time[row]
    memory.hold_device[:] = saved.hold_device[row]
    memory.hold_bytes[:] = saved.hold_bytes[row]
    memory.held[:] = saved.held[row]
    memory.peak[:] = saved.peak[row]


@compiled
def equals(
    tables: Tables, state: State, memory: Memory, saved: Checkpoints, row: int, then: float
) -> bool:
    """Return whether all that the rest of a step depends on is as in a saved row."""
    return (
        then == saved.next_event[row]
        and then < NEVER
        and np.array_equal(state.next_time, saved.next_time[row])
        and np.array_equal(state.free_at, saved.free_at[row])
        and np.array_equal(memory.hold_time, saved.hold_time[row])
        and np.array_equal(memory.held, saved.held[row])
        and np.array_equal(memory.peak, saved.peak[row])
        and equal_queues(tables, state, saved, row)
        and equal_picks(state, memory, saved, row)
        and np.array_equal(state.missing, saved.missing[row])
        and np.array_equal(memory.uses_left, saved.uses_left[row])
    )


@compiled
def equal_queues(tables: Tables, state: State, saved: Checkpoints, row: int) -> bool:
    """Return whether the queues hold what they hold in a saved row, bound for the same devices."""
    num_devices = len(tables.op_overhead)
    saved_position = 0
    for resource in range(len(state.head)):
        head, tail = state.head[resource], state.tail[resource]
        if tail - head != saved.queue_length[row, resource]:
            return False
        for position in range(head, tail):
            member = state.queue[position]
            if member != saved.queue[row, saved_position]:
                return False
            saved_position += 1
            if resource >= num_devices:
                reader = tables.readers[member] & OP
                if state.device_of[reader] != saved.device_of[reader]:
                    return False
    return True


@compiled
def equal_picks(state: State, memory: Memory, saved: Checkpoints, row: int) -> bool:
    """Return whether what runs, and what takes memory later, is as in a saved row."""
    for resource in range(len(state.running)):
        if state.next_time[resource] != NEVER and (
            state.running[resource] != saved.running[row, resource]
            or state.target[resource] != saved.target[row, resource]
        ):
            return False
        if memory.hold_time[resource] != NEVER and (
            memory.hold_device[resource] != saved.hold_device[row, resource]
            or memory.hold_bytes[resource] != saved.hold_bytes[row, resource]
        ):
            return False
    return True
