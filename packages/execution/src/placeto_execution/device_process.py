"""The process of one CPU device: it follows the device's program, `DeviceProcess.run`.

It is forked, so that it has the step, its program and the weights of its parent. What it sends lies
in memory that all processes share.
"""

import gc
import os
import pickle
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

from placeto_execution.devices import pin_to_cores
from placeto_execution.links import EmulatedLinks
from placeto_execution.programs import Receive, Run, Send, StepProgram
from placeto_execution.records import Record
from placeto_execution.shared_messages import SharedMessages
from placeto_graphs import DeviceStep, OpGraph, error_line

PARENT_INTERVAL = 0.5  # seconds after which a process looks again whether its parent is there
NOT_WAITING = -1


class Progress:
    """How far D devices are, in memory that all processes share.

    Attributes
    ----------
    instruction : D of int
        Number of the instruction that each device is at, counted from 1; 0 between two steps.
    awaited : D of int
        Message that each device waits for, or `NOT_WAITING`.
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
    graph, program : `OpGraph`, `StepProgram`
        What they run.
    make : function
        Returns the device's part of the step.
    shared : `SharedMessages`
        What devices send.
    progress : `Progress`
        Where the devices say how far they are.
    links : `EmulatedLinks` or None
        Links that delay what is sent.
    """

    number: int
    name: str
    graph: OpGraph
    program: StepProgram
    make: Callable[[], DeviceStep]
    shared: SharedMessages
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
        gc.freeze()  # what the parent has made stays, and takes no time
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
    if number == 0:
        return "begin"
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
        self._rooms: dict[int, Sequence[torch.Tensor]] = {}  # for what comes
        self._record = Record()

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
        progress.awaited[device], at[device] = NOT_WAITING, 0
        return record

    def _receive(self, number: int) -> None:
        tensor = self._messages[number].tensor
        if tensor is not None:
            self._rooms[number], more = self.step.expect(tensor)
            self._record.made.append((time.monotonic(), more))

    def _await(self, number: int) -> None:
        awaited, device, shared = self._task.progress.awaited, self._task.number, self._task.shared
        awaited[device] = number
        while not shared.has_come(number):
            os.sched_yield()
        awaited[device] = NOT_WAITING
        shared.take(number, self._rooms.pop(number, ()))
        tensor = self._messages[number].tensor
        if tensor is not None:
            self.step.arrived(tensor)
        self._record.arrived.append((number, time.monotonic()))

    def _send(self, number: int) -> None:
        message, start = self._messages[number], time.monotonic()
        shared, links, arrival = self._task.shared, self._task.links, start
        if message.tensor is not None:
            buffers = self.step.buffers(message.tensor, message.destination)
            shared.put(number, buffers)
            arrival = time.monotonic()
            if links is not None:
                num_bytes = sum(buffer.nbytes for buffer in buffers)
                start, arrival = links.reserve(message, num_bytes, start)
        self._record.sent.append((number, start))
        self._record.left.append((number, arrival))
        shared.announce(number, arrival)
