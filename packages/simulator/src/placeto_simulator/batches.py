"""Batches of placements and searches' moves, each simulated in compiled code."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import simulate
from placeto_simulator.state import NEVER, Log, Memory, State
from placeto_simulator.tables import Sets, Tables


class Loops(NamedTuple):
    """One variant of the event loop: one placement with a log, and what goes through many."""

    log: Callable[..., float]
    walk: Callable[..., None]
    runtimes: Callable[..., None]
    evaluate: Callable[..., None]
    critical: Callable[..., None]


@cache
def loops_of(queue: str) -> Loops:
    """Return the loops for a queue discipline (`Cluster.queue`), compiled under its name."""
    name = queue.replace("-", "_")

    def loop(kind: str, *, tracks_memory: bool, keeps_log: bool) -> Callable[..., float]:
        constants = {
            "TRACKS_MEMORY": tracks_memory,
            "KEEPS_LOG": keeps_log,
            "BACKWARD_FIRST": queue == "backward-first",
        }
        return compiled(simulate, name=f"simulate_{kind}_{name}", constants=constants)

    def over(function: Callable[..., Any], simulated: Callable[..., float]) -> Callable[..., Any]:
        constants = {"simulate": simulated}
        return compiled(function, name=f"{function.__name__}_{name}", constants=constants)

    with_memory = loop("memory", tracks_memory=True, keeps_log=False)
    return Loops(
        log=loop("log", tracks_memory=True, keeps_log=True),
        walk=over(walk, with_memory),
        runtimes=over(runtimes, loop("runtime", tracks_memory=False, keeps_log=False)),
        evaluate=over(evaluate, with_memory),
        critical=over(critical, with_memory),
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

    When groups are at work goes into start and end[B, G], unless these are of shape [B, 0].
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


def critical(
    tables: Tables,
    state: State,
    memory: Memory,
    log: Log,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    is_critical: NDArray[np.bool_],
) -> None:
    """Simulate placements int32[B, G] into runtime[B], and mark their critical groups[B, G]."""
    for row in range(len(placements)):
        runtime[row] = simulate(tables, state, memory, log, placements[row])
        is_critical[row] = False
        mark_critical(tables, state, is_critical[row])


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
    sets: Sets,
) -> None:
    """Move placements int32[C, G]; write runtime[C] and peak_memory[C, D] of best[C, G]."""
    peak = np.empty(peak_memory.shape[1], np.int64)
    before = np.empty(placements.shape[1], np.int32)

    def keep_best(row: int) -> None:
        """Keep the placement that was simulated."""
        for number in range(len(peak)):
            peak_memory[row, number] = peak[number]
        for group in range(placements.shape[1]):
            best[row, group] = placements[row, group]

    def penalised(seconds: float) -> float:
        """Return what the placement that was simulated costs."""
        excess = 0
        for number in range(len(peak)):
            excess = max(excess, peak[number] - sets.memory_bytes[number])
        return seconds + sets.seconds_per_byte * excess

    for row in range(len(placements)):
        placement = placements[row]
        runtime[row] = simulate(tables, state, memory, log, placement)
        add_parameters(tables, memory, placement, peak)
        keep_best(row)
        now = best_cost = cost[row, 0] = penalised(runtime[row])
        for move in range(set_of.shape[1]):
            chosen, there = set_of[row, move], device[row, move]
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
            seconds = simulate(tables, state, memory, log, placement)
            add_parameters(tables, memory, placement, peak)
            then = cost[row, 1 + move] = penalised(seconds)
            if then <= now + allowance[row, move]:
                now = then
                if now < best_cost:
                    best_cost = now
                    runtime[row] = seconds
                    keep_best(row)
            else:
                for position in range(start, end):
                    placement[sets.members[position]] = before[position - start]


@compiled
def mark_critical(tables: Tables, state: State, is_critical: NDArray[np.bool_]) -> None:
    """Mark the groups of bool[G] whose ops are on the critical path of what was simulated last.

    From the op that ends last it goes back to what each op waited for: an input that was made on
    its device, an op that had to be done, the op before it on its device, or else the input from
    another device that could be there last. Queues of links are passed over. Each comes earlier
    by start, end and topological order, so that the way ends.
    """
    in_order = tables.topological_order
    in_order = in_order[np.argsort(state.op_end[in_order], kind="mergesort")]
    in_order = in_order[np.argsort(state.op_start[in_order], kind="mergesort")]
    before = np.full(len(tables.num_awaited), -1)
    last = np.full(len(tables.op_overhead), -1)
    for each in in_order:
        before[each] = last[state.device_of[each]]
        last[state.device_of[each]] = each
    op = int(np.argmax(state.op_end))
    while op >= 0:
        is_critical[tables.group_of[op]] = True
        op = waited_for(tables, state, op, before[op])


@compiled
def waited_for(tables: Tables, state: State, op: int, before: int) -> int:
    """Return what an op waited for last, or -1; ``before`` is the op before it on its device."""
    start, here = state.op_start[op], state.device_of[op]
    arrival, cause = -1.0, -1
    for position in range(tables.first_input[op], tables.first_input[op + 1]):
        producer, tensor = tables.producer_of_input[position], tables.tensor_of_input[position]
        there = state.device_of[producer]
        then = state.op_end[producer]
        if there != here:
            then += tables.latency[there, here]
            then += tables.tensor_bytes[tensor] / tables.bandwidth[there, here]
        elif then == start:
            return int(producer)
        if there != here and then > arrival:
            arrival, cause = then, int(producer)
    for position in range(tables.first_awaited[op], tables.first_awaited[op + 1]):
        if state.op_end[tables.awaited[position]] == start:
            return int(tables.awaited[position])
    if before >= 0:
        free = state.op_end[before]
        if tables.compute_time[before, here] > 0:
            free += tables.op_overhead[here]
        if free >= start:
            return before
    return cause


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
