"""The process of one CPU device: it follows the device's program, `DeviceProcess.run`.

It is forked, so that it has the step, its program and the weights of its parent. Bytes go from
process to process through gloo, the back end of `torch.distributed` for CPUs.
"""

import datetime as dt
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch
from torch import distributed

from placeto_execution.devices import pin_to_cores
from placeto_execution.links import EmulatedLinks
from placeto_execution.programs import Receive, Run, Send, StepProgram
from placeto_execution.records import Record
from placeto_graphs import DeviceStep, OpGraph, error_line

FOREVER = dt.timedelta(days=365)  # the parent finds out whether a message never comes
PARENT_INTERVAL = 0.5  # seconds after which a process looks again whether its parent is there
TAGS_PER_MESSAGE = 1 << 11
CHUNK_BYTES = 1 << 18  # on an emulated link, in which there is a token for each byte
MOST_CHUNKS = 1 << 8  # of a large tensor
NOT_WAITING, AT_END = -1, -2
LOOPBACK = "127.0.0.1"
NEWS = torch.zeros(1, dtype=torch.uint8)  # what is sent where there is no byte, to be waited for


class Progress:
    """How far each device is, in memory that all processes share.

    Attributes
    ----------
    instruction : D of int
        Number of the instruction that each device is at, counted from 1; 0 between two steps.
    awaited : D of int
        Message that each device waits for; `NOT_WAITING`, or `AT_END` of its program.
    """

    def __init__(self, num_devices: int) -> None:
        self.instruction: Any = RawArray("q", num_devices)
        self.awaited: Any = RawArray("q", [NOT_WAITING] * num_devices)


@dataclass(frozen=True)
class DeviceTask:
    """All that the process of a device needs.

    Attributes
    ----------
    number, name : int, str
        Device.
    num_devices : int
        Number of all devices.
    graph, program : `OpGraph`, `StepProgram`
        What they run.
    make : function
        Returns the device's part of the step.
    store : str
        Path of a file through which the processes find each other.
    progress : `Progress`
        Where the device says how far it is.
    links : `EmulatedLinks` or None
        Links that delay what is sent.
    """

    number: int
    name: str
    num_devices: int
    graph: OpGraph
    program: StepProgram
    make: Callable[[], DeviceStep]
    store: str
    progress: Progress
    links: EmulatedLinks | None


@dataclass(frozen=True)
class Failure:
    """What has gone wrong in a process, in one line."""

    line: str


