"""One simulated step as data: what ran where and when, from what the event loop left behind."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, StepTimeline
from placeto_simulator.batches import NOTHING, REASONS
from placeto_simulator.tables import OP, State, Tables


@dataclass(frozen=True, slots=True)
class PathStep:
    """One op or transfer of the critical path.

    Attributes
    ----------
    kind : text
        ``"op"`` or ``"transfer"``.
    index : int
        The op, or the transfer's position in the timeline.
    start, end : float
        Seconds. If the next step waits for the link of a transfer, that ends when the link is free,
        although its latency may not be over.
    waits_for : text
        Cause of the start: ``"nothing"``, an ``"input"``, the ``"order"`` (an op that has to be
        done before it), or the ``"resource"``, which was busy with the step before.

    Examples
    --------
    >>> step = PathStep("op", 3, start=0.5, end=0.75, waits_for="input")
    >>> step.end - step.start
    0.25
    """

    kind: Literal["op", "transfer"]
    index: int
    start: float
    end: float
    waits_for: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Timeline(StepTimeline):
    """One simulated step: V ops and K transfers on D devices and L links.

    Times and memory are those of every `placeto_graphs.StepTimeline`.

    Attributes
    ----------
    op_before : int32[V]
        The op that ran before it on its device, or -1.
    critical_path : tuple of `PathStep`
        A chain of ops and transfers that makes the runtime, from first to last. Each starts when
        the one before it ends, or, if it waits for its device or link, when that is free again.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> from placeto_simulator import Simulator
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=7_600_000)
    >>> graph = from_networkx(chain)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.full((2, 2), 0.25),
    ... )
    >>> timeline = Simulator(problem).timeline([0, 1])
    >>> timeline.runtime
    0.501
    >>> [step.kind for step in timeline.critical_path]
    ['op', 'transfer', 'op']
    """

    op_before: NDArray[np.int32]
    critical_path: tuple[PathStep, ...]


def timeline_of(problem: PlacementProblem, tables: Tables, state: State) -> Timeline:
    """Return the timeline of what was simulated last, with memory and the critical path."""
    graph, num_ops, num_reads = problem.graph, problem.graph.num_ops, len(tables.readers)
    op_device, store = state.device_of.astype(np.int32), state.store_of_input
    op_start, op_end = state.start[:num_ops].copy(), state.end[:num_ops].copy()
    read = np.unique(store[store < num_reads])  # each copy is named by its first read
    read = read[np.argsort(state.end[num_ops + read], kind="stable")]
    source = op_device[tables.producer_of_read[read]]
    destination = op_device[tables.readers[read] & OP]
    transfer_start, transfer_end = state.start[num_ops + read], state.end[num_ops + read]
    tensor = tables.tensor_of_read[read]

    # What is stored is there until the last input or transfer that it is for.
    last_use = np.zeros(len(tables.store_bytes))
    np.maximum.at(
        last_use, store, op_end[np.repeat(np.arange(num_ops), np.diff(tables.first_input))]
    )
    np.maximum.at(last_use, num_reads + tensor, transfer_end)
    read_tensors, first = np.unique(tables.tensor_of_read, return_index=True)
    tensor_stores = num_reads + read_tensors
    made_by = op_device[tables.producer_of_read[first]]
    changes: tuple[tuple[NDArray[Any], ...], ...] = (
        (op_start, op_device, tables.start_bytes),
        (op_end, op_device, -tables.end_bytes),
        (transfer_start, destination, tables.tensor_bytes[tensor]),
        (last_use[read], destination, -tables.store_bytes[read]),
        (last_use[tensor_stores], made_by, -tables.store_bytes[tensor_stores]),
    )
    times, devices, sizes = zip(*changes, strict=True)

    predecessor = state.predecessor[:num_ops]
    position = np.zeros(num_reads, np.int64)  # of the transfer that each of these reads names
    position[read] = np.arange(len(read))
    end = int(np.argmax(state.reason == NOTHING))  # the path is there backwards
    path = state.path[end::-1].astype(np.int64)
    is_op, starts, index = path < num_ops, state.start[path], path.copy()
    index[~is_op] = position[path[~is_op] - num_ops]
    steps = zip(
        np.where(is_op, "op", "transfer").tolist(),
        index.tolist(),
        starts.tolist(),
        np.minimum(state.end[path], np.append(starts[1:], np.inf)).tolist(),
        np.array(REASONS)[state.reason[end::-1]].tolist(),
        strict=True,
    )
    return Timeline(
        problem=problem,
        op_device=op_device,
        op_start=op_start,
        op_end=op_end,
        transfer_tensor=graph.tensors_of_op.values[tensor],
        transfer_source=source,
        transfer_destination=destination,
        transfer_link=problem.cluster.link[source, destination],
        transfer_start=transfer_start,
        transfer_end=transfer_end,
        memory_time=np.concatenate(times),
        memory_device=np.concatenate(devices),
        memory_bytes=np.concatenate(sizes),
        op_before=np.where(predecessor < num_ops, predecessor.astype(np.int32), -1),
        critical_path=tuple(PathStep(*step) for step in steps),
    )
