"""Compiles a placed step into a static program for each device, before anything runs.

All programs are parts of one order of the whole step. In it a transfer is one event: its source
sends, and its destination receives. No device can therefore wait for one that waits for it, even
if nothing is buffered. Each two devices send and receive in the same order.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeto_execution.errors import ExecutionError
from placeto_graphs import OpGraph, PlacementProblem, StepTimeline, compress_rows


class Message(NamedTuple):
    """A tensor that one device sends to another, or only the news that an op is done."""

    op: int  # the op that makes the tensor, or that is done
    tensor: int | None  # None for the news alone
    source: int
    destination: int
    link: int  # index of the link; news take no time of an emulated one


@dataclass(frozen=True, slots=True)
class RunOp:
    """Run an op, after the messages of some ids have arrived."""

    op: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Begin to send the message of an id."""

    message: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Make room for the message of an id, and let it arrive from now on."""

    message: int


@dataclass(frozen=True, slots=True)
class Free:
    """Give up a tensor."""

    tensor: int


Instruction: TypeAlias = RunOp | Send | Receive | Free


@dataclass(frozen=True)
class StepProgram:
    """The programs of D devices in a step; `compile_step` makes them.

    Attributes
    ----------
    messages : tuple of `Message`
        Messages, by their ids, which are their positions here.
    instructions : tuple of (int, `Instruction`)
        Instructions with their devices, in an order in which they could run one after the other.
    """

    messages: tuple[Message, ...]
    instructions: tuple[tuple[int, Instruction], ...]

    def of_device(self, device: int) -> tuple[Instruction, ...]:
        """Return the program of a device.

        Parameters
        ----------
        device
            Index of the device.
        """
        return tuple(instruction for owner, instruction in self.instructions if owner == device)

    def text(self, instruction: Instruction, graph: OpGraph) -> str:
        """Return what an instruction does, for messages of errors.

        Parameters
        ----------
        instruction
            Instruction of this program.
        graph
            Graph of the step, which names its ops.
        """
        if isinstance(instruction, RunOp):
            return graph.op_names[instruction.op]
        if isinstance(instruction, Free):
            op = int(graph.tensor_producer[instruction.tensor])
        else:
            op = self.messages[instruction.message].op
        return f"transfer of an output of {graph.op_names[op]}"


def compile_step(schedule: StepTimeline) -> StepProgram:
    """Return the programs of a placed step.

    Each device runs its ops in the order of the schedule. It makes room for a tensor when its
    transfer starts in the schedule, and gives it up after its last use. An op that waits for an op
    of another device waits for a message, unless earlier messages imply that this op is done.

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
    compiler = _Compiler(schedule)
    order = compiler.order()
    return compiler.program(order, compiler.news(order))