def serve(task: DeviceTask, pipe: Connection, parent: int) -> None:
    """Do what the parent tells, until the parent ends this process or has ended itself.

    Parameters
    ----------
    task
        What runs.
    pipe
        Brings names of methods of `DeviceProcess`, with a value, and takes what they return.
    parent
        Number of the parent's process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    # In a new thread: the OpenMP threads of the one that was forked are not there any more.
    threading.Thread(target=_serve, args=(task, pipe), daemon=True).start()
    # No file tells of the parent's end: other processes that it forks would keep it open.
    while os.getppid() == parent:
        time.sleep(PARENT_INTERVAL)
    os._exit(1)


def _serve(task: DeviceTask, pipe: Connection) -> None:
    try:
        device = DeviceProcess(task)
        with device.step.entered():
            pin_to_cores(task.name, torch.get_num_threads())
            while True:
                what, value = pickle.loads(pipe.recv_bytes())  # noqa: S301, of the parent
                pipe.send_bytes(pickle.dumps(getattr(device, what)(value)))
    except BaseException as error:
        doing = doing_text(task.graph, task.program, task.number, task.progress)
        with suppress(OSError):  # the parent may have ended
            pipe.send_bytes(pickle.dumps(Failure(f"{doing} on {task.name}: {error_line(error)}")))


def doing_text(graph: OpGraph, program: StepProgram, device: int, progress: Progress) -> str:
    """Return what a device is doing."""
    number, awaited = progress.instruction[device], progress.awaited[device]
    if awaited == AT_END or number == 0:
        return "end of the step" if number else "begin"
    instruction = program.of_device(device)[number - 1]
    return program.text(instruction if awaited == NOT_WAITING else Receive(awaited), graph)


class DeviceProcess:
    """Runs the program of a device.

    Parameters
    ----------
    task
        What runs.
    """

    def __init__(self, task: DeviceTask) -> None:
        self.step = task.make()
        self._task = task
        self._instructions = task.program.of_device(task.number)
        self._messages = task.program.messages
        self._incoming: dict[int, list[Any]] = {}
        self._record = Record()
        self._errors: list[BaseException] = []
        self._sent: queue.Queue[Any] = queue.Queue()  # keeps buffers until they are sent
        self._link_queues: dict[int, queue.Queue[tuple[int, Sequence[torch.Tensor], float]]] = {}
        self._group: Any = None
        if self._messages:
            torch_distributed: Any = distributed  # says nothing of what is used here
            gloo = torch_distributed.ProcessGroupGloo
            store = torch_distributed.FileStore(task.store, task.num_devices)
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname=LOOPBACK)]
            options._timeout = FOREVER
            self._group = gloo(store, task.number, task.num_devices, options)
            self._start(self._finish_sending)

    def begin(self, feed: Any) -> None:
        """Put what is there before the step where it belongs."""
        self._task.progress.instruction[self._task.number] = 0
        self._task.progress.awaited[self._task.number] = NOT_WAITING
        self.step.begin(feed)

    def pieces(self, names: Any) -> Any:
        """Return the device's pieces of results."""
        return self.step.pieces(names)

    def run(self, start: float) -> Record:
        """Follow the program from a time on, by `time.monotonic`; return what was noted."""
        record = self._record = Record()
        step, now, progress = self.step, time.monotonic, self._task.progress
        at, device = progress.instruction, self._task.number
        while now() < start:
            pass
        record.began = now()
        for number, instruction in enumerate(self._instructions, start=1):
            at[device] = number
            if isinstance(instruction, Run):
                for message in instruction.messages:
                    self._await(message)
                begun = now()
                more = step.run(instruction.op)
                record.ops.append((instruction.op, begun, now()))
                record.made.append((begun, more))
            elif isinstance(instruction, Send):
                self._send(instruction.message)
            elif isinstance(instruction, Receive):
                self._receive(instruction.message)
            else:
                freed = step.free(instruction.tensor)
                record.freed.append((instruction.tensor, now(), freed))
        progress.awaited[device] = AT_END
        for sending in (*self._link_queues.values(), self._sent):
            sending.join()
        if self._errors:
            raise self._errors.pop()
        progress.awaited[device], at[device] = NOT_WAITING, 0
        return record

    def _receive(self, number: int) -> None:
        message = self._messages[number]
        buffers: Sequence[torch.Tensor] = []
        if message.tensor is not None:
            buffers, more = self.step.expect(message.tensor)
            self._record.made.append((time.monotonic(), more))
        self._incoming[number] = [
            self._group.recv([chunk], message.source, tag)
            for tag, chunk in self._chunks(number, buffers)
        ]

    def _await(self, number: int) -> None:
        awaited, device = self._task.progress.awaited, self._task.number
        awaited[device] = number
        for work in self._incoming.pop(number):
            work.wait()
        awaited[device] = NOT_WAITING
        tensor = self._messages[number].tensor
        if tensor is not None:
            self.step.arrived(tensor)
        self._record.arrived.append((number, time.monotonic()))

    def _send(self, number: int) -> None:
        message, now = self._messages[number], time.monotonic()
        buffers: Sequence[torch.Tensor] = []
        if message.tensor is not None:
            buffers = self.step.buffers(message.tensor, message.destination)
        if message.tensor is None or self._task.links is None:
            self._record.sent.append((number, now))
            for tag, chunk in self._chunks(number, buffers):
                self._send_chunk(number, tag, chunk)
            return
        if message.link not in self._link_queues:
            self._link_queues[message.link] = queue.Queue()
            self._start(self._carry, self._link_queues[message.link], self._task.links)
        self._link_queues[message.link].put((number, buffers, now))

    def _send_chunk(self, number: int, tag: int, chunk: torch.Tensor) -> None:
        self._sent.put((number, self._group.send([chunk], self._messages[number].destination, tag)))

    def _chunks(
        self, number: int, buffers: Sequence[torch.Tensor]
    ) -> list[tuple[int, torch.Tensor]]:
        """Return what is sent of a message, with tags; emulated links carry smaller chunks."""
        chunks = [buffer for buffer in buffers if buffer.numel()] or [NEWS]
        if self._task.links is not None:
            flat = [chunk.view(-1).view(torch.uint8) for chunk in chunks]
            size = max(CHUNK_BYTES, sum(each.nbytes for each in flat) // MOST_CHUNKS + 1)
            chunks = [chunk for each in flat for chunk in torch.split(each, size)]
        return [(number * TAGS_PER_MESSAGE + place, chunk) for place, chunk in enumerate(chunks)]

    def _carry(self, waiting: "queue.Queue[Any]", links: EmulatedLinks) -> None:
        """Send one message after the other, each chunk when its emulated link has carried it."""
        while True:
            number, buffers, ready = waiting.get()
            chunks = self._chunks(number, buffers)
            num_bytes = [chunk.nbytes for _, chunk in chunks]
            reservation = links.reserve(self._messages[number], num_bytes, ready)
            self._record.sent.append((number, reservation.start))
            for (tag, chunk), leaves in zip(chunks, reservation.leaves, strict=True):
                while (seconds := leaves - time.monotonic()) > 0:
                    time.sleep(seconds)
                self._send_chunk(number, tag, chunk)
            del buffers, chunks
            waiting.task_done()

    def _finish_sending(self) -> None:
        while True:
            number, work = self._sent.get()
            try:
                work.wait()
                self._record.left.append((number, time.monotonic()))
            except RuntimeError as error:
                self._errors.append(error)
            del work  # and the buffer with it
            self._sent.task_done()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()
