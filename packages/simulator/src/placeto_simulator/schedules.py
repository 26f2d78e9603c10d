"""When each group is at work in a simulated step: a compiled loop."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import compiled
from placeto_simulator.event_loop import evaluate
from placeto_simulator.state import Memory
from placeto_simulator.state import State
from placeto_simulator.tables import Tables


@compiled
def evaluate_schedules(
    tables: Tables,
    state: State,
    memory: Memory,
    placements: NDArray[np.int32],
    runtime: NDArray[np.float64],
    peak_memory: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """Do what `evaluate` does, and write when each group is at work into start and end[B, G]."""
    for row in range(len(placements)):
        one = slice(row, row + 1)
        evaluate(tables, state, memory, placements[one], runtime[one], peak_memory[one])
        start[row], end[row] = np.inf, 0.0
        for op in range(len(tables.num_inputs)):
            group, device = tables.group_of[op], state.device_of[op]
            start[row, group] = min(start[row, group], state.op_start[op])
            op_end = state.op_start[op] + tables.compute_time[op, device]
            end[row, group] = max(end[row, group], op_end)
