"""One simulated step as data: what ran where and when."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_graphs import write_atomically
from placeto_simulator.chrome_trace import chrome_trace

_Kind = Literal["op", "transfer"]
_Member = tuple[_Kind, int]
_Reason = Literal["nothing", "input", "resource"]


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes
    ----------
    time : float
        Seconds.
    kind : text
        ``"op-done"``, ``"transfer-done"``, or ``"wakeup"``: a device or bus that was at rest starts
        the first element of its queue (Addanki et al. 2019).
    resource : text
        The device, or ``"DEVICE bus"``.
    what : text
        The op, or ``"OP:OUTPUT -> DEVICE"`` for a transfer.

    Examples
    --------
    >>> Event(0.5, "transfer-done", "k80:0 bus", "conv1:0 -> k80:1").kind
    'transfer-done'
    """

    time: float
    kind: Literal["op-done", "transfer-done", "wakeup"]
    resource: str
    what: str


@dataclass(frozen=True)
class PathStep:
    """One member of the critical path.

    Attributes
    ----------
    kind : text
        ``"op"`` or ``"transfer"``.
    index : int
        The op, or the transfer's position in the timeline.
    start, end : float
        Seconds.
    waits_for : text
        What the start waited for: ``"nothing"``, an ``"input"``, or the ``"resource"``, which was
        busy with the step before.

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
class Timeline:
    """One simulated step: V ops and K transfers on D devices.

    Attributes
    ----------
    problem : `PlacementProblem`
        What was placed.
    op_device : int32[V]
        Where each op ran.
    op_turn : int32[V]
        The ops of one device are numbered in the order in which they ran.
    op_start, op_end : float64[V]
        From when to when each op ran; seconds.
    transfer_tensor : int32[K]
        What each transfer carried; the transfers of one bus stand in the order in which they ran.
    transfer_source, transfer_destination : int32[K]
        From which device to which.
    transfer_start, transfer_end : float64[K]
        From when to when it was on its way; seconds.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx, parse_cluster
    >>> from placeto_simulator import Simulator
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=7_600_000)
    >>> graph = from_networkx(chain)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.full((2, 2), 0.25),
    ...     grouping=colocate(graph, rules=()),
    ... )
    >>> timeline = Simulator(problem).timeline([0, 1])
    >>> timeline.runtime
    0.501
    >>> [step.kind for step in timeline.critical_path()]
    ['op', 'transfer', 'op']
    """

    problem: PlacementProblem
    op_device: NDArray[np.int32]
    op_turn: NDArray[np.int32]
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]
    transfer_tensor: NDArray[np.int32]
    transfer_source: NDArray[np.int32]
    transfer_destination: NDArray[np.int32]
    transfer_start: NDArray[np.float64]
    transfer_end: NDArray[np.float64]

    def __repr__(self) -> str:
        return (
            f"Timeline(ops={len(self.op_start)}, transfers={len(self.transfer_start)}, "
            f"runtime={self.runtime})"
        )

    @property
    def runtime(self) -> float:
        """Seconds until the last op is done."""
        return float(self.op_end.max())

    @property
    def device_busy(self) -> NDArray[np.float64]:
        """float64[D], the share of the runtime in which each device runs ops."""
        return self._share(self.op_device, self.op_end - self.op_start)

    @property
    def bus_busy(self) -> NDArray[np.float64]:
        """float64[D], the share of the runtime in which each device's bus carries tensors."""
        within = np.minimum(self.transfer_end, self.runtime) - self.transfer_start
        return self._share(self.transfer_source, np.maximum(within, 0.0))

    @cached_property
    def peak_memory(self) -> NDArray[np.int64]:
        """int64[D], the most bytes that each device holds at one time."""
        devices = range(self.problem.num_devices)
        return np.array([self.memory(device)[1].max() for device in devices], np.int64)

    def memory(self, device: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return when the memory that a device holds changes, and the bytes from then on.

        Parameters
        ----------
        device
            Its number.

        Returns
        -------
        float64[N], int64[N]
            Times in seconds, each once and rising from 0, and bytes. At one time releases come
            before allocations, so that what counts is their sum.
        """
        devices, times, changes = self._memory_changes
        here = devices == device
        resident = self.problem.graph.parameter_bytes[self.op_device == device].sum()
        moments, which = np.unique(np.append(0.0, times[here]), return_inverse=True)
        at_moment = np.zeros(len(moments), np.int64)
        np.add.at(at_moment, which, np.append(resident, changes[here]))
        return moments, np.cumsum(at_moment)

    def events(self) -> list[Event]:
        """Return what happened, in order: completions before wakeups at the same time."""
        graph, cluster = self.problem.graph, self.problem.cluster
        names = cluster.device_names
        happened: list[tuple[float, int, int, Event]] = []

        def add(time: float, order: int, number: int, event: Event) -> None:
            happened.append((time, order, number, event))

        for op, name in enumerate(graph.op_names):
            device, end = int(self.op_device[op]), float(self.op_end[op])
            add(end, 0, device, Event(end, "op-done", names[device], name))
        for transfer, end in enumerate(self.transfer_end.tolist()):
            source = int(self.transfer_source[transfer])
            what = self.transfer_name(transfer)
            add(end, 1, source, Event(end, "transfer-done", f"{names[source]} bus", what))
        for op in _woken(self._op_before, self.op_start, self._op_free).tolist():
            device, start = int(self.op_device[op]), float(self.op_start[op])
            add(start, 2, device, Event(start, "wakeup", names[device], graph.op_names[op]))
        woken = _woken(self._transfer_before, self.transfer_start, self._transfer_free)
        for transfer in woken.tolist():
            source, what = int(self.transfer_source[transfer]), self.transfer_name(transfer)
            start = float(self.transfer_start[transfer])
            add(start, 3, source, Event(start, "wakeup", f"{names[source]} bus", what))
        happened.sort(key=lambda entry: entry[:3])
        return [event for *_, event in happened]

    def critical_path(self) -> list[PathStep]:
        """Return a chain of ops and transfers that makes the runtime, from first to last.

        Each step starts when the one before it ends, or, where it waits for the same device or
        bus, when the overhead of the one before is over.
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

    def transfer_name(self, transfer: int) -> str:
        """Return what a transfer carries and where to: ``"OP:OUTPUT -> DEVICE"``."""
        graph, tensor = self.problem.graph, int(self.transfer_tensor[transfer])
        producer = int(graph.tensor_producer[tensor])
        output = graph.tensors_of_op[producer].tolist().index(tensor)
        destination = self.problem.cluster.device_names[self.transfer_destination[transfer]]
        return f"{graph.op_names[producer]}:{output} -> {destination}"

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON that Perfetto and chrome://tracing open.

        There is a track for each device and for each bus, and a counter for the memory of each
        device.

        Parameters
        ----------
        path
            The file, replaced at once or not at all; a name that ends in ``.gz`` packs it.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        write_atomically(path, json.dumps(chrome_trace(self), ensure_ascii=False).encode())

    # --- what the methods above share --------------------------------------------------------

    @cached_property
    def _op_free(self) -> NDArray[np.float64]:
        """float64[V], when the device of each op is free again after it."""
        overhead = np.array([device.op_overhead for device in self.problem.cluster.devices])
        seconds = self.problem.compute_time[np.arange(len(self.op_device)), self.op_device]
        free: NDArray[np.float64] = self.op_end + np.where(
            seconds > 0, overhead[self.op_device], 0.0
        )
        return free

    @cached_property
    def _transfer_free(self) -> NDArray[np.float64]:
        """float64[K], when the bus of each transfer is free again after it."""
        overhead = np.array([device.transfer_overhead for device in self.problem.cluster.devices])
        free: NDArray[np.float64] = self.transfer_end + overhead[self.transfer_source]
        return free

    @cached_property
    def _transfer_of(self) -> dict[tuple[int, int], int]:
        """The transfer of each (tensor, destination)."""
        keys = zip(self.transfer_tensor.tolist(), self.transfer_destination.tolist(), strict=True)
        return {key: transfer for transfer, key in enumerate(keys)}

    @cached_property
    def _memory_changes(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
        """Devices, times and bytes, negative for releases, of all but the parameters."""
        graph = self.problem.graph
        tensors, readers = graph.edges[:, 0], graph.edges[:, 1]
        producers = graph.tensor_producer
        local = self.op_device[producers[tensors]] == self.op_device[readers]

        last_use = np.full(graph.num_tensors, -np.inf)
        np.maximum.at(last_use, tensors[local], self.op_end[readers[local]])
        np.maximum.at(last_use, self.transfer_tensor, self.transfer_end)
        last_use = np.where(np.isinf(last_use), self.op_end[producers], last_use)
        stored = np.where(graph.parameter_bytes[producers] > 0, 0, graph.tensor_bytes)

        remote = np.flatnonzero(~local)
        keys = zip(tensors[remote].tolist(), self.op_device[readers[remote]].tolist(), strict=True)
        copies = np.array([self._transfer_of[key] for key in keys], np.int64)
        last_read = np.zeros(len(self.transfer_tensor))
        np.maximum.at(last_read, copies, self.op_end[readers[remote]])

        device = [self.op_device[producers], self.op_device, self.transfer_destination]
        start = [self.op_start[producers], self.op_start, self.transfer_start]
        end = [last_use, self.op_end, last_read]
        size = [stored, graph.workspace_bytes, graph.tensor_bytes[self.transfer_tensor]]
        sizes = np.concatenate(size)
        return (
            np.concatenate(device * 2),
            np.concatenate(start + end),
            np.concatenate([sizes, -sizes]),
        )

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
        before = int(self._op_before[op])
        if before >= 0 and self._op_free[before] == start:
            return ("op", before), "resource"
        return None, "nothing"

    def _transfer_waited(self, transfer: int) -> tuple[_Member | None, _Reason]:
        """Return what a transfer waited for last."""
        producer = int(self.problem.graph.tensor_producer[self.transfer_tensor[transfer]])
        start = self.transfer_start[transfer]
        if self.op_end[producer] == start:
            return ("op", producer), "input"
        return ("transfer", int(self._transfer_before[transfer])), "resource"

    def _share(
        self, resource: NDArray[np.int32], seconds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        busy = np.bincount(resource, seconds, self.problem.num_devices)
        return busy / self.runtime if self.runtime > 0 else np.zeros_like(busy)

    @cached_property
    def _op_before(self) -> NDArray[np.int64]:
        """int64[V], the op that ran before each op on its device, or -1."""
        return _before(self.op_device, self.op_turn)

    @cached_property
    def _transfer_before(self) -> NDArray[np.int64]:
        """int64[K], the transfer that ran before each transfer on its bus, or -1."""
        return _before(self.transfer_source, np.arange(len(self.transfer_source)))


def _before(resource: NDArray[np.int32], turn: NDArray[np.integer]) -> NDArray[np.int64]:
    order = np.lexsort((turn, resource))
    before = np.full(len(order), -1)
    same = resource[order[1:]] == resource[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _woken(
    before: NDArray[np.int64], start: NDArray[np.float64], free: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return what started after its resource was at rest."""
    return np.flatnonzero((before < 0) | (start > np.append(free, -1.0)[before]))
