"""Puts together what the workers have noted."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_execution.worker import Record
from placeto_graphs import PlacementProblem, StepTimeline


def timeline_of(
    problem: PlacementProblem, op_device: NDArray[np.int32], records: Sequence[Record]
) -> StepTimeline:
    """Return the timeline of a step that is done."""
    op_start, op_end = np.empty(problem.graph.num_ops), np.empty(problem.graph.num_ops)
    for record in records:
        for op, start, end in record.ops:
            op_start[op], op_end[op] = start, end
    arrived = [transfer for record in records for transfer in record.arrived]
    arrived.sort(key=lambda transfer: (transfer.end, transfer.start))
    memory = [
        (time, device, num_bytes)
        for device, record in enumerate(records)
        for time, num_bytes in record.memory
    ]
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=op_start,
        op_end=op_end,
        transfer_tensor=np.array([each.tensor for each in arrived], np.int32),
        transfer_source=np.array([each.source for each in arrived], np.int32),
        transfer_destination=np.array([each.destination for each in arrived], np.int32),
        transfer_link=np.array([each.link for each in arrived], np.int32),
        transfer_start=np.array([each.start for each in arrived], np.float64),
        transfer_end=np.array([each.end for each in arrived], np.float64),
        memory_time=np.array([time for time, _, _ in memory], np.float64),
        memory_device=np.array([device for _, device, _ in memory], np.int32),
        memory_bytes=np.array([num_bytes for _, _, num_bytes in memory], np.int64),
    )
