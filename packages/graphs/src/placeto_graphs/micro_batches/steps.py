"""Steps of several micro-batches, and the problems of placing them."""

import re
from dataclasses import replace
from itertools import count as counting

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.micro_batches.layout import Layout, gradients_and_terms, layout_of, ops_of_batch
from placeto_graphs.schema.arrays import integer
from placeto_graphs.schema.cluster import BACKWARD_FIRST
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import FREE_TYPE, ONCE, OpGraph, Phase, columns_of_ops
from placeto_graphs.schema.problem import PlacementProblem

SUM_TYPE = "placeto.add_gradients"
BYTES_PER_NUMBER = 4  # of float32: what tells how many numbers a gradient has
PASSES_OF_SUM = 3  # it reads the sum so far and the new gradient, and writes the new sum
OF_ORIGIN = "scopes", "phases", "colocation", "dtype"  # of sums as of the op that makes a gradient


def micro_batched(graph: OpGraph, num_micro_batches: int) -> OpGraph:
    """Return the graph of the same step in m micro-batches, as GPipe (Huang et al. 2019) runs it.

    The batch is cut into m equal parts. Ops that depend on it (`ops_of_batch`) run once for each
    part, as ``conv@3`` for the fourth. Weights, buffers, ops that depend on these alone, and the
    update exist once. From the second micro-batch on, an op ``placeto.add_gradients`` adds each
    gradient of a weight, a tensor that the update reads from the backward pass, to that of the
    first one, in its memory.

    - **Parts.** A copy has an m-th part of the FLOPs, bytes, weights, measured times and tensors of
      its op; bytes are rounded up. Gradients of weights, and the terms that they are sums of, keep
      their sizes. In truth a smaller batch uses a device worse: `repeat_micro_batch_problem` takes
      a step that was captured or measured with it.
    - **Sums** have three times the bytes of the gradient to read and write, and a FLOP for each of
      its float32 numbers. They take as long as an op of the update that reads the gradient, or its
      share of the time if that op moves more bytes; on a kind that was not measured, none. What a
      sum makes has no bytes. After the last one an op ``placeto.free``, which takes no time, lets
      go of the gradient of the first micro-batch, and makes the total that the update reads.
    - **Order.** First all forward ops, one micro-batch after the other, then all backward ops from
      the first one, which is ready first, as in PyTorch's ``ScheduleGPipe``; then the update.

    Parameters
    ----------
    graph
        A graph of V ops, of a whole step.
    num_micro_batches
        Number m of micro-batches, at least 1.

    Raises
    ------
    GraphError
        When the number m is not an integer >= 1, or the step is in micro-batches already.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> step = nx.DiGraph([("images", "layer"), ("layer", "grad"), ("weights", "layer")])
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("grad", phase=1)
    >>> step.add_node("update", phase=2)
    >>> step.add_edge("grad", "update", bytes=64)
    >>> " ".join(micro_batched(from_networkx(step), 2).op_names)
    'weights images@0 layer@0 images@1 layer@1 grad@0 grad@1 grad/sum0@1 grad/total0@1 update'
    """
    count = _checked_count(graph, num_micro_batches)
    if count == 1:
        return graph
    one_micro_batch, _ = _part_of_graph(graph, 1, count)
    return _repeated_graph(one_micro_batch, layout_of(one_micro_batch, count))


def micro_batched_problem(problem: PlacementProblem, num_micro_batches: int) -> PlacementProblem:
    """Return the problem of placing the same step in m micro-batches.

    The graph becomes `micro_batched`. The copies of an op are in its group, and the sum of a
    gradient is in the group of the op that makes it. A placement thus has as many entries as
    before, at every level of a hierarchy. A copy takes an m-th part of the time of its op on each
    device. Sums of gradients take the times of `micro_batched`. Devices run backward ops first, and
    of these the earliest micro-batch (`Cluster.queue`), as executors of pipelines do. First in,
    first out would start all micro-batches before it finishes one, and take up to twice as long.

    Parameters
    ----------
    problem
        Problem of a whole step.
    num_micro_batches
        Number m of micro-batches, at least 1.

    Raises
    ------
    GraphError
        When the number m is not an integer >= 1, or the step is in micro-batches already.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> whole = example_problem()
    >>> problem = micro_batched_problem(whole, 4)
    >>> problem, problem.cluster.queue
    (PlacementProblem(ops=61, groups=8, devices=3), 'backward-first')
    >>> np.allclose(problem.compute_time.sum(axis=0), whole.compute_time.sum(axis=0))
    True
    """
    count = _checked_count(problem.graph, num_micro_batches)
    return repeat_micro_batch_problem(part_of_batch(problem, 1, count), count)


