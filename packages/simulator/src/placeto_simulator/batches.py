"""Batches of placements and searches' moves, each simulated in compiled code."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import simulate
from placeto_simulator.state import NEVER, Log, Memory, State
from placeto_simulator.tables import Tables
from placeto_simulator.walking import Sets, keep_best, lacking, list_pairs

runtime_of = simulate  # in `walk` the variant without memory


class Loops(NamedTuple):
    """One variant of the event loop: one placement with memory and a log, and many at once."""

    memory: Callable[..., float]
    walk: Callable[..., None]
    runtimes: Callable[..., None]
    evaluate: Callable[..., None]


@cache
def loops_of(queue: str) -> Loops:
    """Return the loops for a queue discipline (`Cluster.queue`), compiled under its name."""
    name = queue.replace("-", "_")

    def loop(kind: str, *, tracks_memory: bool) -> Callable[..., float]:
        constants = {"TRACKS_MEMORY": tracks_memory, "BACKWARD_FIRST": queue == "backward-first"}
        return compiled(simulate, name=f"simulate_{kind}_{name}", constants=constants)

    def over(function: Callable[..., Any], simulated: Callable[..., float]) -> Callable[..., Any]:
        constants = {"simulate": simulated, "runtime_of": without_memory}
        return compiled(function, name=f"{function.__name__}_{name}", constants=constants)

    with_memory = loop("memory", tracks_memory=True)
    without_memory = loop("runtime", tracks_memory=False)
    return Loops(
        memory=with_memory,
        walk=over(walk, with_memory),
        runtimes=over(runtimes, without_memory),
        evaluate=over(evaluate, with_memory),
    )


def runtimes(
    tables: Tables,
    state: State,
    memory: Memory,
    log: Log,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
) -> None:
    """Simulate placements int32[B, G] one by one into runtime[B]."""
    for row in range(len(placements)):
        runtime[row] = simulate(tables, state, memory, log, placements[row])


def evaluate(
    tables: Tables,
    state: State,
    memory: Memory,
    log: Log,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    peak_memory: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """Simulate placements int32[B, G] one by one into runtime[B] and peak_memory[B, D].

    Start and end of each group go into start and end[B, G], unless these are of shape [B, 0].
    """
    for row in range(len(placements)):
        runtime[row] = simulate(tables, state, memory, log, placements[row])
        add_parameters(tables, memory, placements[row], peak_memory[row])
        if start.shape[1] == 0:
            continue
        start[row], end[row] = NEVER, 0.0
        for op in range(len(tables.num_awaited)):
            group = tables.group_of[op]
            start[row, group] = min(start[row, group], state.op_start[op])
            end[row, group] = max(end[row, group], state.op_end[op])


def walk(
    tables: Tables,
    state: State,
    memory: Memory,
    log: Log,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    peak_memory: NDArray[np.int64],
    best: NDArray[np.int32],
    cost: NDArray[np.float64],
    set_of: NDArray[np.int32],
    device: NDArray[np.int32],
    allowance: NDArray[np.float64],
    pick: NDArray[np.float64],
    sets: Sets,
) -> None:
    """Move placements int32[C, G]; write runtime[C] and peak_memory[C, D] of best[C, G]."""
    peak = np.empty(peak_memory.shape[1], np.int64)
    before = np.empty(placements.shape[1], np.int32)
    pairs = np.empty_like(sets.neighbours)
    limits = sets.memory_bytes
    for row in range(len(placements)):
        placement = placements[row]
        runtime[row] = simulate(tables, state, memory, log, placement)
        add_parameters(tables, memory, placement, peak)
        best_lacks = lacking(limits, peak)
        keep_best(row, placement, peak, best, peak_memory)
        now = best_cost = cost[row, 0] = runtime[row] + sets.seconds_per_byte * best_lacks
        num_pairs = critical_pairs(tables, state, sets, placement, pairs)
        num_tried = num_likely = 0
        for move in range(set_of.shape[1]):
            chosen, there = set_of[row, move], device[row, move]
            if pick[row, move] < 1:
                if num_pairs == 0:
                    cost[row, 1 + move] = np.nan
                    continue
                group, neighbour = pairs[int(pick[row, move] * num_pairs)]
                chosen, there = sets.set_with[chosen, group], placement[neighbour]
            start, end = sets.first_member[chosen], sets.first_member[chosen + 1]
            changes = False
            for position in range(start, end):
                group = sets.members[position]
                before[position - start] = placement[group]
                changes |= placement[group] != there
            if not changes or sets.cannot_run[chosen, there]:
                cost[row, 1 + move] = np.nan
                continue
            for position in range(start, end):
                placement[sets.members[position]] = there
            most = now + allowance[row, move]
            # Without memory it is simulated in about half of the time, which often is enough.
            then, seconds, lacks = np.inf, np.inf, 0
            num_tried += 1
            if (
                2 * num_likely > num_tried
                or runtime_of(tables, state, memory, log, placement) <= most
            ):
                seconds = simulate(tables, state, memory, log, placement)
                add_parameters(tables, memory, placement, peak)
                lacks = lacking(limits, peak)
                then = seconds + sets.seconds_per_byte * lacks
            cost[row, 1 + move] = then
            num_likely += seconds <= most
            if then <= most:
                now = then
                num_pairs = critical_pairs(tables, state, sets, placement, pairs)
                if now < best_cost if (lacks > 0) == (best_lacks > 0) else lacks == 0:
                    best_cost, best_lacks = now, lacks
                    runtime[row] = seconds
                    keep_best(row, placement, peak, best, peak_memory)
            else:
                for position in range(start, end):
                    placement[sets.members[position]] = before[position - start]


@compiled
def critical_pairs(
    tables: Tables,
    state: State,
    sets: Sets,
    placement: NDArray[np.int32],
    pairs: NDArray[np.int32],
) -> int:
    """List what critical moves pick from, of what was simulated last; return how many pairs."""
    if len(pairs) == 0:
        return 0
    is_critical = np.empty(len(placement), np.bool_)
    mark_critical(tables, state, is_critical)
    return list_pairs(sets.neighbours, placement, is_critical, pairs)


@compiled
def mark_critical(tables: Tables, state: State, is_critical: NDArray[np.bool_]) -> None:
    """Mark the groups of bool[G] whose ops are on the critical path of what was simulated last.

    The path is followed backwards from the op that ends last, to the cause of each start: an input
    that was made on the same device, an op that had to be done, the op before it on the device, or
    else the input from another device that could arrive last. Queues of links are passed over. Each
    cause was done before the op started, so that the path ends.
    """
    group_of, compute_time = tables.group_of, tables.compute_time
    first_input, producer_of_input = tables.first_input, tables.producer_of_input
    tensor_of_input, tensor_bytes = tables.tensor_of_input, tables.tensor_bytes
    first_awaited, awaited = tables.first_awaited, tables.awaited
    latency, bandwidth, op_overhead = tables.latency, tables.bandwidth, tables.op_overhead
    device_of, op_start, op_end = state.device_of, state.op_start, state.op_end
    op_before = state.op_before
    is_critical[:] = False
    op = int(np.argmax(op_end))
    while op >= 0:
        is_critical[group_of[op]] = True
        start, here = op_start[op], device_of[op]
        arrival, local, cause = -1.0, -1, -1
        for position in range(first_input[op], first_input[op + 1]):
            producer = int(producer_of_input[position])
            there, then = device_of[producer], op_end[producer]
            if there == here:
                if then == start:
                    local = producer
                    break
                continue
            size = tensor_bytes[tensor_of_input[position]]
            then += latency[there, here] + size / bandwidth[there, here]
            if then > arrival:
                arrival, cause = then, producer
        if local < 0:
            for position in range(first_awaited[op], first_awaited[op + 1]):
                if op_end[awaited[position]] == start:
                    local = int(awaited[position])
                    break
        before = int(op_before[op])
        if local < 0 and before < len(op_end):
            free = op_end[before]
            if compute_time[before, here] > 0:
                free += op_overhead[here]
            if free >= start:
                local = before
        op = local if local >= 0 else cause


@compiled
def add_parameters(
    tables: Tables,
    memory: Memory,
    placement: NDArray[np.int32],
    peak_memory: NDArray[np.int64],
) -> None:
    """Write the peak memory of each device: parameters stay for the whole step."""
    for device in range(len(peak_memory)):  # the errors of a slice take two seconds to compile
        peak_memory[device] = memory.peak[device]
    for group in range(len(placement)):
        peak_memory[placement[group]] += tables.group_parameter_bytes[group]
