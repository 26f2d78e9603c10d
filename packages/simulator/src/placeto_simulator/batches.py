"""Batches of placements, simulated one by one in compiled code."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import Simulate, event_loop
from placeto_simulator.state import NEVER, Log, Memory, State
from placeto_simulator.tables import Tables
from placeto_simulator.walking import Walk, walking


class Loops(NamedTuple):
    """What is simulated: one placement with a log, walks, and batches."""

    log: Simulate
    walk: Walk
    runtimes: Callable[..., None]
    evaluate: Callable[..., None]
    schedule: Callable[..., None]


def _loops(name: str, *, has_many_resources: bool, backward_first: bool) -> Loops:
    simulate_runtime = event_loop(
        f"simulate_runtime_{name}",
        tracks_memory=False,
        keeps_log=False,
        has_many_resources=has_many_resources,
        backward_first=backward_first,
    )
    simulate_memory = event_loop(
        f"simulate_memory_{name}",
        tracks_memory=True,
        keeps_log=False,
        has_many_resources=has_many_resources,
        backward_first=backward_first,
    )
    simulate_log = event_loop(
        f"simulate_log_{name}",
        tracks_memory=True,
        keeps_log=True,
        has_many_resources=has_many_resources,
        backward_first=backward_first,
    )

    def evaluate_runtimes(
        tables: Tables,
        state: State,
        memory: Memory,
        log: Log,
        placements: NDArray[np.int32],
        runtime: NDArray[np.float64],
    ) -> None:
        """Simulate placements int32[B, G] one by one into runtime[B]."""
        for row in range(len(placements)):
            runtime[row] = simulate_runtime(tables, state, memory, log, placements[row])

    def evaluate(
        tables: Tables,
        state: State,
        memory: Memory,
        log: Log,
        placements: NDArray[np.int32],
        runtime: NDArray[np.float64],
        peak_memory: NDArray[np.int64],
    ) -> None:
        """Simulate placements int32[B, G] one by one into runtime[B] and peak_memory[B, D]."""
        for row in range(len(placements)):
            runtime[row] = simulate_memory(tables, state, memory, log, placements[row])
            add_parameters(tables, memory, placements[row], peak_memory[row])

    def evaluate_schedules(
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
        """Do what `evaluate` does, and write when groups are at work into start and end[B, G]."""
        for row in range(len(placements)):
            runtime[row] = simulate_memory(tables, state, memory, log, placements[row])
            add_parameters(tables, memory, placements[row], peak_memory[row])
            start[row], end[row] = NEVER, 0.0
            for op in range(len(tables.num_inputs)):
                group = tables.group_of[op]
                start[row, group] = min(start[row, group], state.op_start[op])
                end[row, group] = max(end[row, group], state.op_end[op])

    functions: list[Callable[..., None]] = [evaluate_runtimes, evaluate, evaluate_schedules]
    for function in functions:
        function.__name__ = function.__qualname__ = f"{function.__name__}_{name}"
    walk = walking(name, simulate_memory, add_parameters)
    return Loops(simulate_log, walk, *[compiled(function) for function in functions])


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


FEW = 16
"""Events of so many resources are looked through one by one; among more a knockout is faster."""

FIFO_FEW = _loops("fifo_few", has_many_resources=False, backward_first=False)
FIFO_MANY = _loops("fifo_many", has_many_resources=True, backward_first=False)
BACKWARD_FIRST = _loops("backward_first", has_many_resources=True, backward_first=True)


def loops_of(queue: str, num_resources: int) -> Loops:
    """Return the loops for a queue discipline (`Cluster.queue`) and so many resources."""
    if queue == "backward-first":
        return BACKWARD_FIRST
    return FIFO_FEW if num_resources <= FEW else FIFO_MANY
