"""Tensors that go from stage to stage of a pipeline until they are where they are read."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph, Phase, PlacementProblem, columns_of_ops

PASSING = "placeto.pass_on"  # the type of ops that pass a tensor on
OF_MAKER = "scopes", "phases", "dtype", "micro_batch"  # of the op that makes the tensor


def passed_on(
    problem: PlacementProblem,
    stage_of_op: NDArray[np.int64],
    copy_of_op: NDArray[np.int64] | None = None,
) -> tuple[PlacementProblem, NDArray[np.int64]]:
    """Return a step whose stages, int64[V], send tensors to the next or previous stage only.

    In each stage between, an op that takes no time passes a tensor on, also gradients back. Such a
    stage keeps what it passes on in the forward pass until its backward pass of that micro-batch is
    done. What the update reads goes there directly, as does what copies of the step, int64[V], send
    each other. Each op of the step is a group of its own; the stages of its V' ops, int64[V'], are
    returned with it.
    """
    graph = problem.graph
    makers, readers = graph.edge_producers, graph.edge_consumers
    distance = stage_of_op[readers] - stage_of_op[makers]
    is_far = (np.abs(distance) > 1) & (graph.phases[readers] != Phase.UPDATE)
    if copy_of_op is not None:
        is_far &= copy_of_op[makers] == copy_of_op[readers]
    far = np.flatnonzero(is_far)
    last_backward = {
        (int(stage_of_op[op]), int(graph.micro_batch[op])): op
        for op in graph.topological_order.tolist()
        if graph.phases[op] == Phase.BACKWARD
    }
    index_of_copy: dict[tuple[int, int], int] = {}  # by tensor and stage between
    edges = graph.edges.copy()
    reads: list[tuple[int, int]] = []  # edges to and from copies
    for row in far.tolist():
        tensor, maker = int(graph.edges[row, 0]), makers[row]
        step = int(np.sign(distance[row]))
        for stage in range(stage_of_op[maker] + step, stage_of_op[readers[row]], step):
            copy = len(index_of_copy)
            if index_of_copy.setdefault((tensor, stage), copy) == copy:
                reads.append((int(edges[row, 0]), graph.num_ops + copy))
                last = last_backward.get((stage, int(graph.micro_batch[maker])))
                if graph.phases[maker] == Phase.FORWARD and last is not None:
                    reads.append((graph.num_tensors + copy, last))
            edges[row, 0] = graph.num_tensors + index_of_copy[tensor, stage]
    count = len(index_of_copy)
    tensors, stages = np.array([*index_of_copy], np.int64).reshape(count, 2).T
    source = np.append(np.arange(graph.num_ops), graph.tensor_producer[tensors]).astype(np.int64)
    stage_of = np.append(stage_of_op, stages)
    order = _in_turn(problem.graph, source, stage_of)
    rank, source, is_copy = np.argsort(order), source[order], order >= graph.num_ops
    names = [f"pass_on.{tensor}.{stage}" for tensor, stage in index_of_copy]
    all_edges = np.concatenate([edges, np.array(reads, np.int64).reshape(-1, 2)])
    copy_ops = graph.num_ops + np.arange(count)
    makers = graph.tensor_producer[tensors].tolist()
    copies = {name: [getattr(graph, name)[maker] for maker in makers] for name in OF_MAKER}
    columns = columns_of_ops([graph], {**copies, "op_types": [PASSING] * count}, order)
    del columns["colocation"]
    passing = OpGraph(
        **columns,
        op_names=tuple(np.array([*graph.op_names, *names], object)[order]),
        measured_time={
            kind: np.where(is_copy, 0, seconds[source])
            for kind, seconds in graph.measured_time.items()
        },
        tensor_producer=rank[np.append(graph.tensor_producer, copy_ops)],
        tensor_bytes=np.append(graph.tensor_bytes, graph.tensor_bytes[tensors]),
        edges=np.stack([all_edges[:, 0], rank[all_edges[:, 1]]], axis=1),
        waits=rank[graph.waits].astype(np.int32),
        held_tensors=graph.held_tensors,
        tokens=graph.tokens,
        cache=graph.cache,
    )
    compute_time = np.where(is_copy[:, None], 0, problem.compute_time[source])
    pipeline = PlacementProblem(graph=passing, cluster=problem.cluster, compute_time=compute_time)
    return pipeline, stage_of[order]


def _in_turn(
    graph: OpGraph, source: NDArray[np.int64], stage_of: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order of ops, with each copy before its stage runs the same micro-batch.

    Devices run the op with the least number first.
    """
    place = source.astype(np.float64)
    turn_of_op = np.stack([stage_of, graph.micro_batch[source], graph.phases[source]], axis=1)
    turns = [*map(tuple, turn_of_op.tolist())]
    first: dict[tuple[int, ...], int] = {}
    for op, turn in enumerate(turns[: graph.num_ops]):
        first.setdefault(turn, op)
    for copy in range(graph.num_ops, len(source)):
        place[copy] = first.get(turns[copy], source[copy]) - 0.5
    order: NDArray[np.int64] = np.argsort(place, kind="stable")
    return order