def repeat_micro_batch_problem(
    problem: PlacementProblem, num_micro_batches: int
) -> PlacementProblem:
    """Return the problem of placing a step in m micro-batches, each of which a problem describes.

    As `micro_batched_problem`, but nothing is divided.

    Parameters
    ----------
    problem
        Problem of a step with an m-th part of the batch.
    num_micro_batches
        Number m of micro-batches, at least 1.

    Raises
    ------
    GraphError
        When the number m is not an integer >= 1, or the step is in micro-batches already.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> repeat_micro_batch_problem(example_problem(), 4)
    PlacementProblem(ops=61, groups=8, devices=3)
    """
    count = _checked_count(problem.graph, num_micro_batches)
    if count == 1:
        return problem
    graph, hierarchy = problem.graph, problem.hierarchy
    layout = layout_of(graph, count)
    if hierarchy is not None:
        hierarchy = tuple(_repeated_grouping(level, layout) for level in hierarchy)
    return PlacementProblem(
        graph=_repeated_graph(graph, layout),
        cluster=replace(problem.cluster, queue=BACKWARD_FIRST),
        compute_time=_repeated_times(graph, problem.compute_time, layout),
        grouping=_repeated_grouping(problem.grouping, layout),
        hierarchy=hierarchy,
    )


def _checked_count(graph: OpGraph, num_micro_batches: int) -> int:
    """Return the number of micro-batches; a step that has some already cannot have others."""
    count = integer("num_micro_batches", num_micro_batches, minimum=1)
    if count > 1 and graph.num_micro_batches > 1:
        raise GraphError(
            "num_micro_batches: expected 1 for a step that is in "
            f"{graph.num_micro_batches} micro-batches already, got {count}"
        )
    return count


def part_of_batch(problem: PlacementProblem, samples: int, batch: int) -> PlacementProblem:
    """Return the problem of a step with some samples of the batch, in linear parts."""
    graph, divisors = _part_of_graph(problem.graph, samples, batch)
    return replace(problem, graph=graph, compute_time=problem.compute_time / divisors[:, None])


