"""One simulated step as data: what ran where and when, as the event loop wrote it down."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, StepTimeline
from placeto_simulator.state import Log, State
from placeto_simulator.tables import OP, Tables

_Kind = Literal["op", "transfer"]
_Member = tuple[_Kind, int]
_Reason = Literal["nothing", "input", "order", "resource"]
_Happening = Literal["op-done", "transfer-done", "wakeup"]


@dataclass(frozen=True)
class SimEvent:
    """Something that happened.

    Attributes
    ----------
    time : float
        Seconds.
    kind : text
        ``"op-done"``, ``"transfer-done"``, or ``"wakeup"``: a device or link that was at rest
        starts the first element of its queue (Addanki et al. 2019).
    resource : text
        The device or link.
    what : text
        The op, or ``"OP:OUTPUT -> DEVICE"`` for a transfer.

    Examples
    --------
    >>> SimEvent(0.5, "transfer-done", "k80:0 bus", "conv1:0 -> k80:1").kind
    'transfer-done'
    """

    time: float
    kind: _Happening
    resource: str
    what: str


@dataclass(frozen=True)
class PathStep:
    """One op or transfer of the critical path.

    Attributes
    ----------
    kind : text
        ``"op"`` or ``"transfer"``.
    index : int
        The op, or the transfer's position in the timeline.
    start, end : float
        Seconds.
    waits_for : text
        Cause of the start: ``"nothing"``, an ``"input"``, the ``"order"`` (an op that has to be
        done before it), or the ``"resource"``, which was busy with the step before.

    Examples
    --------
    >>> step = PathStep("op", 3, start=0.5, end=0.75, waits_for="input")
    >>> step.end - step.start
    0.25
    """

    kind: _Kind
    index: int
    start: float
    end: float
    waits_for: _Reason


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Timeline(StepTimeline):
    """One simulated step: V ops and K transfers on D devices and L links.

    Times and memory are those of every `placeto_graphs.StepTimeline`.

    Attributes
    ----------
    op_before : int32[V]
        The op that ran before it on its device, or -1.
    transfer_before : int32[K]
        The transfer that ran before it on its link, or -1.
    happened : N rows of (float, text, int, int)
        Times, kinds and resources of what happened, and the op or the position of the transfer; see
        `events`. Resources are the D devices, then the L links.

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
    >>> [step.kind for step in timeline.critical_path()]
    ['op', 'transfer', 'op']
    """

    op_before: NDArray[np.int32]
    transfer_before: NDArray[np.int32]
    happened: list[tuple[float, _Happening, int, int]]

    def events(self) -> list[SimEvent]:
        """Return what happened, in order.

        At one time everything that completes comes first, ops by device and then transfers by link,
        then everything at rest that starts, and again.
        """
        names = self.problem.cluster.device_names + self.problem.cluster.link_names
        num_devices = self.problem.num_devices
        op_names = self.problem.graph.op_names
        return [
            SimEvent(
                time,
                kind,
                names[resource],
                op_names[index] if resource < num_devices else self.transfer_name(index),
            )
            for time, kind, resource, index in self.happened
        ]

    def critical_path(self) -> list[PathStep]:
        """Return a chain of ops and transfers that makes the runtime, from first to last.

        Each step starts when the one before it ends. If it waits for the same device or link, it
        starts when the overhead of the one before is over.
        """
        steps: list[PathStep] = []
        member: _Member | None = ("op", int(np.argmax(self.op_end)))
        while member is not None:
            kind, index = member
            if kind == "op":
                start, end = self.op_start[index], self.op_end[index]
                member, reason = self._op_waited(index)
            else:
                start, end = self.transfer_start[index], self.transfer_end[index]
                member, reason = self._transfer_waited(index)
            steps.append(PathStep(kind, index, float(start), float(end), reason))
        return steps[::-1]

    @cached_property
    def _transfer_of(self) -> dict[tuple[int, int], int]:
        """The transfer of each (tensor, destination)."""
        keys = zip(self.transfer_tensor.tolist(), self.transfer_destination.tolist(), strict=True)
        return {key: transfer for transfer, key in enumerate(keys)}

    def _op_waited(self, op: int) -> tuple[_Member | None, _Reason]:
        """Return what an op waited for last."""
        graph, device, start = self.problem.graph, int(self.op_device[op]), self.op_start[op]
        for tensor in graph.inputs_of_op[op].tolist():
            producer = int(graph.tensor_producer[tensor])
            if self.op_device[producer] == device:
                if self.op_end[producer] == start:
                    return ("op", producer), "input"
            else:
                transfer = self._transfer_of[tensor, device]
                if self.transfer_end[transfer] == start:
                    return ("transfer", transfer), "input"
        for awaited in graph.waits[graph.waits[:, 0] == op, 1].tolist():
            if self.op_end[awaited] == start:
                return ("op", awaited), "order"
        before = int(self.op_before[op])
        return (("op", before), "resource") if before >= 0 else (None, "nothing")

    def _transfer_waited(self, transfer: int) -> tuple[_Member | None, _Reason]:
        """Return what a transfer waited for last."""
        producer = int(self.problem.graph.tensor_producer[self.transfer_tensor[transfer]])
        if self.op_end[producer] == self.transfer_start[transfer]:
            return ("op", producer), "input"
        return ("transfer", int(self.transfer_before[transfer])), "resource"


def timeline_of(problem: PlacementProblem, tables: Tables, state: State, log: Log) -> Timeline:
    """Return what the event loop left behind of a step that was simulated with a log."""
    graph = problem.graph
    events = slice(0, int(log.num_events[0]))
    # The loop lets resources pick in the order of what completed, which makes no difference.
    order = np.lexsort(
        (log.event_resource[events], log.event_is_wakeup[events], log.event_round[events])
    )
    resource = log.event_resource[events][order].astype(np.int32)
    element = log.event_element[events][order].astype(np.int64)
    is_wakeup = log.event_is_wakeup[events][order]
    is_op = resource < problem.num_devices

    op_before = np.full(graph.num_ops, -1, np.int32)
    done = is_op & ~is_wakeup
    _note_before(op_before, element[done], resource[done])
    arrived = ~is_op & ~is_wakeup
    read = element[arrived] - graph.num_ops
    transfer_before = np.full(len(read), -1, np.int32)
    _note_before(transfer_before, np.arange(len(read)), resource[arrived])
    position = np.empty(len(graph.edges), np.int64)  # in the timeline, of the transfer of a read
    position[read] = np.arange(len(read))
    index = element.copy()
    index[~is_op] = position[element[~is_op] - graph.num_ops]
    kind = np.where(is_wakeup, "wakeup", np.where(is_op, "op-done", "transfer-done"))

    op_device = state.device_of.astype(np.int32)
    changes = slice(0, int(log.num_memory_changes[0]))
    return Timeline(
        problem=problem,
        op_device=op_device,
        op_start=state.op_start.copy(),
        op_end=state.op_end.copy(),
        op_before=op_before,
        transfer_tensor=graph.tensors_of_op.values[tables.tensor_of_read[read]],
        transfer_source=op_device[tables.producer_of_read[read]],
        transfer_destination=op_device[tables.readers[read] & OP],
        transfer_link=resource[arrived] - np.int32(problem.num_devices),
        transfer_start=log.transfer_start[read],
        transfer_end=log.transfer_end[read],
        transfer_before=transfer_before,
        happened=list(
            zip(
                log.event_time[events][order].tolist(),
                kind.tolist(),
                resource.tolist(),
                index.tolist(),
                strict=True,
            )
        ),
        memory_time=log.memory_time[changes],
        memory_device=log.memory_device[changes].astype(np.int32),
        memory_bytes=log.memory_bytes[changes],
    )


def _note_before(
    before: NDArray[np.int32], member: NDArray[np.integer], resource: NDArray[np.int32]
) -> None:
    """Write what came before each member on its resource; members stand in order of time."""
    order = np.argsort(resource, kind="stable")
    same = resource[order[1:]] == resource[order[:-1]]
    before[member[order[1:][same]]] = member[order[:-1][same]]
