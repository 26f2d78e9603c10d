"""Memory that every placement needs: of one device for a group, and of all devices together."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import op_seconds
from placeto_graphs import OpGraph, PlacementProblem

MOST_BITS = 20_000_000


@dataclass(frozen=True, eq=False)
class MemoryNeeds:
    """Least bytes that are held, and bytes that there are."""

    resident: NDArray[np.int64]  # [G], parameters, which devices hold for the whole step
    running: NDArray[np.int64]  # [G, D], on top of these while one op of the group runs
    held_tensors: "HeldTensors | None"  # on top of these on all devices together while one op runs
    memory: NDArray[np.int64]  # [D]
    mean_excess: int  # bytes that all devices lack together, over their number

    @property
    def lack(self) -> NDArray[np.int64]:
        """int64[G, D], the excess of some device over its memory, if a group is on a device."""
        peak_bytes = self.resident[:, None] + self.running
        lack: NDArray[np.int64] = np.maximum(peak_bytes - self.memory, self.mean_excess)
        return lack

    @property
    def least_excess(self) -> int:
        """The bytes by which some device exceeds its memory, whatever the placement."""
        return int(self.lack.min(axis=1).max())


def least_excess(problem: PlacementProblem) -> int:
    """Return the bytes by which every placement exceeds the memory of some device, at the least.

    No placement fits if it is not 0; if it is, one may fit or not. All parameters and the tensors
    that are held at one time have to be on some devices, and each group on one.

    Examples
    --------
    >>> least_excess(problem)
    0
    """
    return memory_needs(problem).least_excess


def least_memory(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[G, D], the bytes that each group needs at the least if it is alone on a device.

    Examples
    --------
    >>> least_memory(problem).shape == (problem.num_groups, problem.num_devices)
    True
    """
    demand = memory_needs(problem)
    alone: NDArray[np.int64] = demand.resident[:, None] + demand.running
    return alone


def memory_needs(problem: PlacementProblem) -> MemoryNeeds:
    """Return the memory that each group needs on each device, and that all groups need together.

    Proof. Parameters are held for the whole step where their op runs. While an op runs, its device
    also holds its workspace; its outputs, from its start on, unless they live in its parameters;
    and its inputs until its end, be it the tensor itself or a copy of it. An input that lives in
    parameters is not counted, as it may be read on the same device. All this is held at
    one time only if the op takes any. Ops without compute time do not count, nor do those whose
    time vanishes when float64 adds it to the clock.

    The peaks of all devices sum to no less than all parameters and what is held at one time, on
    whichever devices (`most_held`). Some device exceeds its memory by no less than the mean.
    """
    graph, cluster = problem.graph, problem.cluster
    seconds = op_seconds(problem)
    held_outputs = graph.tensor_bytes * ~graph.lives_in_weights
    need = graph.workspace_bytes.copy()
    np.add.at(need, graph.tensor_producer, held_outputs)
    np.add.at(need, graph.edge_consumers, held_outputs[graph.edges[:, 0]])
    runs = np.isfinite(seconds)
    lasts = runs & (seconds > 1e-12 * _horizon(problem, seconds))
    running = np.zeros((problem.num_groups, problem.num_devices), np.int64)
    np.maximum.at(running, problem.grouping.group_of, np.where(lasts, need[:, None], 0))
    held_tensors = most_held(graph, np.asarray((lasts | ~runs).all(axis=1)))
    total = sum(graph.parameter_bytes.tolist()) + (
        held_tensors.num_bytes(graph) if held_tensors else 0
    )
    memory = cluster.memory_bytes
    used = memory[runs.any(axis=0)].tolist()
    return MemoryNeeds(
        resident=problem.group_graph.parameter_bytes,
        running=running,
        held_tensors=held_tensors,
        memory=memory,
        mean_excess=max(0, math.ceil(Fraction(total - sum(used), len(used)))),
    )


def _horizon(problem: PlacementProblem, op_seconds: NDArray[np.float64]) -> float:
    """Return seconds after which any step has ended: until then, an op, overhead or copy lasts."""
    cluster = problem.cluster
    seconds = np.where(np.isfinite(op_seconds), op_seconds, 0.0).max(axis=1).sum()
    overhead = max(device.op_overhead for device in cluster.devices)
    gap = max(device.transfer_overhead for device in cluster.devices) + cluster.latency.max()
    copies = (problem.graph.tensor_bytes / cluster.bandwidth.min() + gap).sum()
    return float(seconds + problem.graph.num_ops * overhead + problem.num_devices * copies)