def _part_of_graph(graph: OpGraph, samples: int, batch: int) -> tuple[OpGraph, NDArray[np.float64]]:
    """Return the graph with some samples of the batch, and float64[V] by which times shrink."""
    of_batch = ops_of_batch(graph)
    divisors = np.where(of_batch, batch / samples, 1.0)
    whole = gradients_and_terms(graph, of_batch)

    def rounded_up(sizes: NDArray[np.int64], is_divided: NDArray[np.bool_]) -> NDArray[np.int64]:
        parts = -(-sizes.astype(object) * samples // batch)  # int64 might not hold the products
        return np.where(is_divided, parts, sizes).astype(np.int64)

    part = replace(
        graph,
        flops=graph.flops / divisors,
        bytes_accessed=graph.bytes_accessed / divisors,
        workspace_bytes=rounded_up(graph.workspace_bytes, of_batch),
        tensor_bytes=rounded_up(graph.tensor_bytes, of_batch[graph.tensor_producer] & ~whole),
        measured_time={kind: seconds / divisors for kind, seconds in graph.measured_time.items()},
    )
    return part, divisors


def _repeated_grouping(grouping: Grouping, layout: Layout) -> Grouping:
    """Return the groups of the ops of a step: those of what they are copies of, or sums for."""
    return replace(grouping, group_of=grouping.group_of[layout.origin])


def _repeated_times(
    graph: OpGraph, seconds: NDArray[np.float64], layout: Layout
) -> NDArray[np.float64]:
    """Return float64[V', ...], the times of the ops of a step, from float64[V, ...]."""
    of_sums = times_of_sums(graph, seconds, layout.gradients)
    return np.concatenate([seconds, of_sums, np.zeros_like(of_sums)])[layout.source_op]


def _repeated_graph(graph: OpGraph, layout: Layout) -> OpGraph:
    sizes = graph.tensor_bytes[layout.gradients]
    none = np.zeros_like(sizes)
    sums_and_totals = {
        "op_types": [SUM_TYPE] * len(sizes) + [FREE_TYPE] * len(sizes),
        "flops": np.append(sizes / BYTES_PER_NUMBER, none),
        "bytes_accessed": np.append(PASSES_OF_SUM * sizes, none),
    }
    columns = columns_of_ops([graph], sums_and_totals, layout.source_op)
    of_origins = columns_of_ops([graph], {}, layout.origin)
    columns |= {name: of_origins[name] for name in OF_ORIGIN}
    columns["parameter_bytes"] *= layout.micro_batch <= 0
    columns["micro_batch"] = layout.micro_batch
    return OpGraph(
        **columns,
        op_names=_names(graph, layout),
        tensor_producer=layout.tensor_producer,
        tensor_bytes=np.concatenate([graph.tensor_bytes, none, sizes])[layout.source_tensor],
        held_tensors=_held(graph, layout),
        edges=_edges(graph, layout),
        waits=_waits(graph, layout),
        measured_time={
            kind: _repeated_times(graph, seconds, layout)
            for kind, seconds in graph.measured_time.items()
        },
    )


def _names(graph: OpGraph, layout: Layout) -> tuple[str, ...]:
    """Return names with the number of the micro-batch, ``conv@3``, of what does not run once."""
    copies = list(zip(layout.source_op.tolist(), layout.micro_batch.tolist(), strict=True))
    for signs in counting(1):  # more where an op of the graph has a name like a copy or a sum
        has_clash = any(re.search("@" * signs + "[0-9]*$", name) for name in graph.op_names)
        names = [
            *graph.op_names,
            *(
                _name_of_sum(graph, tensor, f"{'/' * signs}{kind}")
                for kind in ("sum", "total")
                for tensor in layout.gradients
            ),
        ]
        copy_names = [
            names[op] if i == ONCE else f"{names[op]}{'@' * signs}{i}" for op, i in copies
        ]
        if not has_clash and len(set(copy_names)) == len(copy_names):
            break
    return tuple(copy_names)


def _name_of_sum(graph: OpGraph, gradient: np.int64, suffix: str) -> str:
    maker = int(graph.tensor_producer[gradient])
    position = np.searchsorted(graph.tensors_of_op[maker], gradient)
    return f"{graph.op_names[maker]}{suffix}{position}"


def _edges(graph: OpGraph, layout: Layout) -> NDArray[np.int32]:
    """Return the edges by phase and micro-batch of their consumers, and then as in the graph."""
    tensors, consumers = graph.edges.T.astype(np.int64)
    rows, of_batch = np.arange(graph.num_edges), layout.of_batch
    sums, totals = graph.num_tensors + np.arange(2 * len(layout.gradients)).reshape(2, -1)
    total_of = np.arange(graph.num_tensors)
    total_of[layout.gradients] = totals
    to_copies = of_batch[consumers]
    from_each = ~to_copies & of_batch[graph.edge_producers] & (total_of[tensors] == tensors)
    from_one = ~to_copies & ~from_each
    add, give = np.split(layout.op[:, graph.num_ops :], 2, axis=1)
    buffers = layout.tensor[:1, layout.gradients]  # in which sums are made
    edges: list[NDArray[np.int64]] = []

    def add_edges(
        read: NDArray[np.int64], reader: NDArray[np.int64], row: NDArray[np.int64]
    ) -> None:
        """Add edges [m, N], from tensors to ops of m micro-batches, in the order of rows [N]."""
        edges.append(np.stack([read, reader, np.broadcast_to(row, read.shape)]).reshape(3, -1))

    for among in (to_copies, from_each):
        add_edges(layout.tensor[:, tensors[among]], layout.op[:, consumers[among]], rows[among])
    last_tensors = layout.tensor[-1:, total_of[tensors[from_one]]]
    add_edges(last_tensors, layout.op[-1:, consumers[from_one]], rows[from_one])
    readers_of_sums = np.concatenate([add[2:], give[-1:]])
    add_edges(np.broadcast_to(buffers, add[1:].shape), add[1:], graph.num_edges + sums)
    add_edges(layout.tensor[1:, layout.gradients], add[1:], graph.num_edges + sums)
    add_edges(layout.tensor[1:, sums], readers_of_sums, graph.num_edges + totals)
    add_edges(buffers, give[-1:], graph.num_edges + totals)
    read, reader, row = np.concatenate(edges, axis=1)
    phases = graph.phases[layout.origin[reader]]
    order = np.lexsort([read, row, layout.micro_batch[reader], phases])
    return np.stack([read, reader], axis=1)[order].astype(np.int32)


def _held(graph: OpGraph, layout: Layout) -> NDArray[np.int32]:
    """Return the copies of held tensors; of a gradient, the total of all micro-batches alone."""
    held_tensors = graph.held_tensors
    is_gradient = np.isin(held_tensors, layout.gradients)
    gradient_index = np.searchsorted(layout.gradients, held_tensors[is_gradient])
    totals = layout.tensor[-1, graph.num_tensors + len(layout.gradients) + gradient_index]
    copies = np.flatnonzero(np.isin(layout.source_tensor, held_tensors[~is_gradient]))
    return np.concatenate([copies, totals]).astype(np.int32)


def _waits(graph: OpGraph, layout: Layout) -> NDArray[np.int32]:
    """Return the waits of each copy for the same copy, and of what runs once for all of them.

    An op that waits for the maker of a gradient of all micro-batches also waits for the total. A
    backward op that runs once runs with the first micro-batch, and does not wait for the others.
    """
    waits_for_totals: list[tuple[int, int]] = []
    first_total = graph.num_ops + len(layout.gradients)
    for gradient_index, maker in enumerate(graph.tensor_producer[layout.gradients].tolist()):
        waiters = graph.waiters_of_op[maker]
        waiters = waiters[~layout.of_batch[waiters]]
        waits_for_totals += [(op, first_total + gradient_index) for op in waiters.tolist()]
    rows = np.concatenate([graph.waits, np.array(waits_for_totals, np.int32).reshape(-1, 2)])
    ops, awaited = layout.op[:, rows[:, 0]], layout.op[:, rows[:, 1]]
    of_first = ~layout.of_batch[rows[:, 0]] & (graph.phases[rows[:, 0]] == Phase.BACKWARD)
    exists = (ops >= 0) & (awaited >= 0)
    exists[1:, of_first] = False
    return np.unique(np.stack([ops[exists], awaited[exists]], axis=1), axis=0).astype(np.int32)


def times_of_sums(
    graph: OpGraph, seconds: NDArray[np.float64], gradients: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return float64[A, ...], what it takes to add to each gradient, from float64[V, ...].

    It is the least time of an update op that reads the gradient, whose multiplication and addition
    move as many bytes. Of an op that reads several gradients, or moves more bytes, it is the share
    of the sum. If none is known to take time, it is 0.
    """
    tensors, readers = graph.edges.T
    place = np.full(graph.num_tensors, -1)
    place[gradients] = np.arange(len(gradients))
    by_update = (place[tensors] >= 0) & (graph.phases[readers] == Phase.UPDATE)
    tensors, readers = tensors[by_update], readers[by_update]
    moved = PASSES_OF_SUM * graph.tensor_bytes[tensors]
    of_reader = np.bincount(readers, moved, graph.num_ops)[readers]
    whole = np.maximum(graph.bytes_accessed[readers], of_reader)
    equal = 1.0 / np.bincount(readers)[readers]
    share = np.divide(moved, whole, out=equal, where=whole > 0)
    measured = np.where(seconds[readers] > 0, seconds[readers], np.inf)
    fewest_seconds = np.full((len(gradients), *seconds.shape[1:]), np.inf)
    np.minimum.at(fewest_seconds, place[tensors], (measured.T * share).T)
    return np.where(np.isinf(fewest_seconds), 0.0, fewest_seconds)