class _Compiler:
    """Compiles a step with the devices of its ops. Its events are V ops, and then its transfers."""

    def __init__(self, schedule: StepTimeline) -> None:
        self.schedule = schedule
        problem: PlacementProblem = schedule.problem
        self.graph: OpGraph = problem.graph
        self.link: list[list[int]] = problem.cluster.link.tolist()
        self.num_devices = problem.num_devices
        self.op_device: list[int] = schedule.op_device.tolist()
        self.producer: list[int] = self.graph.tensor_producer.tolist()
        self.edges: list[tuple[int, int]] = [tuple(pair) for pair in self.graph.edges.tolist()]
        self.waits = compress_rows(self.graph.num_ops, *self.graph.waits.T)
        self.transfers: list[tuple[int, int]] = list(
            zip(
                schedule.transfer_tensor.tolist(),
                schedule.transfer_destination.tolist(),
                strict=True,
            )
        )
        required = {
            (tensor, self.op_device[op])
            for tensor, op in self.edges
            if self.op_device[op] != self.op_device[self.producer[tensor]]
        }
        if len(self.transfers) != len(required) or set(self.transfers) != required:
            num_valid = len(required & set(self.transfers))
            raise ExecutionError(
                f"schedule: expected the {len(required)} transfers of this placement, each once, "
                f"got {len(self.transfers)}, {num_valid} of which are of it"
            )

    def order(self) -> list[int]:
        """Return all events by their starts, each after what it needs (Kahn's algorithm)."""
        import networkx as nx  # noqa: PLC0415 (names of devices, which options take, need none)

        schedule, num_ops, op_device = self.schedule, self.graph.num_ops, self.schedule.op_device
        starts = np.concatenate([schedule.op_start, schedule.transfer_start])
        ends = np.concatenate([schedule.op_end, schedule.transfer_end])
        tie_break = np.concatenate(
            [self.graph.topological_index, np.full(len(self.transfers), num_ops)]
        )
        rank = np.empty(len(starts), np.int64)
        rank[np.lexsort((tie_break, ends, starts))] = np.arange(len(starts))
        event_graph = nx.DiGraph()
        event_graph.add_nodes_from(range(len(starts)))
        by_rank = np.argsort(rank[:num_ops])
        for device in range(self.num_devices):  # which runs its ops in this order
            nx.add_path(event_graph, by_rank[op_device[by_rank] == device].tolist())
        event_of = {transfer: num_ops + index for index, transfer in enumerate(self.transfers)}
        event_graph.add_edges_from(
            (self.producer[tensor], event) for (tensor, _), event in event_of.items()
        )
        event_graph.add_edges_from(
            (event_of.get((tensor, self.op_device[op]), self.producer[tensor]), op)
            for tensor, op in self.edges
        )
        event_graph.add_edges_from(self.graph.waits[:, ::-1].tolist())
        try:
            return list(nx.lexicographical_topological_sort(event_graph, key=rank.__getitem__))
        except nx.NetworkXUnfeasible:
            raise ExecutionError(
                "schedule: expected one that runs each op after its inputs, got one in which ops "
                "and transfers wait for each other"
            ) from None

    def news(self, order: Sequence[int]) -> dict[int, list[int]]:
        """Return the devices to which a message has to say that an op is done, by the op.

        A vector clock counts the ops of each device that another one knows to be done. It comes
        with each message that an op waits for (Fidge 1988, Mattern 1989).
        """
        num_ops = self.graph.num_ops
        clock = [[0] * self.num_devices for _ in range(self.num_devices)]
        position = [0] * num_ops  # of an op on its device, counted from 1
        clock_after: list[list[int]] = [[]] * num_ops
        clock_sent: dict[tuple[int, int], list[int]] = {}
        news: defaultdict[int, list[int]] = defaultdict(list)
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
            waits = self.waits[event].tolist()
            for predecessor in sorted(waits, key=position.__getitem__, reverse=True):
                if clock[device][self.op_device[predecessor]] < position[predecessor]:
                    news[predecessor].append(device)
                    clock[device] = _latest(clock[device], clock_after[predecessor])
            clock[device][device] += 1
            position[event] = clock[device][device]
            clock_after[event] = clock[device].copy()
        return news

    def program(self, order: Sequence[int], news: Mapping[int, Sequence[int]]) -> StepProgram:
        """Write the instructions of all devices in one order; a tensor is freed at its last use."""
        self._news = news
        self._messages: list[Message] = []
        self._instructions: list[tuple[int, Instruction]] = []
        # Ids of messages that no op waits for yet, by op, tensor and destination.
        self._to_await: dict[tuple[int, int | None, int], int] = {}
        # Uses of a tensor on a device that are left. Those of tensors that are held never end.
        self._uses = Counter((tensor, self.op_device[op]) for tensor, op in self.edges)
        home = [self.op_device[producer] for producer in self.producer]
        self._uses.update((tensor, home[tensor]) for tensor, _ in self.transfers)
        self._uses.update((tensor, home[tensor]) for tensor in self.graph.held_tensors.tolist())
        for event in order:
            if event < self.graph.num_ops:
                self._emit_run(event)
            else:
                tensor, destination = self.transfers[event - self.graph.num_ops]
                op = self.producer[tensor]
                self._emit_transfer(op, tensor, destination)
                self._count_use(tensor, self.op_device[op])
        return StepProgram(tuple(self._messages), tuple(self._instructions))

    def _emit_run(self, op: int) -> None:
        device, inputs = self.op_device[op], self.graph.inputs_of_op[op].tolist()
        # The messages of which this op is the first on its device to need them.
        required: list[tuple[int, int | None, int]] = [
            (self.producer[tensor], tensor, device) for tensor in inputs
        ]
        required += [(predecessor, None, device) for predecessor in self.waits[op].tolist()]
        awaited = [self._to_await.pop(key) for key in required if key in self._to_await]
        self._instructions.append((device, RunOp(op, tuple(awaited))))

        for destination in sorted(self._news.get(op, ())):
            self._emit_transfer(op, None, destination)
        for tensor in inputs:
            self._count_use(tensor, device)
        for tensor in self.graph.tensors_of_op[op].tolist():
            if (tensor, device) not in self._uses:
                self._instructions.append((device, Free(tensor)))

    def _emit_transfer(self, op: int, tensor: int | None, destination: int) -> None:
        source, message_id = self.op_device[op], len(self._messages)
        link = self.link[source][destination]
        self._to_await[op, tensor, destination] = message_id
        self._messages.append(Message(op, tensor, source, destination, link))
        self._instructions.append((destination, Receive(message_id)))
        self._instructions.append((source, Send(message_id)))

    def _count_use(self, tensor: int, device: int) -> None:
        self._uses[tensor, device] -= 1
        if not self._uses[tensor, device]:
            self._instructions.append((device, Free(tensor)))


def _latest(clock: Sequence[int], other_clock: Sequence[int]) -> list[int]:
    return [max(pair) for pair in zip(clock, other_clock, strict=True)]


def topological_schedule(problem: PlacementProblem, placement: NDArray[np.int32]) -> StepTimeline:
    """Return a schedule in topological order, in which each tensor is sent when it was made."""
    graph, op_device = problem.graph, problem.expand(placement)
    start = graph.topological_index.astype(np.float64)
    home = op_device[graph.tensor_producer]
    tensor, reader = graph.edges.T
    is_remote = op_device[reader] != home[tensor]
    pairs = np.stack([tensor[is_remote], op_device[reader[is_remote]]], axis=1)
    sent, destination = np.unique(pairs, axis=0).T
    order = np.argsort(start[graph.tensor_producer[sent]], kind="stable")
    sent, destination = sent[order], destination[order]
    ready = start[graph.tensor_producer[sent]] + 1
    return StepTimeline(
        problem=problem,
        op_device=op_device,
        op_start=start,
        op_end=start + 1,
        transfer_tensor=sent.astype(np.int32),
        transfer_source=home[sent],
        transfer_destination=destination.astype(np.int32),
        transfer_link=problem.cluster.link[home[sent], destination],
        transfer_start=ready,
        transfer_end=ready,
        memory_time=np.empty(0),
        memory_device=np.empty(0, np.int32),
        memory_bytes=np.empty(0, np.int64),
    )
