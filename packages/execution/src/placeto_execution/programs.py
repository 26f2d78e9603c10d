"""Compiles a placed step into a static program for each device, before anything runs.

All programs are parts of one order of the whole step. In it a transfer is one event: its source
sends, and its destination receives. No device can therefore wait for one that waits for it, even
if nothing is buffered. Each two devices send and receive in the same order.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeto_execution.errors import ExecutionError
from placeto_graphs import OpGraph, PlacementProblem, StepTimeline


class Message(NamedTuple):
    """A tensor that one device sends to another, or only the news that an op is done.

    Attributes
    ----------
    op : int
        Op that makes the tensor, or is done.
    tensor : int or None
        Tensor; None for the news alone.
    source, destination, link : int
        Devices and link; news take the link, too, but no time of an emulated one.
    """

    op: int
    tensor: int | None
    source: int
    destination: int
    link: int


@dataclass(frozen=True, slots=True)
class Run:
    """Run an op, after some messages, given by their numbers, have arrived."""

    op: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Begin to send a message, given by its number."""

    message: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Make room for a message, given by its number, and let it arrive from now on."""

    message: int


@dataclass(frozen=True, slots=True)
class Free:
    """Give up a tensor."""

    tensor: int


Instruction: TypeAlias = Run | Send | Receive | Free


@dataclass(frozen=True)
class StepProgram:
    """The programs of D devices in a step.

    Attributes
    ----------
    messages : tuple of `Message`
        Messages, by their numbers.
    instructions : tuple of (int, `Instruction`)
        Instructions with their devices, in an order in which they could run one after the other.

    Examples
    --------
    `compile_step` makes one:

    >>> import networkx as nx
    >>> from placeto_execution.programs import topological_schedule
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> graph = from_networkx(nx.path_graph(2, create_using=nx.DiGraph))
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xcpu"),
    ...     compute_time=np.zeros((2, 2)),
    ... )
    >>> program = compile_step(topological_schedule(problem, np.array([0, 1], np.int32)))
    >>> program.of_device(0)
    (Run(op=0, messages=()), Send(message=0), Free(tensor=0))
    >>> program.of_device(1)
    (Receive(message=0), Run(op=1, messages=(0,)), Free(tensor=0))
    """

    messages: tuple[Message, ...]
    instructions: tuple[tuple[int, Instruction], ...]

    @cached_property
    def _of_devices(self) -> dict[int, tuple[Instruction, ...]]:
        lists: defaultdict[int, list[Instruction]] = defaultdict(list)
        for device, instruction in self.instructions:
            lists[device].append(instruction)
        return {device: tuple(own) for device, own in lists.items()}

    def of_device(self, device: int) -> tuple[Instruction, ...]:
        """Return the program of a device."""
        return self._of_devices.get(device, ())

    def text(self, instruction: Instruction, graph: OpGraph) -> str:
        """Return what an instruction does, for messages of errors."""
        if isinstance(instruction, Run):
            return graph.op_names[instruction.op]
        if isinstance(instruction, Free):
            op = int(graph.tensor_producer[instruction.tensor])
        else:
            op = self.messages[instruction.message].op
        return f"transfer of an output of {graph.op_names[op]}"


def compile_step(schedule: StepTimeline) -> StepProgram:
    """Return the programs of a placed step.

    Each device runs its ops in the order of the schedule. It receives a tensor from when on the
    transfer starts in the schedule, and gives it up after its last use. An op that waits for one
    of another device waits for a message, unless it knows from others that the op is done.

    Parameters
    ----------
    schedule
        Devices and order of ops, and times at which tensors are sent: a simulated step, or one
        that ran. Only the order of its times counts.

    Raises
    ------
    ExecutionError
        If the schedule lacks a transfer or has one too many, or if its order cannot be kept.
    """
    step = _PlacedStep(schedule)
    order = step.order()
    return step.program(order, step.news(order))


class _PlacedStep:
    """A step with the devices of its ops. Its events are V ops, and then its transfers."""

    def __init__(self, schedule: StepTimeline) -> None:
        self.schedule = schedule
        problem: PlacementProblem = schedule.problem
        self.graph: OpGraph = problem.graph
        self.link: list[list[int]] = problem.cluster.link.tolist()
        self.num_devices = problem.num_devices
        self.op_device: list[int] = schedule.op_device.tolist()
        self.producer: list[int] = self.graph.tensor_producer.tolist()
        self.edges: list[tuple[int, int]] = [tuple(pair) for pair in self.graph.edges.tolist()]
        self.waits: defaultdict[int, list[int]] = defaultdict(list)
        for op, before in self.graph.waits.tolist():
            self.waits[op].append(before)
        self.transfers: list[tuple[int, int]] = list(
            zip(
                schedule.transfer_tensor.tolist(),
                schedule.transfer_destination.tolist(),
                strict=True,
            )
        )
        needed = {
            (tensor, self.op_device[op])
            for tensor, op in self.edges
            if self.op_device[op] != self.op_device[self.producer[tensor]]
        }
        if len(self.transfers) != len(needed) or set(self.transfers) != needed:
            raise ExecutionError(
                f"schedule: expected the {len(needed)} transfers of this placement, each once, "
                f"got {len(self.transfers)}, {len(needed & set(self.transfers))} of which are of it"
            )

    def order(self) -> list[int]:
        """Return all events by their starts, each after what it needs (Kahn's algorithm)."""
        schedule, num_ops = self.schedule, self.graph.num_ops
        starts = np.concatenate([schedule.op_start, schedule.transfer_start])
        ends = np.concatenate([schedule.op_end, schedule.transfer_end])
        late = np.concatenate([self.graph.topological_index, np.full(len(self.transfers), num_ops)])
        rank = np.empty(len(starts), np.int64)
        rank[np.lexsort((late, ends, starts))] = np.arange(len(starts))
        leads_to: list[list[int]] = [[] for _ in starts]
        num_before = [0] * len(starts)

        def follows(before: int, after: int) -> None:
            leads_to[before].append(after)
            num_before[after] += 1

        for ops in self._ops_of_devices(rank[:num_ops]):
            for before, after in pairwise(ops):
                follows(before, after)
        event_of = {transfer: num_ops + number for number, transfer in enumerate(self.transfers)}
        for (tensor, _), event in event_of.items():
            follows(self.producer[tensor], event)
        for tensor, op in self.edges:
            follows(event_of.get((tensor, self.op_device[op]), self.producer[tensor]), op)
        for op, others in self.waits.items():
            for before in others:
                follows(before, op)
        ready = [(int(rank[event]), event) for event, count in enumerate(num_before) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, event = heapq.heappop(ready)
            order.append(event)
            for after in leads_to[event]:
                num_before[after] -= 1
                if not num_before[after]:
                    heapq.heappush(ready, (int(rank[after]), after))
        if len(order) < len(starts):
            raise ExecutionError(
                "schedule: expected one that runs each op after its inputs, got one in which "
                f"{len(starts) - len(order)} ops and transfers wait forever"
            )
        return order

    def _ops_of_devices(self, rank: NDArray[np.int64]) -> list[list[int]]:
        ops: list[list[int]] = [[] for _ in range(self.num_devices)]
        for op in np.argsort(rank).tolist():
            ops[self.op_device[op]].append(op)
        return ops

    def news(self, order: Sequence[int]) -> set[tuple[int, int]]:
        """Return the (op, device) of which a device has to be told that the op is done.

        A vector clock counts the ops of each device that another one knows to be done. It comes
        with each message that an op waits for (Fidge 1988, Mattern 1989).
        """
        num_ops = self.graph.num_ops
        clock = [[0] * self.num_devices for _ in range(self.num_devices)]
        place = [0] * num_ops  # of an op on its device, counted from 1
        clock_after: list[list[int]] = [[]] * num_ops
        clock_sent: dict[tuple[int, int], list[int]] = {}
        news = set()
        for event in order:
            if event >= num_ops:
                tensor, destination = self.transfers[event - num_ops]
                source = self.op_device[self.producer[tensor]]
                clock_sent[tensor, destination] = clock[source].copy()
                continue
            device = self.op_device[event]
            for tensor in self.graph.inputs_of_op[event].tolist():
                if (tensor, device) in clock_sent:
                    clock[device] = _latest(clock[device], clock_sent.pop((tensor, device)))
            for before in sorted(self.waits[event], key=place.__getitem__, reverse=True):
                if clock[device][self.op_device[before]] < place[before]:
                    news.add((before, device))
                    clock[device] = _latest(clock[device], clock_after[before])
            clock[device][device] += 1
            place[event] = clock[device][device]
            clock_after[event] = clock[device].copy()
        return news

    def program(self, order: Sequence[int], news: set[tuple[int, int]]) -> StepProgram:
        """Write down the instructions of all devices in one order."""
        return StepProgram(*_Writer(self, news).write(order))


class _Writer:
    """Writes instructions, and counts who still needs what."""

    def __init__(self, step: _PlacedStep, news: set[tuple[int, int]]) -> None:
        self._step = step
        self._news: defaultdict[int, list[int]] = defaultdict(list)
        for op, device in sorted(news):
            self._news[op].append(device)
        self._messages: list[Message] = []
        self._instructions: list[tuple[int, Instruction]] = []
        self._to_await: dict[tuple[int, int], int] = {}  # a message, by tensor and destination
        self._news_to_await: dict[tuple[int, int], int] = {}  # a message, by op and destination
        self._uses = Counter((tensor, step.op_device[op]) for tensor, op in step.edges)
        home = [step.op_device[producer] for producer in step.producer]
        self._uses.update((tensor, home[tensor]) for tensor, _ in step.transfers)
        self._uses.update((tensor, home[tensor]) for tensor in step.graph.held_tensors.tolist())

    def write(
        self, order: Sequence[int]
    ) -> tuple[tuple[Message, ...], tuple[tuple[int, Instruction], ...]]:
        num_ops = self._step.graph.num_ops
        for event in order:
            if event < num_ops:
                self._run(event)
            else:
                tensor, destination = self._step.transfers[event - num_ops]
                op = self._step.producer[tensor]
                self._to_await[tensor, destination] = self._send(op, tensor, destination)
                self._used(tensor, self._step.op_device[op])
        return tuple(self._messages), tuple(self._instructions)

    def _run(self, op: int) -> None:
        step, device = self._step, self._step.op_device[op]
        self._instructions.append((device, Run(op, tuple(self._awaited(op, device)))))
        for destination in self._news[op]:
            self._news_to_await[op, destination] = self._send(op, None, destination)
        for tensor in step.graph.inputs_of_op[op].tolist():
            self._used(tensor, device)
        for tensor in step.graph.tensors_of_op[op].tolist():
            if (tensor, device) not in self._uses:
                self._instructions.append((device, Free(tensor)))

    def _awaited(self, op: int, device: int) -> Iterator[int]:
        """Yield the messages of which an op is the first on its device to need them."""
        for tensor in self._step.graph.inputs_of_op[op].tolist():
            if (tensor, device) in self._to_await:
                yield self._to_await.pop((tensor, device))
        for before in self._step.waits[op]:
            if (before, device) in self._news_to_await:
                yield self._news_to_await.pop((before, device))

    def _send(self, op: int, tensor: int | None, destination: int) -> int:
        source, number = self._step.op_device[op], len(self._messages)
        link = self._step.link[source][destination]
        self._messages.append(Message(op, tensor, source, destination, link))
        self._instructions.append((destination, Receive(number)))
        self._instructions.append((source, Send(number)))
        return number

    def _used(self, tensor: int, device: int) -> None:
        self._uses[tensor, device] -= 1
        if not self._uses[tensor, device]:
            self._instructions.append((device, Free(tensor)))


def _latest(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(pair) for pair in zip(one, other, strict=True)]


def topological_schedule(problem: PlacementProblem, placement: NDArray[np.int32]) -> StepTimeline:
    """Return a schedule in topological order, in which each tensor is sent when it was made.

    Parameters
    ----------
    problem
        Problem that is placed; its times do not count.
    placement : int32[G]
        Device of each group.
    """
    graph, op_device = problem.graph, problem.expand(placement)
    start = graph.topological_index.astype(np.float64)
    home = op_device[graph.tensor_producer]
    tensor, reader = graph.edges[:, 0], graph.edges[:, 1]
    leaves = op_device[reader] != home[tensor]
    sent = np.unique(np.stack([tensor[leaves], op_device[reader[leaves]]], axis=1), axis=0)
    sent = sent[np.argsort(start[graph.tensor_producer[sent[:, 0]]], kind="stable")]
    made = start[graph.tensor_producer[sent[:, 0]]] + 1
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=start,
        op_end=start + 1,
        transfer_tensor=sent[:, 0].astype(np.int32),
        transfer_source=home[sent[:, 0]],
        transfer_destination=sent[:, 1].astype(np.int32),
        transfer_link=problem.cluster.link[home[sent[:, 0]], sent[:, 1]],
        transfer_start=made,
        transfer_end=made,
        memory_time=np.empty(0),
        memory_device=np.empty(0, np.int32),
        memory_bytes=np.empty(0, np.int64),
    )
