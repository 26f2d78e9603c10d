"""The simulated step of one placer: bars of devices and links, memory, the critical path."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_simulator import Timeline

Report = dict[str, Any]
CHUNKS = 1_000  # of a curve of memory that has more points than can be seen
DIGITS = 7  # of the runtime: what is below cannot be seen, and makes the file larger


def step_report(timeline: Timeline, levels: list[PlacementProblem]) -> Report:
    """Return what ran when in a simulated step, as columns, and the groups at each level drawn."""
    path = timeline.critical_path
    ops = np.array([step.index for step in path if step.kind == "op"], np.int64)
    transfers = [step.index for step in path if step.kind == "transfer"]
    taken = np.zeros(timeline.problem.graph.num_ops)
    taken[ops] = (timeline.op_end - timeline.op_start)[ops]
    return {
        "op_device": timeline.op_device,
        "op_start": _rounded(timeline.op_start, timeline.runtime),
        "op_end": _rounded(timeline.op_end, timeline.runtime),
        "transfer_tensor": timeline.transfer_tensor,
        "transfer_destination": timeline.transfer_destination,
        "transfer_link": timeline.transfer_link,
        "transfer_start": _rounded(timeline.transfer_start, timeline.runtime),
        "transfer_end": _rounded(timeline.transfer_end, timeline.runtime),
        "memory": [_memory(timeline, index) for index in range(timeline.problem.num_devices)],
        "path_ops": ops,
        "path_transfers": transfers,
        "group_devices": [lvl.placement_of_ops(timeline.op_device).tolist() for lvl in levels],
        "group_seconds_on_path": [
            np.bincount(lvl.grouping.group_of, taken, lvl.num_groups).tolist() for lvl in levels
        ],
    }


def thinned(values: NDArray[np.int64], chunks: int = CHUNKS) -> NDArray[np.int64]:
    """Return which points of a long curve are drawn: the least and the most of each stretch.

    Examples
    --------
    >>> thinned(np.array([3, 9, 1, 4, 4, 8]), chunks=2).tolist()
    [1, 2, 3, 5]
    """
    if len(values) <= 2 * chunks:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), chunks)
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in parts]
    return np.unique(np.array(ends).ravel())


def _memory(timeline: Timeline, device: int) -> Report:
    times, held = timeline.memory(device)
    drawn = thinned(held)
    return {"times": _rounded(times[drawn], timeline.runtime), "bytes": held[drawn]}


def _rounded(times: NDArray[np.float64], runtime: float) -> NDArray[np.float64]:
    decimals = DIGITS - int(np.ceil(np.log10(runtime))) if runtime > 0 else DIGITS
    return np.round(times, decimals)
