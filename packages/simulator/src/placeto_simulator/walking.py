"""The common part of the walks of both evaluators, and the pairs that critical moves pick from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Moves, PlacementProblem, Walks, check_moves, compiled
from placeto_simulator.placements import checked_placements


class Sets(NamedTuple):
    """Tables that all walks share: S sets of groups, D devices.

    Attributes
    ----------
    first_member, members : int32[S + 1], int32[]
        As of `placeto_graphs.Moves`.
    neighbours, set_with : int32[P, 2], int32[L, G]
        The same.
    cannot_run : bool[S, D]
        Devices where a group of a set cannot run.
    memory_bytes : int64[D]
        Memory of each device.
    seconds_per_byte : float
        Seconds that each byte more than that costs.
    """

    first_member: NDArray[np.int32]
    members: NDArray[np.int32]
    neighbours: NDArray[np.int32]
    set_with: NDArray[np.int32]
    cannot_run: NDArray[np.bool_]
    memory_bytes: NDArray[np.int64]
    seconds_per_byte: float


def walks_of(
    problem: PlacementProblem, placements: Any, moves: Moves, run: Callable[..., None]
) -> Walks:
    """Return where walks lead that compiled code runs, given sets, and arrays to read and write."""
    rows = checked_placements(problem, placements)  # a copy, which walks change
    sets = Sets(
        moves.first_member,
        moves.members,
        moves.neighbours,
        moves.set_with,
        check_moves(problem, rows, moves),
        problem.cluster.memory_bytes,
        moves.seconds_per_byte,
    )
    best, runtime = np.empty_like(rows), np.empty(len(rows))
    peak_memory = np.empty((len(rows), problem.num_devices), np.int64)
    cost = np.empty((len(rows), 1 + moves.num_moves))
    given = (moves.set_of, moves.device, moves.allowance, moves.pick)
    run(sets, rows, runtime, peak_memory, best, cost, *given)
    return Walks(
        placement=rows,
        cost=cost,
        best_placement=best,
        best_runtime=runtime,
        best_peak_memory=peak_memory,
    )


@compiled
def list_pairs(
    neighbours: NDArray[np.int32],
    placement: NDArray[np.int32],
    is_critical: NDArray[np.bool_],
    pairs: NDArray[np.int32],
) -> int:
    """List the critical groups and their neighbours on other devices; return how many pairs."""
    count = 0
    for number in range(len(neighbours)):
        group, neighbour = neighbours[number]
        if is_critical[group] and placement[group] != placement[neighbour]:
            pairs[count] = group, neighbour
            count += 1
    return count


@compiled
def lacking(limits: NDArray[np.int64], memory: NDArray[np.int64]) -> int:
    """Return the most bytes that a device lacks of those that it needs."""
    excess = 0
    for device in range(len(memory)):
        excess = max(excess, memory[device] - limits[device])
    return excess


@compiled
def keep_best(
    row: int,
    placement: NDArray[np.int32],
    memory: NDArray[np.int64],
    best: NDArray[np.int32],
    peak_memory: NDArray[np.int64],
) -> None:
    """Write a placement and its memory down; the errors of slices would take seconds to compile."""
    for device in range(len(memory)):
        peak_memory[row, device] = memory[device]
    for group in range(len(placement)):
        best[row, group] = placement[group]
