"""Tensors that go from stage to stage of a pipeline until they are where they are read."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Phase, PlacementProblem

PASSING = "placeto.pass_on"  # the type of ops that pass a tensor on


def passed_on(problem: PlacementProblem, stage_of_op: NDArray[np.int64]) -> PlacementProblem:
    """Return a step in which stages, int64[V], send tensors to the next or previous stage only.

    In each stage between, an op that takes no time passes a tensor on, also gradients back. Such a
    stage keeps what it passes on in the forward pass until its backward pass of that micro-batch is
    done. What the update reads goes there directly.
    """
    graph = problem.graph
    makers, readers = graph.edge_producers, graph.edge_consumers
    distance = stage_of_op[readers] - stage_of_op[makers]
    far = np.flatnonzero((np.abs(distance) > 1) & (graph.phases[readers] != Phase.UPDATE))
    last_backward = {
        (int(stage_of_op[op]), int(graph.micro_batch[op])): op
        for op in graph.topological_order.tolist()
        if graph.phases[op] == Phase.BACKWARD
    }
    number: dict[tuple[int, int], int] = {}  # of the copy of a tensor in a stage between
    edges, lifetimes = graph.edges.copy(), []
    for row in far.tolist():
        tensor, maker = int(graph.edges[row, 0]), makers[row]
        step = int(np.sign(distance[row]))
        for stage in range(stage_of_op[maker] + step, stage_of_op[readers[row]], step):
            copy = len(number)
            if number.setdefault((tensor, stage), copy) == copy:
                lifetimes.append((edges[row, 0], graph.num_ops + copy))
                last = last_backward.get((stage, int(graph.micro_batch[maker])))
                if graph.phases[maker] == Phase.FORWARD and last is not None:
                    lifetimes.append((graph.num_tensors + copy, last))
            edges[row, 0] = graph.num_tensors + number[tensor, stage]
    if not number:
        return problem
    count = len(number)
    tensors = np.array([tensor for tensor, _ in number])
    source = graph.tensor_producer[tensors]
    none = np.zeros(count, np.int32)
    first_op = np.unique(stage_of_op, return_index=True)[1]
    group_of = problem.grouping.group_of
    groups = group_of[first_op[[stage for _, stage in number]]]
    passing = replace(
        graph,
        op_names=(*graph.op_names, *(f"pass_on.{tensor}.{stage}" for tensor, stage in number)),
        op_types=graph.op_types + (PASSING,) * count,
        scopes=graph.scopes + ("",) * count,
        phases=np.append(graph.phases, graph.phases[source]),
        flops=np.append(graph.flops, none),
        bytes_accessed=np.append(graph.bytes_accessed, none),
        parameter_bytes=np.append(graph.parameter_bytes, none),
        workspace_bytes=np.append(graph.workspace_bytes, none),
        colocation=np.append(graph.colocation, none - 1),
        dtype=graph.dtype + ("",) * count,
        groups=np.append(graph.groups, none + 1),
        group_channels=np.append(graph.group_channels, none),
        micro_batch=np.append(graph.micro_batch, graph.micro_batch[source]),
        measured_time={
            kind: np.append(seconds, none) for kind, seconds in graph.measured_time.items()
        },
        tensor_producer=np.append(graph.tensor_producer, graph.num_ops + np.arange(count)),
        tensor_bytes=np.append(graph.tensor_bytes, graph.tensor_bytes[tensors]),
        edges=np.concatenate([edges, np.array(lifetimes, np.int32)]),
    )
    no_time = np.zeros((count, problem.num_devices))
    return replace(
        problem,
        graph=passing,
        compute_time=np.concatenate([problem.compute_time, no_time]),
        grouping=replace(problem.grouping, group_of=np.append(group_of, groups)),
    )
