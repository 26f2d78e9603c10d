"""Batches of placements and searches' moves: checked, and simulated in compiled code."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Moves,
    PlacementProblem,
    Walks,
    called_by_compiled,
    check_moves,
    compiled,
)
from placeto_simulator.event_loop import simulate
from placeto_simulator.tables import NEVER, State, Tables

REASONS = ("nothing", "input", "order", "resource")
NOTHING, INPUT, ORDER, RESOURCE = range(4)


class Walking(NamedTuple):
    """C walks of N moves with S sets of groups, for compiled code.

    Its first fields are results, as of `Walks`. What follows them is as of `Moves`, and then
    bool[S, D], the devices where a group of a set cannot run, and int64[D], the memory of each.
    The last two are room for each walk, because compiled code makes no arrays.
    """

    cost: NDArray[np.float64]
    best_placement: NDArray[np.int32]
    set_of: NDArray[np.int32]
    device: NDArray[np.int32]
    allowance: NDArray[np.float64]
    pick: NDArray[np.float64]
    first_member: NDArray[np.int32]
    members: NDArray[np.int32]
    neighbours: NDArray[np.int32]
    set_with: NDArray[np.int32]
    memory_penalty: float
    cannot_run: NDArray[np.bool_]
    memory_bytes: NDArray[np.int64]
    previous_device: NDArray[np.int32]
    pairs: NDArray[np.int32]


class Batch(NamedTuple):
    """B placements of G groups on D devices, and what they cost; or walks, one from each.

    A walk takes its placement to its end. Its runtime and peak memory are those of its best one.
    """

    placements: NDArray[np.int32]  # [B, G], the device of each group
    runtime: NDArray[np.float64]  # [B] seconds
    peak_memory: NDArray[np.int64]  # [B, D], the most bytes
    start: NDArray[np.float64]  # [B, G] seconds of each group; [B, 0] if they are not wanted
    end: NDArray[np.float64]
    is_critical: NDArray[np.bool_]  # [B, G], on the critical path; [B, 0] if that is not wanted
    tracks_memory: bool  # whether more than the runtimes is wanted, which take half of the time
    walking: Walking


@cache
def loop_of(queue: str) -> Callable[..., None]:
    """Return the loop for a queue discipline (`Cluster.queue`), compiled under its name.

    It evaluates and walks, because each function that calls `simulate` compiles most of it anew.
    """
    name, first = queue.replace("-", "_"), {"BACKWARD_FIRST": queue == "backward-first"}
    loop = called_by_compiled(simulate, name=f"simulate_{name}", constants=first)
    return compiled(walk, name=f"walk_{name}", constants={"simulate": loop, "price": loop})


def batch_of(
    problem: PlacementProblem,
    placements: Any,
    *,
    times: bool = False,
    path: bool = False,
    tracks_memory: bool = True,
    moves: Moves | None = None,
) -> Batch:
    """Return a batch that is not evaluated yet, or walks that have not begun."""
    rows = np.array(problem.check_placements(placements))  # a copy, which code may write to
    count, num_groups = rows.shape
    num_times = num_groups if times else 0
    walking = NO_WALKS
    if moves is not None:
        path = len(moves.neighbours) > 0
        cannot_run = check_moves(problem, rows, moves)
        walking = _walking_of(moves, num_groups, cannot_run, problem.cluster.memory_bytes)
    return Batch(
        placements=rows,
        runtime=np.empty(count),
        peak_memory=np.empty((count, problem.num_devices), np.int64),
        start=np.empty((count, num_times)),
        end=np.empty((count, num_times)),
        is_critical=np.empty((count, num_groups if path else 0), np.bool_),
        tracks_memory=tracks_memory,
        walking=walking,
    )


def _walking_of(
    moves: Moves,
    num_groups: int,
    cannot_run: NDArray[np.bool_],
    memory_bytes: NDArray[np.int64],
) -> Walking:
    return Walking(
        cost=np.empty((moves.num_walks, 1 + moves.num_moves)),
        best_placement=np.empty((moves.num_walks, num_groups), np.int32),
        set_of=moves.set_of,
        device=moves.device,
        allowance=moves.allowance,
        pick=moves.pick,
        first_member=moves.first_member,
        members=moves.members,
        neighbours=moves.neighbours,
        set_with=moves.set_with,
        memory_penalty=moves.memory_penalty,
        cannot_run=cannot_run,
        memory_bytes=memory_bytes,
        previous_device=np.empty((moves.num_walks, num_groups), np.int32),
        pairs=np.empty((moves.num_walks, *moves.neighbours.shape), np.int32),
    )


def evaluation_of(batch: Batch) -> EvaluationBatch:
    """Return what placements cost."""
    return EvaluationBatch(runtime=batch.runtime, peak_memory=batch.peak_memory)


def walks_of(batch: Batch) -> Walks:
    """Return where walks led."""
    return Walks(
        placement=batch.placements,
        cost=batch.walking.cost,
        best_placement=batch.walking.best_placement,
        best_runtime=batch.runtime,
        best_peak_memory=batch.peak_memory,
    )


_none: Any = np.empty((0, 0))
_zero = np.zeros(1, np.int32)
_no_moves = Moves(
    set_of=_none, device=_none, allowance=_none, first_member=_zero, members=_zero[:0]
)
NO_WALKS = _walking_of(_no_moves, 0, np.empty((0, 0), np.bool_), np.empty(0, np.int64))

# --- walks: the functions that they call are of the simulator, or of another evaluator ----------

price = simulate
HAS_TIMES = True


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
    num_ops, num_reads = len(tables.num_awaited), len(tables.readers)
    for group in range(len(is_critical)):
        is_critical[group] = False
    element, count = np.int64(0), 0
    for op in range(num_ops):
        if state.end[op] > state.end[element]:
            element = np.int64(op)
    while True:
        start, reason, cause = state.start[element], NOTHING, np.int64(state.predecessor[element])
        if element >= num_ops:
            reason, producer = RESOURCE, np.int64(tables.producer_of_read[element - num_ops])
            if state.end[producer] == start:
                reason, cause = INPUT, producer
        else:
            if cause < num_ops:
                reason = RESOURCE
            for position in range(tables.first_awaited[element], tables.first_awaited[element + 1]):
                if state.end[tables.awaited[position]] == start:
                    reason, cause = ORDER, np.int64(tables.awaited[position])
                    break
            for position in range(tables.first_input[element], tables.first_input[element + 1]):
                store = np.int64(state.store_of_input[position])
                is_copy = store < num_reads
                maker = num_ops + store if is_copy else np.int64(tables.producer_of_input[position])
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
def lacking(limits: NDArray[np.int64], memory: NDArray[np.int64]) -> float:
    """Return the most that a device lacks, as a fraction of its memory."""
    excess = 0.0
    for device in range(len(memory)):
        excess = max(excess, memory[device] / max(limits[device], 1) - 1.0)
    return excess


@called_by_compiled
def copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy a row; the errors of slices would take seconds to compile."""
    for position in range(len(source)):
        target[position] = source[position]


