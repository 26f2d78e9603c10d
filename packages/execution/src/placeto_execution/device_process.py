"""The process of one CPU device: it follows the device's program, `DeviceProcess.run`.

It is forked, so that it has the step, its program and the weights of its parent. It sends tensors
through memory that all processes share.
"""

import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch

from placeto_execution.devices import pin_to_cores
from placeto_execution.programs import Receive, RunOp, Send, StepProgram
from placeto_execution.records import DeviceRecord
from placeto_execution.shared_messages import EmulatedLinks, SharedMessages
from placeto_graphs import DeviceStep, OpGraph, error_line

PARENT_INTERVAL = 0.5  # seconds after which a process looks again whether its parent is there
NOT_WAITING = -1


class Failure(str):
    """The error of a process, in one line."""

    __slots__ = ()


class DeviceProcess:
    """Runs the program of a device, in a process that is forked from the one that makes this."""

    def __init__(
        self,
        device: int,
        name: str,
        step: DeviceStep,
        graph: OpGraph,
        program: StepProgram,
        shared: SharedMessages,
        links: EmulatedLinks | None,
    ) -> None:
        self.name = name
        # The instruction that the device is at, counted from 1, or 0 between two steps; and the
        # message that it waits for. All processes share this memory.
        self.progress: Any = RawArray("q", [0, NOT_WAITING])
        self._step = step
        self._graph = graph
        self._program = program
        self._instructions = program.of_device(device)
        self._shared = shared
        self._links = links
        self._receive_buffers: dict[int, Sequence[torch.Tensor]] = {}  # for what comes
        self._record = DeviceRecord()

    @property
    def is_waiting(self) -> bool:
        return bool(self.progress[1] != NOT_WAITING)

    def activity(self) -> str:
        """Return what the device is doing, and its name."""
        position, awaited = self.progress
        if position == 0:
            return f"begin on {self.name}"
        instruction = Receive(awaited) if self.is_waiting else self._instructions[position - 1]
        return f"{self._program.text(instruction, self._graph)} on {self.name}"

    def serve(self, pipe: Connection, parent: int) -> None:
        """Call the methods that the parent names, until it ends this process or has ended itself.

        The pipe brings names of methods, each with its argument, and takes what they return.

        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        # In a new thread: the OpenMP threads of the one that was forked are not there any more.
        threading.Thread(target=self._serve, args=(pipe,), daemon=True).start()
        # No file tells of the parent's end: other processes that it forks would keep it open.
        while os.getppid() == parent:
            time.sleep(PARENT_INTERVAL)
        os._exit(1)

    def _serve(self, pipe: Connection) -> None:
        try:
            gc.freeze()  # what the parent has made stays, and takes no time
            with self._step.entered():
                pin_to_cores(self.name, torch.get_num_threads())
                while True:
                    method, argument = pickle.loads(pipe.recv_bytes())  # noqa: S301, of the parent
                    pipe.send_bytes(pickle.dumps(getattr(self, method)(argument)))
        except BaseException as error:
            with suppress(OSError):  # the parent may have ended
                pipe.send_bytes(pickle.dumps(Failure(f"{self.activity()}: {error_line(error)}")))

    def begin(self, feed: Any) -> None:
        """Put what is there before the step where it belongs."""
        self.progress[:] = 0, NOT_WAITING
        self._step.begin(feed)

    def pieces(self, names: Any) -> Any:
        return self._step.pieces(names)

    def run(self, start_time: float) -> DeviceRecord:
        """Follow the program from a time on, by `time.monotonic`; return what was noted."""
        record = self._record = DeviceRecord()
        step, progress, now = self._step, self.progress, time.monotonic
        while now() < start_time:
            pass
        record.start = now()
        for position, instruction in enumerate(self._instructions, start=1):
            progress[0] = position
            if isinstance(instruction, RunOp):
                for message_id in instruction.messages:
                    self._receive_message(message_id)
                start = now()
                num_bytes = step.run(instruction.op)
                record.ops.append((instruction.op, start, now()))
                record.allocations.append((start, num_bytes))
            elif isinstance(instruction, Send):
                self._send_message(instruction.message)
            elif isinstance(instruction, Receive):
                self._expect_message(instruction.message)
            else:
                freed = step.free(instruction.tensor)
                record.releases.append((instruction.tensor, now(), freed))
        progress[:] = 0, NOT_WAITING
        return record

    def _expect_message(self, message_id: int) -> None:
        tensor = self._program.messages[message_id].tensor
        if tensor is not None:
            self._receive_buffers[message_id], num_bytes = self._step.expect(tensor)
            self._record.allocations.append((time.monotonic(), num_bytes))

    def _receive_message(self, message_id: int) -> None:
        self.progress[1] = message_id
        self._shared.wait(message_id)
        self.progress[1] = NOT_WAITING
        start = time.monotonic()
        self._shared.take(message_id, self._receive_buffers.pop(message_id, ()))
        tensor = self._program.messages[message_id].tensor
        if tensor is not None:
            self._step.arrived(tensor)
        self._record.receives.append((message_id, start, time.monotonic()))

    def _send_message(self, message_id: int) -> None:
        message, start = self._program.messages[message_id], time.monotonic()
        arrival = start
        if message.tensor is not None:
            buffers = self._step.buffers(message.tensor, message.destination)
            self._shared.put(message_id, buffers)
            arrival = time.monotonic()
            if self._links is not None:
                num_bytes = sum(buffer.nbytes for buffer in buffers)
                start, arrival = self._links.reserve(message, num_bytes, start)
        self._record.send_starts.append((message_id, start))
        self._record.send_ends.append((message_id, arrival))
        self._shared.announce(message_id, arrival)