class HeldTensors(NamedTuple):
    """Tensors that are held somewhere at the same time, while an op runs."""

    op: int
    tensors: NDArray[np.bool_]  # [T]

    def num_bytes(self, graph: OpGraph) -> int:
        """Return the bytes of these tensors and of what the op needs while it runs."""
        return int(graph.tensor_bytes[self.tensors].sum() + graph.workspace_bytes[self.op])


def most_held(graph: OpGraph, lasting: NDArray[np.bool_]) -> HeldTensors | None:
    """Return the op during which the most bytes are held, and its tensors; None without ops.

    Proof that they are held. While an op ``L`` runs, all ops that it depends on have ended, and
    none that depends on it has. Take a tensor of one of the former that ``L`` or one of the latter
    reads. It is on its producer's device until the last reader there has ended and the last copy
    has arrived. A copy is held from the start of its transfer until its last reader there has
    ended. So one of the two is held on some device. A tensor that stays until the step ends is held
    from its producer's start on, and the outputs of ``L`` from its own. Tensors that live in
    parameters are left out. If ``L`` takes time, all this is held at one time.

    Any ``L`` gives a bound. The tensors that are alive at an op in one order of execution are no
    fewer, and quickly counted. Ops are tried in the order of these counts, as many as time allows,
    each in a bit of its own. ``lasting`` bool[V] are the ops that take time, wherever they run.
    """
    size = graph.tensor_bytes * ~graph.lives_in_weights
    at_most = _alive_in_order(graph, size) + graph.workspace_bytes
    tried = np.flatnonzero(lasting)
    tried = tried[np.argsort(-at_most[tried], kind="stable")][: 1 + MOST_BITS // graph.num_ops]
    if not len(tried):
        return None
    word, bit = np.divmod(np.arange(len(tried)), 64)
    itself = np.zeros((graph.num_ops, int(word[-1]) + 1), np.uint64)
    itself[tried, word] = np.uint64(1) << bit.astype(np.uint64)
    sources, readers = graph.precedences.T
    later, done = itself.copy(), itself.copy()  # than each, and before each
    in_order = rows_in_order(graph)
    for rows in in_order:
        np.bitwise_or.at(later, readers[rows], later[sources[rows]])
    for rows in reversed(in_order):
        np.bitwise_or.at(done, sources[rows], done[readers[rows]])
    needing_ops = np.zeros((graph.num_tensors, itself.shape[1]), np.uint64)
    np.bitwise_or.at(needing_ops, graph.edges[:, 0], later[graph.edge_consumers])
    needing_ops[graph.held_tensors] = ~np.uint64(0)
    holding_ops = needing_ops & done[graph.tensor_producer] | itself[graph.tensor_producer]

    def of_word(column: int) -> NDArray[np.bool_]:
        octets = holding_ops[:, column].astype("<u8")[:, None].view(np.uint8)
        return np.unpackbits(octets, axis=1, bitorder="little").astype(np.bool_)

    num_bytes = np.concatenate([size @ of_word(column) for column in range(holding_ops.shape[1])])
    best = int((num_bytes[: len(tried)] + graph.workspace_bytes[tried]).argmax())
    tensors = of_word(best // 64)[:, best % 64] & ~graph.lives_in_weights
    return HeldTensors(int(tried[best]), tensors)


def rows_in_order(graph: OpGraph, max_rows: int | None = None) -> list[NDArray[np.int64]]:
    """Return rows of ``precedences`` that depend on earlier ones alone, at most so many at once.

    So they also do in reverse: an op is deeper than all before it.
    """
    readers = graph.precedences[:, 1]
    depth = np.zeros(graph.num_ops, np.int64)
    in_order = np.argsort(graph.topological_index[readers], kind="stable")
    for op, reader in graph.precedences[in_order].tolist():
        depth[reader] = max(depth[reader], depth[op] + 1)
    order = np.argsort(depth[readers], kind="stable")
    step = max_rows or max(len(order), 1)
    return [
        rows[first : first + step]
        for rows in np.split(order, np.flatnonzero(np.diff(depth[readers[order]])) + 1)
        for first in range(0, len(rows), step)
    ]


def _alive_in_order(graph: OpGraph, size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[V], the bytes that are alive while each op runs, if one runs after the other."""
    position = graph.topological_index
    first = position[graph.tensor_producer]
    last = first.copy()
    np.maximum.at(last, graph.edges[:, 0], position[graph.edge_consumers])
    last[graph.held_tensors] = graph.num_ops - 1
    changes = np.zeros(graph.num_ops + 1, np.int64)
    np.add.at(changes, first, size)
    np.add.at(changes, last + 1, -size)
    alive: NDArray[np.int64] = np.cumsum(changes)[position]
    return alive
