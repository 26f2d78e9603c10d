"""The worker of one device: it runs ops, and tells the others what is done."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placeto_execution.clock import Clock
from placeto_execution.devices import pin_to_core
from placeto_execution.errors import ExecutionError
from placeto_execution.halt import Halt
from placeto_execution.inbox import DoneOp, Inbox
from placeto_execution.links import Transfer
from placeto_execution.plan import HERE, Plan
from placeto_execution.queues import Queue
from placeto_execution.timing import Timing
from placeto_graphs import OpGraph, StepRun, error_line


@dataclass
class Record:
    """What a worker has noted of a step; times are seconds.

    Attributes
    ----------
    ops : list of (int, float, float)
        Ops, and from when to when they ran.
    arrived : list of `Transfer`
        What has come from other devices.
    memory : list of (float, int)
        From when on the device holds so many bytes more, or fewer.
    """

    ops: list[tuple[int, float, float]] = field(default_factory=list)
    arrived: list[Transfer] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


class Worker:
    """Works off the ops of one device, as section 3 of the design says.

    All that concerns a device is done by its worker: which of its ops are ready, and what it holds.
    To others it speaks through their inboxes only.

    Parameters
    ----------
    device, name
        The number of the device in its cluster, and its real name.
    graph, plan, step_run
        What runs.
    queue
        Says which of the ops that are ready is next.
    timing
        Runs them.
    carry
        Called with a tensor, a destination and a time; sends the tensor.
    clock
        Says which messages may be read.
    inboxes
        Those of all workers.
    halt
        Stops all of them.
    missing_inputs : V of int
        How many inputs and other ops each op waits for; that of its own ops is the worker's.
    """

    def __init__(
        self,
        device: int,
        name: str,
        *,
        graph: OpGraph,
        plan: Plan,
        step_run: StepRun,
        queue: Queue[int],
        timing: Timing,
        carry: Callable[[int, int, float], None],
        clock: Clock,
        inboxes: Sequence[Inbox],
        halt: Halt,
        missing_inputs: list[int],
    ) -> None:
        self.record = Record()
        self.is_set_up = threading.Event()
        self.may_start = threading.Event()
        self._device = device
        self._name = name
        self._graph = graph
        self._plan = plan
        self._step_run = step_run
        self._queue = queue
        self._timing = timing
        self._carry = carry
        self._clock = clock
        self._inboxes = inboxes
        self._inbox = inboxes[device]
        self._halt = halt
        self._missing_inputs = missing_inputs
        self._uses = {key: count for key, count in plan.uses.items() if key[1] == device}
        self._ops = [op for op, place in enumerate(plan.op_device) if place == device]
        self._ready_at = dict.fromkeys(self._ops, 0.0)
        self._num_ops_left = len(self._ops)
        self._num_unsent = sum(
            destination != HERE
            for op in self._ops
            for tensor in plan.outputs[op]
            for destination, _ in plan.handed_over[tensor]
        )
        self._doing = "begin"

    def work(self) -> None:
        """Work until nothing is left to do, something fails, or another one stops all."""
        try:
            pin_to_core(self._name)
            with self._step_run.worker(self._device):
                self.is_set_up.set()
                self.may_start.wait()
                self._work_off()
        except BaseException as error:
            failure = ExecutionError(f"{self._doing} on {self._name}: {error_line(error)}")
            failure.__cause__ = error
            self._halt.call(failure)
        finally:
            self.is_set_up.set()

    def _work_off(self) -> None:
        for op in self._ops:
            if not self._missing_inputs[op]:
                self._queue.add(op)
        while self._has_work() and not self._halt.is_called:
            self._read_messages(self._timing.free_at)
            next_op = self._queue.pop()
            if next_op is not None:
                self._run(next_op)
            elif self._has_work() and not self._read_message(self._clock.now()):
                self._inbox.wait()

    def _has_work(self) -> bool:
        return self._num_ops_left > 0 or self._num_unsent > 0

    def _run(self, op: int) -> None:
        plan, device = self._plan, self._device
        self._doing = self._graph.op_names[op]
        start, end, due, num_bytes = self._timing.run(op, self._ready_at[op])
        self.record.ops.append((op, start, end))
        workspace = int(self._graph.workspace_bytes[op])
        self._note_memory(start, num_bytes + workspace)
        self._note_memory(end, -workspace)
        self._read_messages(due)
        self._num_ops_left -= 1
        for tensor in plan.outputs[op]:
            for destination, consumer in plan.handed_over[tensor]:
                if destination == HERE:
                    self._input_arrived(consumer, due)
                else:
                    self._carry(tensor, destination, due)
            if (tensor, device) not in self._uses:
                self._note_memory(end, -self._step_run.free(tensor, device))
        for place in dict.fromkeys(plan.op_device[waiter] for waiter in plan.waiters[op]):
            if place == device:
                self._is_done(op, due)
            else:
                self._inboxes[place].put(DoneOp(op, due))
        for tensor in plan.inputs[op]:
            self._used(tensor, end)

    def _read_messages(self, before: float) -> None:
        while self._read_message(before):
            pass

    def _read_message(self, before: float) -> bool:
        """Read the first message, if there is one of a time before this one."""
        transfer = self._inbox.take(before)
        if transfer is None:
            return False
        if isinstance(transfer, DoneOp):
            self._is_done(transfer.op, transfer.end)
            return True
        self._doing = f"transfer of an output of {self._producer_name(transfer.tensor)}"
        if transfer.destination == self._device:
            self._arrived(transfer)
        else:
            self._num_unsent -= 1
            self._used(transfer.tensor, transfer.end)
        return True

    def _arrived(self, transfer: Transfer) -> None:
        tensor, parcel = transfer.tensor, transfer.parcel
        transfer.parcel = None
        num_bytes = self._step_run.receive(tensor, self._device, parcel)
        self._note_memory(transfer.start, num_bytes)
        self.record.arrived.append(transfer)
        for op in self._plan.readers[tensor, self._device]:
            self._input_arrived(op, transfer.end)

    def _is_done(self, op: int, time: float) -> None:
        """Count down the ops of this device that wait for an op."""
        for waiter in self._plan.waiters[op]:
            if self._plan.op_device[waiter] == self._device:
                self._input_arrived(waiter, time)

    def _input_arrived(self, op: int, time: float) -> None:
        self._ready_at[op] = max(self._ready_at[op], time)
        self._missing_inputs[op] -= 1
        if not self._missing_inputs[op]:
            self._queue.add(op)

    def _used(self, tensor: int, time: float) -> None:
        """Count a read, or a transfer, after which a tensor may be given up."""
        key = tensor, self._device
        self._uses[key] -= 1
        if not self._uses[key]:
            self._note_memory(time, -self._step_run.free(tensor, self._device))

    def _note_memory(self, time: float, num_bytes: int) -> None:
        if num_bytes:
            self.record.memory.append((time, num_bytes))

    def _producer_name(self, tensor: int) -> str:
        return self._graph.op_names[int(self._graph.tensor_producer[tensor])]
