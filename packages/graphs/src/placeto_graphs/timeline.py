"""One step as data, simulated or measured: what ran where and when, and its Chrome trace."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.files.storage import write_atomically
from placeto_graphs.schema.arrays import sums_by_key
from placeto_graphs.schema.problem import PlacementProblem

MICROSECONDS = 1e6
PROCESS = 1


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepTimeline:
    """One step, simulated or measured: V ops and K transfers on D devices and L links.

    Transfers stand in the order in which they were done.

    Attributes
    ----------
    problem : `PlacementProblem`
        The problem that the step belongs to.
    op_device : int32[V]
        The device of each op.
    op_start, op_end : float64[V]
        Seconds at which each op starts and ends.
    transfer_tensor : int32[K]
        The tensor that each transfer carries.
    transfer_source, transfer_destination : int32[K]
        The device that it comes from, and the one that it goes to.
    transfer_link : int32[K]
        The link that carries it.
    transfer_start, transfer_end : float64[K]
        Seconds at which it starts, and at which it has arrived.
    memory_time : float64[N]
        Seconds of each change of memory, in any order.
    memory_device : int32[N]
        The device whose memory changes.
    memory_bytes : int64[N]
        Bytes that it holds more from that time on, or fewer (below 0). Parameters are not among
        them.
    """

    problem: PlacementProblem
    op_device: NDArray[np.int32]
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]
    transfer_tensor: NDArray[np.int32]
    transfer_source: NDArray[np.int32]
    transfer_destination: NDArray[np.int32]
    transfer_link: NDArray[np.int32]
    transfer_start: NDArray[np.float64]
    transfer_end: NDArray[np.float64]
    memory_time: NDArray[np.float64]
    memory_device: NDArray[np.int32]
    memory_bytes: NDArray[np.int64]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(ops={len(self.op_start)}, "
            f"transfers={len(self.transfer_start)}, runtime={self.runtime})"
        )

    @property
    def runtime(self) -> float:
        """Seconds until the last op is done."""
        return float(self.op_end.max())

    @property
    def device_busy(self) -> NDArray[np.float64]:
        """float64[D], the share of the runtime in which each device runs ops."""
        return self._share(self.op_device, self.op_end - self.op_start, self.problem.num_devices)

    @property
    def transfer_sent(self) -> NDArray[np.float64]:
        """float64[K], when each transfer has left its link; it arrives the latency later."""
        latency = self.problem.cluster.latency[self.transfer_source, self.transfer_destination]
        return np.maximum(self.transfer_start, self.transfer_end - latency)

    @property
    def link_busy(self) -> NDArray[np.float64]:
        """float64[L], the share of the runtime in which each link carries tensors.

        A real link may carry several at once.
        """
        return self._share_of_sending(self.transfer_link, self.problem.cluster.num_links)

    @property
    def device_sending(self) -> NDArray[np.float64]:
        """float64[D], the share of the runtime in which each device sends tensors, on any link."""
        return self._share_of_sending(self.transfer_source, self.problem.num_devices)

    @cached_property
    def peak_memory(self) -> NDArray[np.int64]:
        """int64[D], the most bytes that each device holds at one time."""
        devices = range(self.problem.num_devices)
        return np.array([self.memory(device)[1].max() for device in devices], np.int64)

    def memory(self, device: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return when the memory of a device changes, and what it is from then on.

        At one time releases come before allocations, so that what counts is their sum.

        Parameters
        ----------
        device
            Index of the device.

        Returns
        -------
        float64[N]
            Times in seconds, each once and rising from 0.
        int64[N]
            Bytes that the device holds from each time on, parameters included.
        """
        on_device = self.memory_device == device
        resident = self.problem.graph.parameter_bytes[self.op_device == device].sum()
        times = np.append(0.0, self.memory_time[on_device])
        moments, moment_of_change = np.unique(times, return_inverse=True)
        changes = np.append(resident, self.memory_bytes[on_device])
        return moments, np.cumsum(sums_by_key(moment_of_change, changes, len(moments)))

    def transfer_name(self, transfer: int) -> str:
        """Return what a transfer carries and where to: ``"OP:OUTPUT -> DEVICE"``.

        Parameters
        ----------
        transfer
            Index of the transfer, from 0 to K - 1.
        """
        graph, tensor = self.problem.graph, int(self.transfer_tensor[transfer])
        producer = int(graph.tensor_producer[tensor])
        output = graph.tensors_of_op[producer].tolist().index(tensor)
        destination = self.problem.cluster.device_names[self.transfer_destination[transfer]]
        return f"{graph.op_names[producer]}:{output} -> {destination}"

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON that Perfetto and chrome://tracing open.

        There is a track for each device and for each link, and a counter for the memory of each
        device.

        Parameters
        ----------
        path
            Name of the file; one that ends in ``.gz`` is packed. An existing file is replaced.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        write_atomically(path, json.dumps(_chrome_trace(self), ensure_ascii=False).encode())

    def _share_of_sending(self, sender: NDArray[np.int32], num_senders: int) -> NDArray[np.float64]:
        """Return the share in which each sender has a transfer under way; several count once."""
        ends = np.minimum(self.transfer_sent, self.runtime)
        seconds = np.zeros(len(ends))
        for resource in np.unique(sender):
            transfers = np.flatnonzero(sender == resource)
            transfers = transfers[np.argsort(self.transfer_start[transfers], kind="stable")]
            latest_ends = np.maximum.accumulate(ends[transfers])
            starts = np.maximum(self.transfer_start[transfers], np.append(0.0, latest_ends[:-1]))
            seconds[transfers] = np.maximum(latest_ends - starts, 0.0)
        return self._share(sender, seconds, num_senders)

    def _share(
        self, resource: NDArray[np.int32], seconds: NDArray[np.float64], count: int
    ) -> NDArray[np.float64]:
        busy: NDArray[np.float64] = np.bincount(resource, seconds, count).astype(np.float64)
        return busy / self.runtime if self.runtime > 0 else np.zeros_like(busy)