@called_by_compiled
def write_times(
    tables: Tables, state: State, start: NDArray[np.float64], end: NDArray[np.float64]
) -> None:
    """Write when each group starts and ends: its first and its last op."""
    for group in range(len(start)):
        start[group], end[group] = NEVER, 0.0
    for op in range(len(tables.num_awaited)):
        group = tables.group_of[op]
        start[group] = min(start[group], state.start[op])
        end[group] = max(end[group], state.end[op])


@called_by_compiled
def list_pairs(
    neighbours: NDArray[np.int32],
    placement: NDArray[np.int32],
    is_critical: NDArray[np.bool_],
    pairs: NDArray[np.int32],
) -> int:
    """List the critical groups and their neighbours on other devices; return how many pairs."""
    count = 0
    for edge in range(len(neighbours)):
        group, neighbour = neighbours[edge, 0], neighbours[edge, 1]
        if is_critical[group] and placement[group] != placement[neighbour]:
            pairs[count, 0], pairs[count, 1] = group, neighbour
            count += 1
    return count


def walk(  # noqa: PLR0915
    tables: Any, state: Any, batch: Batch, begin: int, end: int
) -> None:
    """Evaluate some placements of a batch, and walk from each if there are moves.

    The functions that it calls keep in ``state`` what the present placement takes, with its memory
    in ``state.peak``: `simulate` of a new placement, `price` of one after `move_group`.
    """
    walking = batch.walking
    has_path, has_walks = batch.is_critical.shape[1] > 0, len(walking.cost) > 0
    for row in range(begin, end):
        placement, is_critical = batch.placements[row], batch.is_critical[row]
        peak_memory = batch.peak_memory[row]
        state.tracks_memory[0] = batch.tracks_memory
        batch.runtime[row] = seconds = simulate(tables, state, placement)
        if not batch.tracks_memory:
            continue
        copy(state.peak, peak_memory)
        if has_path:
            mark_critical(tables, state, placement, is_critical)
        if HAS_TIMES and batch.start.shape[1] > 0:
            write_times(tables, state, batch.start[row], batch.end[row])
        if not has_walks:
            continue

        best_placement, previous_device = walking.best_placement[row], walking.previous_device[row]
        pairs = walking.pairs[row]
        copy(placement, best_placement)
        best_excess = lacking(walking.memory_bytes, peak_memory)
        present_cost = best_cost = seconds * (1.0 + walking.memory_penalty * best_excess)
        walking.cost[row, 0] = present_cost
        num_pairs = list_pairs(walking.neighbours, placement, is_critical, pairs)
        num_tried = num_likely = 0
        for move in range(walking.set_of.shape[1]):
            chosen_set, target = walking.set_of[row, move], walking.device[row, move]
            walking.cost[row, 1 + move] = np.nan
            if walking.pick[row, move] < 1:
                if num_pairs == 0:
                    continue
                pair = np.int64(walking.pick[row, move] * num_pairs)
                group, neighbour = pairs[pair, 0], pairs[pair, 1]
                chosen_set, target = walking.set_with[chosen_set, group], placement[neighbour]
            first, last = walking.first_member[chosen_set], walking.first_member[chosen_set + 1]
            changes = False
            for position in range(first, last):
                group = walking.members[position]
                previous_device[group] = placement[group]
                changes |= placement[group] != target
            if not changes or walking.cannot_run[chosen_set, target]:
                continue
            for position in range(first, last):
                move_group(tables, state, placement, walking.members[position], target)
            max_cost = present_cost + walking.allowance[row, move]
            # Without memory it is simulated in about half of the time, which often is enough.
            cost, excess = np.inf, 0.0
            num_tried += 1
            for tracks_memory in range(1 if 2 * num_likely > num_tried else 0, 2):
                state.tracks_memory[0] = tracks_memory == 1
                seconds = price(tables, state, placement)
                if tracks_memory == 1:
                    excess = lacking(walking.memory_bytes, state.peak)
                    cost = seconds * (1.0 + walking.memory_penalty * excess)
                elif seconds > max_cost:
                    break
            walking.cost[row, 1 + move] = cost
            num_likely += seconds <= max_cost
            if cost <= max_cost:
                present_cost = cost
                if has_path:
                    mark_critical(tables, state, placement, is_critical)
                    num_pairs = list_pairs(walking.neighbours, placement, is_critical, pairs)
                is_better = present_cost < best_cost
                if (excess > 0) != (best_excess > 0):
                    is_better = excess == 0  # what fits comes first
                if is_better:
                    best_cost, best_excess = present_cost, excess
                    batch.runtime[row] = seconds
                    copy(state.peak, peak_memory)
                    copy(placement, best_placement)
            else:
                for position in range(first, last):
                    group = walking.members[position]
                    move_group(tables, state, placement, group, previous_device[group])
