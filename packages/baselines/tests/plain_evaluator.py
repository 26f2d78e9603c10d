"""An evaluator in plain Python: the FIFO queues of devices and links, and what memory they hold.

It follows the design's rules of a simulated step, one event after the other, and is as slow as it
is short. The placers' results are checked with it, and nothing of it with the placers.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, PlacementProblem

OP_DONE, COPY_DONE, DEVICE_FREE, LINK_FREE = range(4)  # what happens first at one timestamp


class PlainEvaluator:
    """Simulates placements one by one, each only once, and counts how often it is asked."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.evaluated = 0
        self.known: dict[tuple[int, ...], tuple[float, list[int]]] = {}
        graph, cluster = problem.graph, problem.cluster
        assert cluster.queue == "fifo"
        self.num_ops = graph.num_ops
        self.group_of = problem.grouping.group_of.tolist()
        self.seconds = problem.compute_time.tolist()
        self.num_awaited = [len(row) for row in graph.inputs_of_op]
        for op, _ in graph.waits.tolist():
            self.num_awaited[op] += 1
        self.waiters = [row.tolist() for row in graph.waiters_of_op]
        self.held = set(graph.held_tensors.tolist())
        self.outputs = [row.tolist() for row in graph.tensors_of_op]
        self.readers = [row.tolist() for row in graph.consumers_of_tensor]
        self.size = graph.tensor_bytes.tolist()
        self.maker = graph.tensor_producer.tolist()
        self.parameters = graph.parameter_bytes.tolist()
        self.workspace = graph.workspace_bytes.tolist()
        self.op_overhead = [device.op_overhead for device in cluster.devices]
        self.copy_overhead = [device.transfer_overhead for device in cluster.devices]
        self.link = cluster.link.tolist()
        self.latency = cluster.latency.tolist()
        self.bandwidth = cluster.bandwidth.tolist()

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        found = [self.look_up(tuple(placement)) for placement in placements.tolist()]
        self.evaluated += len(found)
        return EvaluationBatch(
            runtime=np.array([runtime for runtime, _ in found], float),
            peak_memory=np.array([peaks for _, peaks in found], np.int64).reshape(
                len(found), self.problem.num_devices
            ),
        )

    def look_up(self, placement: tuple[int, ...]) -> tuple[float, list[int]]:
        if placement not in self.known:
            self.known[placement] = self.simulate(placement)
        return self.known[placement]

    def simulate(self, placement: Sequence[int]) -> tuple[float, list[int]]:
        """Return the runtime and the peak memory of each device."""
        step = _Step(self, [placement[group] for group in self.group_of])
        step.run()
        return max(step.end), self.peaks(step.at, step.start, step.end, step.copies)

    def peaks(
        self,
        at: list[int],
        start: list[float],
        end: list[float],
        copies: dict[tuple[int, int], tuple[float, float]],
    ) -> list[int]:
        changes: list[dict[float, int]] = [defaultdict(int) for _ in self.problem.cluster.devices]

        def hold(device: int, size: int, since: float, until: float) -> None:
            changes[device][since] += size
            changes[device][until] -= size

        held = [0 for _ in changes]
        for op, device in enumerate(at):
            held[device] += self.parameters[op]
            hold(device, self.workspace[op], start[op], end[op])
        for tensor, op in enumerate(self.maker):
            readers = self.readers[tensor]
            uses = [end[op], *(end[reader] for reader in readers if at[reader] == at[op])]
            for there in {at[reader] for reader in readers} - {at[op]}:
                since, until = copies[tensor, there]
                uses.append(until)
                last = max(end[reader] for reader in readers if at[reader] == there)
                hold(there, self.size[tensor], since, last)
            if not self.parameters[op]:
                until = math.inf if tensor in self.held else max(uses)
                hold(at[op], self.size[tensor], start[op], until)
        peaks = held.copy()
        for device, moments in enumerate(changes):
            for moment in sorted(moments):
                held[device] += moments[moment]
                peaks[device] = max(peaks[device], held[device])
        return peaks


