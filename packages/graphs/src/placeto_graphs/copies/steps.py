"""Problems of several copies of a step: data parallel, and with weights divided among them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeto_graphs.copies.collectives import (
    BUCKET,
    PASSES_OF_COPY,
    SHARD,
    Collective,
    Interval,
    OpOfCopy,
    Shares,
)
from placeto_graphs.copies.joint import Joint
from placeto_graphs.errors import GraphError, short_repr
from placeto_graphs.micro_batches.layout import accumulated_gradients, ops_of_batch
from placeto_graphs.micro_batches.steps import (
    BYTES_PER_NUMBER,
    PASSES_OF_SUM,
    part_of_batch,
    times_of_sums,
)
from placeto_graphs.schema.arrays import int_array, integer
from placeto_graphs.schema.op_graph import OpGraph, Phase
from placeto_graphs.schema.problem import PlacementProblem

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
NO_TENSOR = -1
BUFFER_TYPE = "buffer"
# The module that holds a layer: the path up to its number.
_LAYER = re.compile(r"(?:.*?\.)?[0-9]+(?![^.])")


def parts_of_batch(
    problem: PlacementProblem, samples: Sequence[int]
) -> tuple[PlacementProblem, ...]:
    """Return the problems of a step with parts of its batch, in linear parts.

    Ops that depend on the batch take their share of the FLOPs, bytes and times, as in
    `micro_batched`. In truth a smaller batch uses a device worse: capture a model once for each
    batch instead.

    Parameters
    ----------
    problem
        Problem of a step with the whole batch.
    samples
        Number of samples of each part, at least 1.

    Raises
    ------
    GraphError
        When a number is not an integer >= 1.

    Examples
    --------
    >>> from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
    >>> import networkx as nx
    >>> layer = nx.DiGraph()
    >>> layer.add_edge("images", "layer", bytes=100)
    >>> whole = PlacementProblem(
    ...     graph=from_networkx(layer), cluster=parse_cluster("1xk80"), compute_time=[[0], [1]]
    ... )
    >>> [part.graph.tensor_bytes.tolist() for part in parts_of_batch(whole, [3, 1])]
    [[75], [25]]
    """
    counts = int_array("samples", samples, np.int64, (None,), minimum=1).tolist()
    return tuple(part_of_batch(problem, count, sum(counts)) for count in counts)


def copied(
    problems: Sequence[PlacementProblem],
    *,
    machines: Sequence[int] | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> PlacementProblem:
    """Return the problem of copies of a model that train on parts of a batch (data parallel).

    The ops of copy r are named ``conv#r``, and so are its groups. A placement says where each copy
    runs: alone on a device, or as a pipeline on several. Weights, buffers and the update exist in
    each copy. Gradients of weights, the tensors that the update reads from the backward pass, are
    summed over all copies as PyTorch's ``DistributedDataParallel`` does it:

    - **Buckets.** Gradients are put into buckets in the order in which they are made. A bucket is
      full when it has ``bucket_bytes``. An op ``placeto.bucket`` of each copy scales its gradients
      by its samples, and copies them into the bucket.
    - **Sums.** Each copy owns a shard of the bucket, which an op ``placeto.sum_copies`` adds up. An
      op ``placeto.gather`` gives the sums of all shards to the update. A copy of k in one machine
      sends 2 (k - 1) / k times the bytes of the bucket, as in a ring (Patarasuk and Yuan 2009).
    - **Machines.** Shards are first summed within each machine, then between the copies of several
      machines that own the same shard. A network card of M machines carries 2 (M - 1) / M times the
      bytes each way.

    These ops belong to the update, so that `micro_batched_problem` of the result sums once, after
    the last micro-batch. So does a step that is in micro-batches already. They take as long per
    byte as the sums of micro-batches. Links have the bandwidth that collectives reach, a
    `Cluster.collective_fraction` of their own. Without an update the gradients are those of all
    weights that the backward pass reads.

    Parameters
    ----------
    problems
        The problem of each of k copies, with its own part of the batch, on one cluster; see
        `parts_of_batch`.
    machines : int[k]
        The machine that each copy is to run in; by default one machine.
    bucket_bytes, first_bucket_bytes
        Bytes from which on a bucket, and the first one, is full, at least 1.

    Raises
    ------
    GraphError
        When there is no problem, or they differ in more than sizes and times, or a number is none.

    References
    ----------
    Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".

    Examples
    --------
    >>> from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
    >>> import networkx as nx
    >>> step = nx.DiGraph([("images", "layer"), ("layer", "gradient"), ("weights", "layer")])
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("gradient", phase=1)
    >>> step.add_node("update", phase=2)
    >>> step.add_edge("gradient", "update", bytes=64)
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(step), cluster=parse_cluster("2xk80"), compute_time=np.ones((5, 2))
    ... )
    >>> both = copied([problem, problem])
    >>> both.graph.op_names[-6:-3]
    ('placeto.bucket/0#0', 'placeto.bucket/0#1', 'placeto.sum_copies/0#0')
    >>> placement = np.repeat([0, 1], problem.num_groups)  # each copy on a device
    """
    integer("bucket_bytes", bucket_bytes, minimum=1)
    integer("first_bucket_bytes", first_bucket_bytes, minimum=1)
    _check_same(problems)
    if len(problems) == 1:
        return problems[0]
    joint, gradients = Joint(problems), _gradients(problems[0].graph)
    shares = _shares(machines, np.ones(len(problems), np.int64))
    buckets = _buckets(gradients.sizes, bucket_bytes, first_bucket_bytes)
    _sum_gradients(joint, shares, gradients, buckets, shares.wholes)
    joint.held_tensors += joint.reads[Phase.UPDATE, joint.held_tensors].tolist()
    return _finished(joint, problems[0], gradients)


def sharded(
    problems: Sequence[PlacementProblem],
    *,
    machines: Sequence[int] | None = None,
    parts: Sequence[int] | None = None,
    within_machines: bool = False,
    keep_weights: bool = False,
) -> PlacementProblem:
    """Return the problem of copies that divide their weights among them (ZeRO-3, FSDP).

    As `copied`, but each copy holds a part of the weights, gradients and optimizer state of each
    layer, as PyTorch's ``fully_shard`` does it. A layer is a module with a number, such as
    ``"encoder.layer.0"``; other modules with weights are layers of their own.

    - **Weights.** Before the first op of a layer in the forward pass, and again in the backward
      pass, an op ``placeto.shard`` of each copy sends its part, and an op ``placeto.gather`` makes
      the weights that the pass reads. The parts of a layer are sent when the first op of the layer
      before is done: one layer is gathered ahead.
    - **Gradients** of a layer are summed as a bucket of `copied`. Each copy keeps the sums of its
      part, and updates it: an update takes its part of the time, FLOPs and bytes.
    - Buffers, the ops of type ``"buffer"``, are whole in each copy.

    Parameters
    ----------
    problems
        The problem of each of k copies, with its own part of the batch, on one cluster; see
        `parts_of_batch`.
    machines : int[k]
        The machine that each copy is to run in; by default one machine.
    parts : int[k]
        The part of the weights of each copy, in relation to those of the others, at least 1, such
        as the memory of its device; by default equal parts.
    within_machines
        Whether each machine has all weights, divided among its copies (HSDP).
    keep_weights
        Whether gathered weights stay until the backward pass has read them
        (``reshard_after_forward=False``).

    Raises
    ------
    GraphError
        When there is no problem, or they differ in more than sizes and times, or machines have
        different numbers of copies, or an op that reads tensors holds weights.

    References
    ----------
    Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
    Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".

    Examples
    --------
    >>> from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
    >>> import networkx as nx
    >>> step = nx.DiGraph([("images", "layer"), ("layer", "gradient")])
    >>> step.add_node("weights", parameter_bytes=64)
    >>> step.add_node("gradient", phase=1)
    >>> step.add_node("update", phase=2)
    >>> step.add_edge("weights", "layer", bytes=64)
    >>> step.add_edge("gradient", "update", bytes=64)
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(step), cluster=parse_cluster("2xk80"), compute_time=np.ones((5, 2))
    ... )
    >>> halves = sharded([problem, problem])
    >>> halves.graph.parameter_bytes.sum()
    np.int64(64)
    """
    _check_same(problems)
    if len(problems) == 1:
        return problems[0]
    ones = np.ones(len(problems), np.int64)
    weight_of_copy = int_array(
        "parts", ones if parts is None else parts, np.int64, ones.shape, minimum=1
    )
    shares = _shares(machines, weight_of_copy)
    if len({len(row) for row in shares.machines}) > 1:
        sizes = ", ".join(str(len(row)) for row in shares.machines)
        raise GraphError(f"machines: expected as many copies in each machine, got {sizes}")
    owned = shares.columns if within_machines else shares.shards
    graph = problems[0].graph
    holds = (graph.parameter_bytes > 0) & (graph.phases != Phase.UPDATE)
    inside = np.intersect1d(np.flatnonzero(holds), graph.edge_consumers)
    if len(inside):
        raise GraphError(
            "problems[0].graph: expected weights that are ops of their own, got those of "
            f"{short_repr(graph.op_names[inside[0]])}, which reads tensors"
        )
    gradients, weights = _gradients(graph), _weights(graph)
    joint = Joint(
        [_with_part(problem, weights, shares, owned[copy]) for copy, problem in enumerate(problems)]
    )
    _gather_weights(joint, shares, weights, owned, Phase.FORWARD)
    if keep_weights:
        joint.reads[Phase.BACKWARD] = joint.reads[Phase.FORWARD]
    _gather_weights(joint, shares, weights, owned, Phase.BACKWARD)
    members = np.arange(len(gradients.sizes))
    _sum_gradients(joint, shares, gradients, _by_layer(gradients, members), owned)
    joint.held_tensors = joint.reads[Phase.UPDATE, joint.held_tensors].tolist()
    return _finished(joint, problems[0], gradients)


@dataclass(frozen=True)
class _Tensors:
    """N gradients or weights of a copy; gradients are in the order in which they are made."""

    ops: NDArray[np.int64]  # [N], that make them
    tensors: NDArray[np.int64]  # [N], or `NO_TENSOR` for a gradient that is not in the graph
    sizes: NDArray[np.int64]  # [N] bytes
    layers: list[str]  # N names


def _check_same(problems: Sequence[PlacementProblem]) -> None:
    """Refuse problems that are not of the same ops, edges and weights on the same devices."""
    if not problems:
        raise GraphError("problems: expected at least one copy, got none")
    first = problems[0]
    for copy, problem in enumerate(problems):
        if problem.cluster != first.cluster:
            raise GraphError(
                f"problems[{copy}].cluster: expected that of problems[0], {first.cluster!r}, "
                f"got {problem.cluster!r}"
            )
        for name in ("op_names", "tensor_producer", "edges", "waits", "parameter_bytes"):
            if not np.array_equal(getattr(problem.graph, name), getattr(first.graph, name)):
                raise GraphError(
                    f"problems[{copy}].graph.{name}: expected that of problems[0], of the same "
                    "model with another batch at most, got another"
                )


def _shares(machines: ArrayLike | None, weights: NDArray[np.int64]) -> Shares:
    of_copy = np.zeros_like(weights) if machines is None else machines
    machine = int_array("machines", of_copy, np.int64, weights.shape)
    rows = [np.flatnonzero(machine == number).tolist() for number in np.unique(machine)]
    return Shares(rows, weights.tolist())


def _gradients(graph: OpGraph) -> _Tensors:
    """Return the gradients that the update reads; without an update, those of all weights."""
    tensors = accumulated_gradients(graph, ops_of_batch(graph))
    sizes, of_layer = graph.tensor_bytes[tensors], graph.tensor_producer[tensors].astype(np.int64)
    places = graph.topological_index[of_layer].astype(np.int64)
    if not (graph.phases == Phase.UPDATE).any():
        weights = _weights(graph)
        places = _places_of_readers(graph, Phase.BACKWARD, np.maximum, -1)[weights.tensors]
        is_trained = places >= 0
        places, sizes = places[is_trained], weights.sizes[is_trained]
        of_layer, tensors = weights.ops[is_trained], np.full(len(places), NO_TENSOR)
    order = np.argsort(places, kind="stable")
    layers = _layers(graph, of_layer[order])
    ops = graph.topological_order[places[order]].astype(np.int64)
    return _Tensors(ops, tensors[order], sizes[order], layers)


def _weights(graph: OpGraph) -> _Tensors:
    """Return what ops that hold weights make."""
    is_weight = (graph.parameter_bytes > 0) & (np.array(graph.op_types) != BUFFER_TYPE)
    is_weight[graph.edge_consumers] = False
    tensors = np.flatnonzero(is_weight[graph.tensor_producer])
    ops = graph.tensor_producer[tensors].astype(np.int64)
    return _Tensors(ops, tensors, graph.tensor_bytes[tensors], _layers(graph, ops))


def _layers(graph: OpGraph, ops: NDArray[np.integer]) -> list[str]:
    """Return the layer of each op: its module up to a number, its module, or its name."""
    layers = []
    for op in ops.tolist():
        match = _LAYER.match(graph.scopes[op])
        layers.append(match[0] if match else graph.scopes[op] or graph.op_names[op])
    return layers


def _by_layer(tensors: _Tensors, members: NDArray[np.int64]) -> dict[str, list[int]]:
    members_of_layer: dict[str, list[int]] = {}
    for index in members.tolist():
        members_of_layer.setdefault(tensors.layers[index], []).append(index)
    return members_of_layer


def _places_of_readers(
    graph: OpGraph, phase: Phase, extreme: np.ufunc, without: int
) -> NDArray[np.int64]:
    """Return int64[T], the first or last place in the topological order that reads each tensor."""
    places = np.full(graph.num_tensors, without)
    tensors, readers = graph.edges[graph.phases[graph.edge_consumers] == phase].T
    extreme.at(places, tensors, graph.topological_index[readers])
    return places


def _buckets(
    sizes: NDArray[np.int64], bucket_bytes: int, first_bucket_bytes: int
) -> dict[str, list[int]]:
    """Return the gradients of each bucket, which is full when it has so many bytes."""
    buckets: dict[str, list[int]] = {}
    room = 0
    for index, size in enumerate(sizes.tolist()):
        if room <= 0:
            room = bucket_bytes if buckets else first_bucket_bytes
            members = buckets[str(len(buckets))] = []
        members.append(index)
        room -= size
    return buckets


def _with_part(
    problem: PlacementProblem, weights: _Tensors, shares: Shares, interval: Interval
) -> PlacementProblem:
    """Return the problem of a copy that holds and updates a part of the weights."""
    graph = problem.graph
    is_update = graph.phases == Phase.UPDATE
    is_divided = is_update.copy()
    is_divided[weights.ops] = True
    fraction = np.where(is_update, (interval[1] - interval[0]) / shares.whole, 1.0)

    def divided(sizes: NDArray[np.int64], which: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.where(which, shares.of(interval, sizes), sizes)

    graph = replace(
        graph,
        flops=graph.flops * fraction,
        bytes_accessed=graph.bytes_accessed * fraction,
        parameter_bytes=divided(graph.parameter_bytes, is_divided),
        workspace_bytes=divided(graph.workspace_bytes, is_update),
        tensor_bytes=divided(graph.tensor_bytes, is_divided[graph.tensor_producer]),
        measured_time={kind: times * fraction for kind, times in graph.measured_time.items()},
    )
    return replace(problem, graph=graph, compute_time=problem.compute_time * fraction[:, None])


def _gather_weights(
    joint: Joint,
    shares: Shares,
    weights: _Tensors,
    owned: Mapping[int, Interval],
    phase: Phase,
) -> None:
    """Gather the weights of each layer before a pass reads them, if they are not there yet."""
    graph = joint.graph
    places = _places_of_readers(graph, phase, np.minimum, graph.num_ops)[weights.tensors]
    order = np.argsort(places, kind="stable")
    is_there = joint.reads[phase, weights.tensors] != weights.tensors
    order = order[(places[order] < graph.num_ops) & ~is_there[order]]
    in_order = graph.topological_order
    first_ops: list[int] = []  # of the layers so far; some weights are first read by the same op
    if phase == Phase.BACKWARD:
        first_ops = in_order[graph.phases[in_order] == Phase.FORWARD][-1:].tolist()
    for layer, members in _by_layer(weights, order).items():
        first_op = int(in_order[places[members[0]]])
        if first_op not in first_ops[-1:]:
            first_ops.append(first_op)
        awaited = first_ops[-2:-1]
        sizes, tensors = weights.sizes[members], weights.tensors[members]
        holders = joint.of_copies(weights.ops[members[0]])
        name = f"{phase.name.lower()}/{layer}"
        gathering = Collective(joint, shares, name, phase, holders, sizes)
        senders: dict[int, int] = {}
        for copy, shard_bytes in gathering.bytes_of_owners(owned).items():
            shards = copy * graph.num_tensors + tensors
            senders[copy] = gathering.add(SHARD, "", copy, shards, PASSES_OF_COPY * shard_bytes)
            joint.waits += [(senders[copy], copy * graph.num_ops + op) for op in awaited]
        columns: OpOfCopy = senders
        if owned is shares.shards:
            columns = gathering.all_gather(gathering.between_machines, senders)
        gathers = gathering.all_gather(gathering.in_machines, columns)
        for copy, gather in gathers.items():
            made = [joint.make(gather, size) for size in sizes.tolist()]
            joint.reads[phase, copy * graph.num_tensors + tensors] = made


def _sum_gradients(
    joint: Joint,
    shares: Shares,
    gradients: _Tensors,
    buckets: Mapping[str, list[int]],
    owned: Mapping[int, Interval],
) -> None:
    """Let the update of each copy read the sums over all copies of what it owns."""
    graph = joint.graph
    for name, members in buckets.items():
        ops, tensors = gradients.ops[members], gradients.tensors[members]
        sizes = gradients.sizes[members]
        num_bytes, in_graph = int(sizes.sum()), tensors != NO_TENSOR
        summing = Collective(joint, shares, name, Phase.UPDATE, joint.of_copies(ops[-1]), sizes)
        sums: OpOfCopy = {
            copy: summing.add(
                BUCKET,
                "",
                copy,
                copy * graph.num_tensors + tensors[in_graph],
                PASSES_OF_COPY * num_bytes,
                num_bytes / BYTES_PER_NUMBER,
            )
            for copy in shares.wholes
        }
        for copy, bucket in sums.items():
            joint.waits += [(bucket, copy * graph.num_ops + op) for op in ops[~in_graph].tolist()]
        sums = summing.reduce_scatter(summing.in_machines, sums)
        sums = summing.reduce_scatter(summing.between_machines, sums)
        if owned is not shares.shards:
            sums = summing.all_gather(summing.between_machines, sums)
        if owned is shares.wholes:
            sums = summing.all_gather(summing.in_machines, sums)
        waiters = [op for maker in ops for op in graph.waiters_of_op[maker].tolist()]
        for copy, op in sums.items():
            parts = shares.of(owned[copy], sizes)[in_graph].tolist()
            made = [joint.make(op, size) for size in parts]
            joint.reads[Phase.UPDATE, copy * graph.num_tensors + tensors[in_graph]] = made
            joint.waits += [
                (copy * graph.num_ops + waiter, op)
                for waiter in waiters
                if graph.phases[waiter] == Phase.UPDATE
            ]


def _finished(joint: Joint, problem: PlacementProblem, gradients: _Tensors) -> PlacementProblem:
    """Return the joined problem; its new ops take as long per byte as sums of micro-batches."""
    graph = problem.graph
    tensors = gradients.tensors[gradients.tensors != NO_TENSOR]
    moved_bytes = PASSES_OF_SUM * max(int(graph.tensor_bytes[tensors].sum()), 1)
    measured = {
        kind: times_of_sums(graph, times, tensors).sum() / moved_bytes
        for kind, times in graph.measured_time.items()
    }
    seconds = times_of_sums(graph, problem.compute_time, tensors).sum(axis=0)
    return joint.problem(seconds / moved_bytes, measured)
