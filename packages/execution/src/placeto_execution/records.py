"""The notes of devices on a step that runs, and their timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placeto_execution.programs import StepProgram
from placeto_graphs import PlacementProblem, StepTimeline


@dataclass
class Record:
    """The notes of one device; times are seconds of the clock that all devices share."""

    began: float = 0.0  # the step began when the first device did
    ops: list[tuple[int, float, float]] = field(default_factory=list)  # with start and end
    # Messages, with the times when their link took them, and when all of them had left. A GPU does
    # not note the second of what it sends to another one.
    sent: list[tuple[int, float]] = field(default_factory=list)
    left: list[tuple[int, float]] = field(default_factory=list)
    # Messages, with the times when the device began to copy them to where they belong, which may be
    # long after they were there, and when that was done.
    taken: list[tuple[int, float, float]] = field(default_factory=list)
    # Bytes that the device holds more from a time on, and fewer from that of a `Free` on.
    made: list[tuple[float, int]] = field(default_factory=list)
    freed: list[tuple[int, float, int]] = field(default_factory=list)


def timeline_of(
    problem: PlacementProblem,
    op_device: NDArray[np.int32],
    program: StepProgram,
    records: Sequence[Record],
    origin: float,
) -> StepTimeline:
    """Return the timeline of a step that began at a time of the clock.

    A transfer lasts until all of it has left, and then for as long as it took to take it, even if
    that was later. The tensor is on its source until all of it has left.
    """
    op_start, op_end = np.empty(problem.graph.num_ops), np.empty(problem.graph.num_ops)
    memory: list[tuple[float, int, int]] = []
    sent = dict(pair for record in records for pair in record.sent)
    left = dict(pair for record in records for pair in record.left)
    taken = {number: times for record in records for number, *times in record.taken}
    gone: dict[tuple[int, int], float] = {}  # when the last copy of a tensor has left a device
    transfers = []
    for number, message in enumerate(program.messages):
        if message.tensor is not None:
            begun, end = taken[number]
            if number in left:
                end = left[number] + end - begun
            transfers.append((end, sent[number], message))
            key = message.tensor, message.source
            gone[key] = max(left.get(number, end), gone.get(key, 0.0))
    transfers.sort(key=lambda each: each[:2])
    for device, record in enumerate(records):
        for op, start, end in record.ops:
            op_start[op], op_end[op] = start, end
            workspace = int(problem.graph.workspace_bytes[op])
            memory += [(start, device, workspace), (end, device, -workspace)]
        memory += [(time, device, num_bytes) for time, num_bytes in record.made]
        for tensor, time, num_bytes in record.freed:
            given_up = max(time, gone.get((tensor, device), time))
            memory.append((given_up, device, -num_bytes))
    memory = [change for change in memory if change[2]]
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=op_start - origin,
        op_end=op_end - origin,
        transfer_tensor=np.array([each.tensor for _, _, each in transfers], np.int32),
        transfer_source=np.array([each.source for _, _, each in transfers], np.int32),
        transfer_destination=np.array([each.destination for _, _, each in transfers], np.int32),
        transfer_link=np.array([each.link for _, _, each in transfers], np.int32),
        transfer_start=np.array([start for _, start, _ in transfers], np.float64) - origin,
        transfer_end=np.array([end for end, _, _ in transfers], np.float64) - origin,
        memory_time=np.array([time for time, _, _ in memory], np.float64) - origin,
        memory_device=np.array([device for _, device, _ in memory], np.int32),
        memory_bytes=np.array([num_bytes for _, _, num_bytes in memory], np.int64),
    )
