"""A schedule without a simulator."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, StepTimeline


def topological_schedule(problem: PlacementProblem, placement: NDArray[np.int32]) -> StepTimeline:
    """Return a schedule in topological order, in which each tensor is sent when it was made.

    Parameters
    ----------
    problem
        Problem that is placed; its times do not count.
    placement : int32[G]
        Device of each group.
    """
    graph, op_device = problem.graph, problem.expand(placement)
    start = graph.topological_index.astype(np.float64)
    home = op_device[graph.tensor_producer]
    tensor, reader = graph.edges[:, 0], graph.edges[:, 1]
    leaves = op_device[reader] != home[tensor]
    sent = np.unique(np.stack([tensor[leaves], op_device[reader[leaves]]], axis=1), axis=0)
    sent = sent[np.argsort(start[graph.tensor_producer[sent[:, 0]]], kind="stable")]
    made = start[graph.tensor_producer[sent[:, 0]]] + 1
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=start,
        op_end=start + 1,
        transfer_tensor=sent[:, 0].astype(np.int32),
        transfer_source=home[sent[:, 0]],
        transfer_destination=sent[:, 1].astype(np.int32),
        transfer_link=problem.cluster.link[home[sent[:, 0]], sent[:, 1]],
        transfer_start=made,
        transfer_end=made,
        memory_time=np.empty(0),
        memory_device=np.empty(0, np.int32),
        memory_bytes=np.empty(0, np.int64),
    )
