"""Batches of placements and searches' moves: checked, and simulated in compiled code."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Moves, PlacementProblem, Walks, check_moves, compiled
from placeto_simulator.event_loop import simulate
from placeto_simulator.tables import NEVER, State, Tables

called_by_compiled = partial(compiled, called_by_python=False)

REASONS = ("nothing", "input", "order", "resource")
NOTHING, INPUT, ORDER, RESOURCE = range(4)


class Batch(NamedTuple):
    """B placements of G groups on D devices, and what they cost."""

    placements: NDArray[np.int32]  # [B, G], the device of each group
    runtime: NDArray[np.float64]  # [B] seconds
    peak_memory: NDArray[np.int64]  # [B, D], the most bytes
    start: NDArray[np.float64]  # [B, G] seconds of each group; [B, 0] if they are not wanted
    end: NDArray[np.float64]
    is_critical: NDArray[np.bool_]  # [B, G], on the critical path; [B, 0] if that is not wanted
    tracks_memory: bool  # whether more than the runtimes is wanted, which take half of the time


class Walking(NamedTuple):
    """C walks of N moves with S sets of groups, for compiled code.

    Its first fields are results, as of `Walks`. What follows them is as of `Moves`, and then
    bool[S, D], the devices where a group of a set cannot run, and int64[D], the memory of each.
    The last three are room for each walk, because compiled code makes no arrays.
    """

    placement: NDArray[np.int32]
    cost: NDArray[np.float64]
    best_placement: NDArray[np.int32]
    best_runtime: NDArray[np.float64]
    best_peak_memory: NDArray[np.int64]
    set_of: NDArray[np.int32]
    device: NDArray[np.int32]
    allowance: NDArray[np.float64]
    pick: NDArray[np.float64]
    first_member: NDArray[np.int32]
    members: NDArray[np.int32]
    neighbours: NDArray[np.int32]
    set_with: NDArray[np.int32]
    seconds_per_byte: float
    cannot_run: NDArray[np.bool_]
    memory_bytes: NDArray[np.int64]
    is_critical: NDArray[np.bool_]
    before: NDArray[np.int32]
    pairs: NDArray[np.int32]


class Loops(NamedTuple):
    """One variant of the event loop, over batches and over walks."""

    evaluate: Callable[..., None]
    walk: Callable[..., None]


@cache
def loops_of(queue: str) -> Loops:
    """Return the loops for a queue discipline (`Cluster.queue`), compiled under its name."""
    name, first = queue.replace("-", "_"), {"BACKWARD_FIRST": queue == "backward-first"}
    loop = called_by_compiled(simulate, name=f"simulate_{name}", constants=first)
    simulated = {"simulate": loop, "price": loop}
    return Loops(
        evaluate=compiled(evaluate, name=f"evaluate_{name}", constants={"simulate": loop}),
        walk=compiled(walk, name=f"walk_{name}", constants=simulated),
    )


def walking_of(problem: PlacementProblem, placements: Any, moves: Moves) -> Walking:
    """Return walks that have not begun."""
    rows = np.array(problem.check_placements(placements))  # a copy, which walks change
    return Walking(
        placement=rows,
        cost=np.empty((len(rows), 1 + moves.num_moves)),
        best_placement=np.empty_like(rows),
        best_runtime=np.empty(len(rows)),
        best_peak_memory=np.empty((len(rows), problem.num_devices), np.int64),
        set_of=moves.set_of,
        device=moves.device,
        allowance=moves.allowance,
        pick=moves.pick,
        first_member=moves.first_member,
        members=moves.members,
        neighbours=moves.neighbours,
        set_with=moves.set_with,
        seconds_per_byte=moves.seconds_per_byte,
        cannot_run=check_moves(problem, rows, moves),
        memory_bytes=problem.cluster.memory_bytes,
        is_critical=np.empty(rows.shape, np.bool_),
        before=np.empty_like(rows),
        pairs=np.empty((len(rows), *moves.neighbours.shape), np.int32),
    )


def walks_of(walking: Walking) -> Walks:
    """Return where walks led."""
    return Walks(
        placement=walking.placement,
        cost=walking.cost,
        best_placement=walking.best_placement,
        best_runtime=walking.best_runtime,
        best_peak_memory=walking.best_peak_memory,
    )


def evaluate(tables: Tables, state: State, batch: Batch, begin: int, end: int) -> None:
    """Simulate some placements of a batch, and write what is wanted of each."""
    state.tracks_memory[0] = batch.tracks_memory
    for row in range(begin, end):
        batch.runtime[row] = simulate(tables, state, batch.placements[row])
        if not batch.tracks_memory:
            continue
        for device in range(len(state.peak)):  # the errors of a slice take two seconds to compile
            batch.peak_memory[row, device] = state.peak[device]
        if batch.is_critical.shape[1] > 0:
            mark_critical(tables, state, batch.placements[row], batch.is_critical[row])
        if batch.start.shape[1] == 0:
            continue
        batch.start[row], batch.end[row] = NEVER, 0.0
        for op in range(len(tables.num_awaited)):
            group = tables.group_of[op]
            batch.start[row, group] = min(batch.start[row, group], state.start[op])
            batch.end[row, group] = max(batch.end[row, group], state.end[op])


# --- walks: the functions that they call are of the simulator, or of another evaluator ----------

price = simulate


@called_by_compiled
def move_group(
    _tables: Tables, _state: State, placement: NDArray[np.int32], group: int, device: int
) -> None:
    """Move a group to a device."""
    placement[group] = device


@called_by_compiled
def mark_critical(
    tables: Tables, state: State, _placement: NDArray[np.int32], is_critical: NDArray[np.bool_]
) -> None:
    """Write the critical path of what was simulated last, and mark its groups, bool[G].

    Each element of it starts when it gets what it waited for last: an input, an op that had to be
    done, or else its device or link, which was busy with the element before. The first one waits
    for nothing.
    """
    is_critical[:] = False
    num_ops, num_reads = len(tables.num_awaited), len(tables.readers)
    element = int(np.argmax(state.end[:num_ops]))
    count = 0
    while True:
        start, reason, cause = state.start[element], NOTHING, int(state.before[element])
        if element >= num_ops:
            reason, producer = RESOURCE, int(tables.producer_of_read[element - num_ops])
            if state.end[producer] == start:
                reason, cause = INPUT, producer
        else:
            if cause < num_ops:
                reason = RESOURCE
            for position in range(tables.first_awaited[element], tables.first_awaited[element + 1]):
                if state.end[tables.awaited[position]] == start:
                    reason, cause = ORDER, int(tables.awaited[position])
                    break
            for position in range(tables.first_input[element], tables.first_input[element + 1]):
                store = int(state.store_of_input[position])
                is_copy = store < num_reads
                maker = num_ops + store if is_copy else int(tables.producer_of_input[position])
                if state.end[maker] == start:
                    reason, cause = INPUT, maker
                    break
        state.path[count], state.reason[count] = element, reason
        count += 1
        if element < num_ops:
            is_critical[tables.group_of[element]] = True
        if reason == NOTHING:
            break
        element = cause


@called_by_compiled
def lacking(limits: NDArray[np.int64], memory: NDArray[np.int64]) -> int:
    """Return the most bytes that a device lacks of those that it needs."""
    excess = 0
    for device in range(len(memory)):
        excess = max(excess, memory[device] - limits[device])
    return excess


@called_by_compiled
def keep_best(walking: Walking, row: int, seconds: float, peak: NDArray[np.int64]) -> None:
    """Write a placement and its memory down; the errors of slices would take seconds to compile."""
    walking.best_runtime[row] = seconds
    for device in range(len(peak)):
        walking.best_peak_memory[row, device] = peak[device]
    for group in range(walking.placement.shape[1]):
        walking.best_placement[row, group] = walking.placement[row, group]


@called_by_compiled
def list_pairs(
    neighbours: NDArray[np.int32],
    placement: NDArray[np.int32],
    is_critical: NDArray[np.bool_],
    pairs: NDArray[np.int32],
) -> int:
    """List the critical groups and their neighbours on other devices; return how many pairs."""
    count = 0
    for number in range(len(neighbours)):
        group, neighbour = neighbours[number, 0], neighbours[number, 1]
        if is_critical[group] and placement[group] != placement[neighbour]:
            pairs[count, 0], pairs[count, 1] = group, neighbour
            count += 1
    return count


def walk(tables: Any, state: Any, walking: Walking, begin: int, end: int) -> None:
    """Walk some of several walks.

    The functions that it calls keep in ``state`` what the present placement takes, with its memory
    in ``state.peak``: `simulate` of a new placement, `price` of one after `move_group`.
    """
    for row in range(begin, end):
        placement, is_critical = walking.placement[row], walking.is_critical[row]
        before, pairs = walking.before[row], walking.pairs[row]
        state.tracks_memory[0] = True
        seconds = simulate(tables, state, placement)
        best_lacks = lacking(walking.memory_bytes, state.peak)
        keep_best(walking, row, seconds, state.peak)
        walking.cost[row, 0] = now = best_cost = seconds + walking.seconds_per_byte * best_lacks
        num_tried = num_likely = 0
        num_pairs = -1
        for move in range(walking.set_of.shape[1]):
            if num_pairs < 0:  # before the state is that of another placement
                num_pairs = 0
                if len(pairs) > 0:
                    mark_critical(tables, state, placement, is_critical)
                    num_pairs = list_pairs(walking.neighbours, placement, is_critical, pairs)
            chosen, there = walking.set_of[row, move], walking.device[row, move]
            walking.cost[row, 1 + move] = np.nan
            if walking.pick[row, move] < 1:
                if num_pairs == 0:
                    continue
                pair = int(walking.pick[row, move] * num_pairs)
                group, neighbour = pairs[pair, 0], pairs[pair, 1]
                chosen, there = walking.set_with[chosen, group], placement[neighbour]
            members = walking.members[
                walking.first_member[chosen] : walking.first_member[chosen + 1]
            ]
            changes = False
            for position in range(len(members)):
                before[position] = placement[members[position]]
                changes |= before[position] != there
            if not changes or walking.cannot_run[chosen, there]:
                continue
            for position in range(len(members)):
                move_group(tables, state, placement, members[position], there)
            most = now + walking.allowance[row, move]
            # Without memory it is simulated in about half of the time, which often is enough.
            then, lacks = np.inf, 0
            num_tried += 1
            for tracks_memory in range(int(2 * num_likely > num_tried), 2):
                state.tracks_memory[0] = tracks_memory == 1
                seconds = price(tables, state, placement)
                if tracks_memory == 1:
                    lacks = lacking(walking.memory_bytes, state.peak)
                    then = seconds + walking.seconds_per_byte * lacks
                elif seconds > most:
                    break
            walking.cost[row, 1 + move] = then
            num_likely += seconds <= most
            if then <= most:
                now = then
                num_pairs = -1
                if now < best_cost if (lacks > 0) == (best_lacks > 0) else lacks == 0:
                    best_cost, best_lacks = now, lacks
                    keep_best(walking, row, seconds, state.peak)
            else:
                for position in range(len(members)):
                    move_group(tables, state, placement, members[position], before[position])
