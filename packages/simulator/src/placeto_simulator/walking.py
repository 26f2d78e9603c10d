"""Walks: moves that are tried one after the other, each by a simulation, in compiled code."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import Simulate
from placeto_simulator.state import Log, Memory, State
from placeto_simulator.tables import Tables

Walk = Callable[..., None]


class Sets(NamedTuple):
    """What all walks share: S sets of groups, D devices.

    Attributes
    ----------
    first_member, members : int32[S + 1], int32[]
        As of `placeto_graphs.Moves`.
    cannot_run : bool[S, D]
        Where a group of a set cannot run.
    memory_bytes : int64[D]
        What each device has.
    seconds_per_byte : float
        What each byte more than that costs.
    """

    first_member: NDArray[np.int32]
    members: NDArray[np.int32]
    cannot_run: NDArray[np.bool_]
    memory_bytes: NDArray[np.int64]
    seconds_per_byte: float


def walking(name: str, simulate: Simulate, add_parameters: Callable[..., None]) -> Walk:
    """Return the loop of walks, compiled with an event loop that tracks memory."""

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
            peak_memory[row] = peak
            best[row] = placement
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
                        peak_memory[row] = peak
                        best[row] = placement
                else:
                    for position in range(start, end):
                        placement[sets.members[position]] = before[position - start]

    walk.__name__ = walk.__qualname__ = f"walk_{name}"
    return compiled(walk)
