"""The definition of the simulator, written to be read: plain Python, hundreds of times slower.

`simulate` is the definition. The compiled loop (`event_loop.py`) is the same, faster; the tests
compare every time and every byte. Times are float64, and sums run from left to right, so that equal
inputs tie exactly.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from placeto_graphs import PlacementProblem
from placeto_simulator.errors import SimulationError


@dataclass
class Transfer:
    """A copy of a tensor on its way from one device to another."""

    tensor: int
    source: int
    destination: int
    start: float = float("nan")  # seconds, when a link takes it
    end: float = float("nan")  # when it is there


@dataclass
class Device:
    """A device: one op at a time runs, the others wait, first in, first out."""

    queue: deque[int] = field(default_factory=deque)  # ops that wait
    running: int | None = None
    free_at: float = -math.inf  # seconds, end of the overhead after the last op


@dataclass
class Link:
    """A link: it sends one transfer at a time, first in, first out. Several may be under way."""

    queue: deque[Transfer] = field(default_factory=deque)  # that wait
    under_way: list[Transfer] = field(default_factory=list)  # that have started and are not done
    free_at: float = -math.inf  # seconds, from when on it takes the next transfer


@dataclass
class SimulatedStep:
    """Record of one simulated step of V ops on D devices."""

    op_start: list[float]  # [V] seconds
    op_end: list[float]
    transfers: list[Transfer] = field(default_factory=list)  # in the order in which they were done
    runtime: float = 0.0  # seconds until the last op is done
    peak_memory: list[int] = field(default_factory=list)  # [D], the most bytes at one time


def simulate(problem: PlacementProblem, placement: Sequence[int]) -> SimulatedStep:
    """Simulate one step.

    Parameters
    ----------
    problem
        Problem with G groups.
    placement : int[G]
        The device of each group.

    Raises
    ------
    SimulationError
        When not every op is done in the end.

    Examples
    --------
    Two ops of a second each; the tensor between them takes half a second to the other device:

    >>> import networkx as nx
    >>> import numpy as np
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=3_800_000_000)
    >>> graph = from_networkx(chain)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.ones((2, 2)),
    ... )
    >>> simulate(problem, [0, 1]).runtime
    2.5
    """
    return _Simulation(problem, placement).run()


class _Simulation:
    def __init__(self, problem: PlacementProblem, placement: Sequence[int]) -> None:
        graph = problem.graph
        self.problem = problem
        self.graph = graph
        self.device_of = [placement[group] for group in problem.grouping.group_of.tolist()]
        self.missing = [len(graph.inputs_of_op[op]) for op in range(graph.num_ops)]
        for op, _ in graph.waits.tolist():
            self.missing[op] += 1
        self.devices = [Device() for _ in range(problem.num_devices)]
        self.links = [Link() for _ in range(problem.cluster.num_links)]
        self.now = 0.0
        self.timestamps = [0.0]  # a heap of the times at which something ends
        self.num_done = 0
        self.step = SimulatedStep([float("nan")] * graph.num_ops, [float("nan")] * graph.num_ops)

    def run(self) -> SimulatedStep:
        for op in range(self.graph.num_ops):
            if self.missing[op] == 0:
                self.devices[self.device_of[op]].queue.append(op)
        while self.timestamps:
            # Whatever is picked completes in a later round: it puts a time on the heap, if only
            # the same one again.
            self.now = heapq.heappop(self.timestamps)
            self.deliver()
            self.pick()
        if self.num_done < self.graph.num_ops:
            raise SimulationError(
                f"expected {self.graph.num_ops} ops to be done, got {self.num_done}"
            )
        self.step.runtime = max(self.step.op_end)
        self.step.peak_memory = self.peak_memory()
        return self.step

    def deliver(self) -> None:
        """Hand on everything that completes now: ops by device, then transfers by link."""
        for device_index, device in enumerate(self.devices):
            if device.running is not None and self.step.op_end[device.running] == self.now:
                op, device.running = device.running, None
                self.op_done(device_index, op)
        for link in self.links:
            done = [transfer for transfer in link.under_way if transfer.end == self.now]
            # In the order in which they started: what takes longer started before.
            for transfer in sorted(done, key=self.latency, reverse=True):
                link.under_way.remove(transfer)
                self.transfer_done(transfer)

    def pick(self) -> None:
        """Let everything idle start the first element of its queue: devices, then links."""
        for device_index, device in enumerate(self.devices):
            if device.running is None and device.free_at <= self.now and device.queue:
                self.start_op(device_index, device)
        for link in self.links:
            while link.free_at <= self.now and link.queue:
                self.start_transfer(link)

    def op_done(self, device: int, op: int) -> None:
        self.num_done += 1
        for tensor in self.graph.tensors_of_op[op].tolist():
            sent_to = set()
            for consumer in self.graph.consumers_of_tensor[tensor].tolist():
                destination = self.device_of[consumer]
                if destination == device:
                    self.one_less_missing(consumer)
                elif destination not in sent_to:
                    sent_to.add(destination)
                    link = int(self.problem.cluster.link[device, destination])
                    self.links[link].queue.append(Transfer(tensor, device, destination))
        for waiter in self.graph.waiters_of_op[op].tolist():
            self.one_less_missing(waiter)

    def transfer_done(self, transfer: Transfer) -> None:
        self.step.transfers.append(transfer)
        for consumer in self.graph.consumers_of_tensor[transfer.tensor].tolist():
            if self.device_of[consumer] == transfer.destination:
                self.one_less_missing(consumer)

    def one_less_missing(self, op: int) -> None:
        """Note that an input of an op is there, or that an op is done that it waits for."""
        self.missing[op] -= 1
        if self.missing[op] == 0:
            self.devices[self.device_of[op]].queue.append(op)

    def start_op(self, device_index: int, device: Device) -> None:
        op = device.queue[0]
        if self.problem.cluster.queue == "backward-first":
            op = min(device.queue, key=lambda candidate: (-self.graph.phases[candidate], candidate))
        device.queue.remove(op)
        duration = float(self.problem.compute_time[op, device_index])
        overhead = self.problem.cluster.devices[device_index].op_overhead if duration > 0 else 0.0
        device.running, end = op, self.now + duration
        device.free_at = end + overhead
        self.step.op_start[op], self.step.op_end[op] = self.now, end
        self.look_again_at(end, device.free_at)

    def start_transfer(self, link: Link) -> None:
        transfer, cluster = link.queue.popleft(), self.problem.cluster
        size = int(self.graph.tensor_bytes[transfer.tensor])
        sent = self.now + float(size / cluster.bandwidth[transfer.source, transfer.destination])
        link.under_way.append(transfer)
        link.free_at = sent + cluster.devices[transfer.source].transfer_overhead
        transfer.start, transfer.end = self.now, sent + self.latency(transfer)
        self.look_again_at(transfer.end, link.free_at)

    def latency(self, transfer: Transfer) -> float:
        return float(self.problem.cluster.latency[transfer.source, transfer.destination])

    def look_again_at(self, *times: float) -> None:
        for time in times:
            heapq.heappush(self.timestamps, time)

    def peak_memory(self) -> list[int]:
        """Add up what each device holds from when to when."""
        graph, step = self.graph, self.step
        held_tensors = set(graph.held_tensors.tolist())
        changes: list[dict[float, int]] = [defaultdict(int) for _ in self.devices]

        def hold(device: int, size: int, start: float, end: float) -> None:
            changes[device][start] += size
            changes[device][end] -= size

        transfers_of: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in step.transfers:
            transfers_of[transfer.tensor].append(transfer)
        for op, size in enumerate(graph.workspace_bytes.tolist()):
            hold(self.device_of[op], size, step.op_start[op], step.op_end[op])
        # In weights, for their first outputs; an op that reads a tensor is a layer, and no weight.
        room = graph.parameter_bytes.tolist()
        for op in graph.edge_consumers.tolist():
            room[op] = 0
        for tensor, producer in enumerate(graph.tensor_producer.tolist()):
            size, device = int(graph.tensor_bytes[tensor]), self.device_of[producer]
            readers = graph.consumers_of_tensor[tensor].tolist()
            uses = [step.op_end[op] for op in readers if self.device_of[op] == device]
            uses += [transfer.end for transfer in transfers_of[tensor]]
            room[producer] -= size
            if room[producer] < 0:
                release = max(uses, default=step.op_end[producer])
                if tensor in held_tensors:
                    release = math.inf
                hold(device, size, step.op_start[producer], release)
            for transfer in transfers_of[tensor]:
                destination = transfer.destination
                release = max(
                    step.op_end[op] for op in readers if self.device_of[op] == destination
                )
                hold(destination, size, transfer.start, release)
        resident = [0] * len(self.devices)
        for op, size in enumerate(graph.parameter_bytes.tolist()):
            resident[self.device_of[op]] += size
        return [_peak(*of_device) for of_device in zip(resident, changes, strict=True)]


def _peak(num_bytes: int, changes: dict[float, int]) -> int:
    """Return the most that is held; of one moment only the sum counts: releases come first."""
    peak = num_bytes
    for time in sorted(changes):
        num_bytes += changes[time]
        peak = max(peak, num_bytes)
    return peak