def _chrome_trace(timeline: StepTimeline) -> dict[str, Any]:
    """Return a trace in the Trace Event format (Google 2016); its times are in microseconds."""
    graph, cluster = timeline.problem.graph, timeline.problem.cluster
    events: list[dict[str, Any]] = []
    for track, name in enumerate([*cluster.device_names, *cluster.link_names], start=1):
        common = {"ph": "M", "pid": PROCESS, "tid": track, "ts": 0}
        events.append({"name": "thread_name", "args": {"name": name}, **common})
        events.append({"name": "thread_sort_index", "args": {"sort_index": track}, **common})
    for device, name in enumerate(cluster.device_names):
        for time, num_bytes in zip(*timeline.memory(device), strict=True):
            counter = {"name": f"{name} memory", "ph": "C", "pid": PROCESS, "tid": 0}
            at = {"ts": float(time) * MICROSECONDS, "args": {"bytes": int(num_bytes)}}
            events.append(counter | at)

    def add_slice(
        name: str, category: str, track: int, start: float, end: float, details: dict[str, Any]
    ) -> None:
        times = {"ts": start * MICROSECONDS, "dur": end * MICROSECONDS - start * MICROSECONDS}
        where = {"ph": "X", "pid": PROCESS, "tid": 1 + track}
        events.append({"name": name, "cat": category, **where, **times, "args": details})

    ops = timeline.op_device.tolist(), timeline.op_start.tolist(), timeline.op_end.tolist()
    for op, (device, start, end) in enumerate(zip(*ops, strict=True)):
        details = {"type": graph.op_types[op], "scope": graph.scopes[op]}
        add_slice(graph.op_names[op], "op", device, start, end, details)
    for transfer, tensor in enumerate(timeline.transfer_tensor.tolist()):
        track = cluster.num_devices + int(timeline.transfer_link[transfer])
        start, end = timeline.transfer_start[transfer], timeline.transfer_sent[transfer]
        size = {"bytes": int(graph.tensor_bytes[tensor])}
        name = timeline.transfer_name(transfer)
        add_slice(name, "transfer", track, float(start), float(end), size)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
