"""The simulator as its specification reads aloud: slow, plain Python, no Numba.

It is the oracle that the compiled simulator is compared with, event by event. Times are Python
floats, which round as float64 does, so that the two agree exactly.
"""

import heapq
from collections import defaultdict
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from placeto_graphs import PlacementProblem

OP_DONE, TRANSFER_DONE, DEVICE_FREE, BUS_FREE = range(4)


@dataclass
class Transfer:
    """A copy of a tensor on its way from one device to another."""

    tensor: int
    source: int
    destination: int
    start: float = -1.0
    end: float = -1.0


@dataclass
class Run:
    """What happened: times of ops and transfers, peaks of memory, and the order of events."""

    starts: list[float]
    ends: list[float]
    transfers: list[Transfer] = field(default_factory=list)
    events: list[tuple[float, str, int, int]] = field(default_factory=list)
    peak_memory: list[int] = field(default_factory=list)
    runtime: float = 0.0


def simulate(problem: PlacementProblem, placement: Sequence[int]) -> Run:
    """Simulate one step with the device of each group."""
    return _Simulation(problem, placement).run()


class _Simulation:
    def __init__(self, problem: PlacementProblem, placement: Sequence[int]) -> None:
        graph = problem.graph
        self.problem = problem
        self.graph = graph
        self.devices = range(problem.num_devices)
        self.device_of = [placement[group] for group in problem.grouping.group_of.tolist()]
        self.missing_inputs = [len(graph.inputs_of_op[op]) for op in range(graph.num_ops)]
        self.op_queues: list[deque[int]] = [deque() for _ in self.devices]
        self.transfer_queues: list[deque[Transfer]] = [deque() for _ in self.devices]
        self.device_is_idle = [True for _ in self.devices]
        self.bus_is_idle = [True for _ in self.devices]
        # (time, kind, device): what happens to which resource when; one event per resource.
        self.future: list[tuple[float, int, int]] = []
        self.running_op = [-1 for _ in self.devices]
        self.running_transfer: list[Transfer | None] = [None for _ in self.devices]
        self.result = Run(starts=[-1.0] * graph.num_ops, ends=[-1.0] * graph.num_ops)

    def run(self) -> Run:
        for op in range(self.graph.num_ops):
            if self.missing_inputs[op] == 0:
                self.op_queues[self.device_of[op]].append(op)
        self.pick_all(0.0)
        while self.future:
            now = self.future[0][0]
            while self.future and self.future[0][0] == now:
                # Everything that completes now is delivered before anything is picked; what a
                # pick completes at once is delivered in the next round.
                completed = []
                while self.future and self.future[0][0] == now:
                    completed.append(heapq.heappop(self.future)[1:])
                for kind, device in sorted(completed):
                    self.deliver(now, kind, device)
                self.pick_all(now)
        self.result.runtime = max(self.result.ends)
        self.result.peak_memory = self.peak_memory()
        return self.result

    def deliver(self, now: float, kind: int, device: int) -> None:
        if kind == OP_DONE:
            self.op_done(now, device, self.running_op[device])
        elif kind == TRANSFER_DONE:
            transfer = self.running_transfer[device]
            assert transfer is not None
            self.transfer_done(now, device, transfer)
        elif kind == DEVICE_FREE:
            self.device_is_idle[device] = True
        else:
            self.bus_is_idle[device] = True

    def op_done(self, now: float, device: int, op: int) -> None:
        self.result.ends[op] = now
        self.result.events.append((now, "op-done", device, op))
        took_time = self.problem.compute_time[op, device] > 0
        overhead = self.problem.cluster.devices[device].op_overhead if took_time else 0.0
        if overhead > 0:
            self.schedule(now + overhead, DEVICE_FREE, device)
        else:
            self.device_is_idle[device] = True
        for tensor in self.graph.tensors_of_op[op].tolist():
            sent_to = set()
            for consumer in self.graph.consumers_of_tensor[tensor].tolist():
                destination = self.device_of[consumer]
                if destination == device:
                    self.input_arrived(consumer)
                elif destination not in sent_to:
                    sent_to.add(destination)
                    self.transfer_queues[device].append(Transfer(tensor, device, destination))

    def transfer_done(self, now: float, source: int, transfer: Transfer) -> None:
        transfer.end = now
        self.result.events.append((now, "transfer-done", source, transfer.tensor))
        overhead = self.problem.cluster.devices[source].transfer_overhead
        if overhead > 0:
            self.schedule(now + overhead, BUS_FREE, source)
        else:
            self.bus_is_idle[source] = True
        for consumer in self.graph.consumers_of_tensor[transfer.tensor].tolist():
            if self.device_of[consumer] == transfer.destination:
                self.input_arrived(consumer)

    def input_arrived(self, op: int) -> None:
        self.missing_inputs[op] -= 1
        if self.missing_inputs[op] == 0:
            self.op_queues[self.device_of[op]].append(op)

    def pick_all(self, now: float) -> None:
        for device in self.devices:
            if self.device_is_idle[device] and self.op_queues[device]:
                self.pick_op(now, device)
        for device in self.devices:
            if self.bus_is_idle[device] and self.transfer_queues[device]:
                self.pick_transfer(now, device)

    def pick_op(self, now: float, device: int) -> None:
        op = self.op_queues[device].popleft()
        self.device_is_idle[device] = False
        self.result.starts[op] = now
        self.running_op[device] = op
        self.schedule(now + float(self.problem.compute_time[op, device]), OP_DONE, device)

    def pick_transfer(self, now: float, source: int) -> None:
        transfer = self.transfer_queues[source].popleft()
        self.bus_is_idle[source] = False
        transfer.start = now
        self.result.transfers.append(transfer)
        cluster, size = self.problem.cluster, float(self.graph.tensor_bytes[transfer.tensor])
        latency = float(cluster.latency[source, transfer.destination])
        duration = latency + size / float(cluster.bandwidth[source, transfer.destination])
        self.running_transfer[source] = transfer
        self.schedule(now + duration, TRANSFER_DONE, source)

    def schedule(self, time: float, kind: int, device: int) -> None:
        heapq.heappush(self.future, (time, kind, device))

    def peak_memory(self) -> list[int]:
        """Add up what each device holds from when to when."""
        graph, ends = self.graph, self.result.ends
        changes: list[dict[float, int]] = [defaultdict(int) for _ in self.devices]

        def hold(device: int, size: int, start: float, end: float) -> None:
            changes[device][start] += size
            changes[device][end] -= size

        transfers_of: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in self.result.transfers:
            transfers_of[transfer.tensor].append(transfer)
        resident = [0 for _ in self.devices]
        for op in range(graph.num_ops):
            device = self.device_of[op]
            resident[device] += int(graph.parameter_bytes[op])
            hold(device, int(graph.workspace_bytes[op]), self.result.starts[op], ends[op])
        for tensor, (producer, size) in enumerate(
            zip(graph.tensor_producer.tolist(), graph.tensor_bytes.tolist(), strict=True)
        ):
            device = self.device_of[producer]
            consumers = graph.consumers_of_tensor[tensor].tolist()
            sent = transfers_of[tensor]
            uses = [ends[consumer] for consumer in consumers if self.device_of[consumer] == device]
            uses += [transfer.end for transfer in sent]
            if graph.parameter_bytes[producer] == 0:
                hold(device, size, self.result.starts[producer], max(uses, default=ends[producer]))
            for transfer in sent:
                there = transfer.destination
                last = max(ends[c] for c in consumers if self.device_of[c] == there)
                hold(there, size, transfer.start, last)
        peaks = []
        for device in self.devices:
            # Releases come before allocations, so only the sum of a moment counts.
            held = peak = resident[device]
            for time in sorted(changes[device]):
                held += changes[device][time]
                peak = max(peak, held)
            peaks.append(peak)
        return peaks
