"""The notes of devices on a step that runs, and their timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placeto_execution.programs import Message, StepProgram
from placeto_graphs import PlacementProblem, StepTimeline


@dataclass
class DeviceRecord:
    """The notes of one device; times are seconds of the clock that all devices share."""

    start: float = 0.0  # the step began when the first device did
    ops: list[tuple[int, float, float]] = field(default_factory=list)  # with start and end
    # Messages, with the times when their link took them, and when all of them had left. A GPU does
    # not note the second of what it sends to another one.
    send_starts: list[tuple[int, float]] = field(default_factory=list)
    send_ends: list[tuple[int, float]] = field(default_factory=list)
    # Messages, with the times when the device began to copy them to where they belong, which may be
    # long after they were there, and when that was done.
    receives: list[tuple[int, float, float]] = field(default_factory=list)
    # Bytes that the device holds more from a time on, and fewer from that of a `Free` on.
    allocations: list[tuple[float, int]] = field(default_factory=list)
    releases: list[tuple[int, float, int]] = field(default_factory=list)


def timeline_of(
    problem: PlacementProblem,
    op_device: NDArray[np.int32],
    program: StepProgram,
    records: Sequence[DeviceRecord],
    origin: float,
) -> StepTimeline:
    """Return the timeline of a step that began at a time of the clock.

    A transfer lasts until all of it has left, and then for as long as it took to take it, even if
    that was later. The tensor is on its source until all of it has left.
    """
    op_start, op_end = np.empty(problem.graph.num_ops), np.empty(problem.graph.num_ops)
    memory: list[tuple[float, int, int]] = []
    send_start = dict(pair for record in records for pair in record.send_starts)
    send_end = dict(pair for record in records for pair in record.send_ends)
    receives = {
        message_id: (start, end) for record in records for message_id, start, end in record.receives
    }
    left_at: dict[tuple[int, int], float] = {}  # when the last copy of a tensor has left a device
    transfers = []
    for message_id, message in enumerate(program.messages):
        if message.tensor is not None:
            receive_start, end = receives[message_id]
            if message_id in send_end:
                end = send_end[message_id] + end - receive_start
            transfers.append((end, send_start[message_id], message))
            key = message.tensor, message.source
            left_at[key] = max(send_end.get(message_id, end), left_at.get(key, 0.0))
    transfers.sort(key=lambda transfer: transfer[:2])
    columns = np.array([message for _, _, message in transfers], np.int32)
    _, tensors, sources, destinations, links = columns.reshape(-1, len(Message._fields)).T
    for device, record in enumerate(records):
        for op, start, end in record.ops:
            op_start[op], op_end[op] = start, end
            workspace = int(problem.graph.workspace_bytes[op])
            memory += [(start, device, workspace), (end, device, -workspace)]
        memory += [(time, device, num_bytes) for time, num_bytes in record.allocations]
        for tensor, time, num_bytes in record.releases:
            given_up = max(time, left_at.get((tensor, device), time))
            memory.append((given_up, device, -num_bytes))
    memory = [change for change in memory if change[2]]
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=op_start - origin,
        op_end=op_end - origin,
        transfer_tensor=tensors,
        transfer_source=sources,
        transfer_destination=destinations,
        transfer_link=links,
        transfer_start=np.array([start for _, start, _ in transfers], np.float64) - origin,
        transfer_end=np.array([end for end, _, _ in transfers], np.float64) - origin,
        memory_time=np.array([time for time, _, _ in memory], np.float64) - origin,
        memory_device=np.array([device for _, device, _ in memory], np.int32),
        memory_bytes=np.array([num_bytes for _, _, num_bytes in memory], np.int64),
    )