class _Step:
    """One step of one placement, event by event."""

    def __init__(self, costs: PlainEvaluator, at: list[int]) -> None:
        self.costs = costs
        self.at = at  # the device of each op
        self.devices = range(costs.problem.num_devices)
        self.links = range(costs.problem.cluster.num_links)
        self.missing = costs.num_awaited.copy()
        self.start, self.end = [0.0] * costs.num_ops, [0.0] * costs.num_ops
        self.copies: dict[tuple[int, int], tuple[float, float]] = {}
        self.runnable: list[deque[int]] = [deque() for _ in self.devices]
        # The tensors that each link has to carry, and to which device.
        self.leaving: list[deque[tuple[int, int]]] = [deque() for _ in self.links]
        self.working, self.sending = [False for _ in self.devices], [False for _ in self.links]
        # When, what, the number of the device or the link, and an op, or a tensor and a device.
        self.future: list[tuple[float, int, int, tuple[int, int]]] = []

    def run(self) -> None:
        for op, missing in enumerate(self.missing):
            if not missing:
                self.runnable[self.at[op]].append(op)
        self.pick(0.0)
        while self.future:
            now = self.future[0][0]
            completed = []
            while self.future and self.future[0][0] == now:
                completed.append(heapq.heappop(self.future)[1:])
            for kind, resource, what in sorted(completed):
                self.deliver(now, kind, resource, what)
            self.pick(now)

    def deliver(self, now: float, kind: int, resource: int, what: tuple[int, int]) -> None:
        if kind == DEVICE_FREE:
            self.working[resource] = False
        elif kind == LINK_FREE:
            self.sending[resource] = False
        elif kind == OP_DONE:
            self.op_done(now, resource, what[0])
        else:
            tensor, there = what
            overhead = self.costs.copy_overhead[self.source(tensor)]
            self.rest(now, overhead, self.sending, LINK_FREE, resource)
            for reader in self.costs.readers[tensor]:
                if self.at[reader] == there:
                    self.arrived(reader)

    def source(self, tensor: int) -> int:
        return int(self.at[self.costs.maker[tensor]])

    def op_done(self, now: float, device: int, op: int) -> None:
        overhead = self.costs.op_overhead[device] if self.costs.seconds[op][device] > 0 else 0
        self.rest(now, overhead, self.working, DEVICE_FREE, device)
        for tensor in self.costs.outputs[op]:
            sent = {device}
            for reader in self.costs.readers[tensor]:
                there = self.at[reader]
                if there == device:
                    self.arrived(reader)
                elif there not in sent:
                    sent.add(there)
                    self.leaving[self.costs.link[device][there]].append((tensor, there))
        for waiter in self.costs.waiters[op]:
            self.arrived(waiter)

    def arrived(self, op: int) -> None:
        self.missing[op] -= 1
        if not self.missing[op]:
            self.runnable[self.at[op]].append(op)

    def rest(self, now: float, overhead: float, busy: list[bool], kind: int, resource: int) -> None:
        if overhead > 0:
            heapq.heappush(self.future, (now + overhead, kind, resource, (0, 0)))
        else:
            busy[resource] = False

    def pick(self, now: float) -> None:
        for device in self.devices:
            if self.runnable[device] and not self.working[device]:
                op = self.runnable[device].popleft()
                self.working[device] = True
                self.start[op], self.end[op] = now, now + self.costs.seconds[op][device]
                heapq.heappush(self.future, (self.end[op], OP_DONE, device, (op, 0)))
        for link in self.links:
            if self.leaving[link] and not self.sending[link]:
                tensor, there = self.leaving[link].popleft()
                device = self.source(tensor)
                self.sending[link] = True
                seconds = self.costs.size[tensor] / self.costs.bandwidth[device][there]
                done = now + (self.costs.latency[device][there] + seconds)
                self.copies[tensor, there] = (now, done)
                heapq.heappush(self.future, (done, COPY_DONE, link, (tensor, there)))
