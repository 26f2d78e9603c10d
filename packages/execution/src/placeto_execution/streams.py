"""Devices that one process runs, GPUs among them: it issues all programs in one order.

Each device has a stream for its ops, and each pair of devices others for what is sent. Events say
in which order streams work, so that the process waits for nothing before the end. Only a CPU, which
has no streams, computes at once, and waits for what it gets from a GPU.

`StreamedDevices` is where to begin to read.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_execution.devices import is_cuda
from placeto_execution.errors import ExecutionError
from placeto_execution.programs import Free, Instruction, Message, Receive, Run, StepProgram
from placeto_execution.records import Record
from placeto_graphs import ExecutableStep, error_line


@dataclass(frozen=True)
class _HostMoment:
    """A moment of a CPU, which has come."""

    time: float

    def seconds(self) -> float:
        return self.time


@dataclass(frozen=True)
class _CudaMoment:
    """A moment of a GPU: an event, and one of the same GPU of which the time is known."""

    event: Any
    origin: Any
    origin_time: float

    def seconds(self) -> float:
        """Return its time by `time.monotonic`, after it has come."""
        return self.origin_time + float(self.origin.elapsed_time(self.event)) * 1e-3


_Moment: TypeAlias = _HostMoment | _CudaMoment  # in which a stream has done what was issued before


class _HostStream:
    """The stream of a CPU, which does at once what is issued."""

    def entered(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def set_clock(self) -> None:
        """Do nothing, as it has the clock of the process."""

    def mark(self) -> _HostMoment:
        return _HostMoment(time.monotonic())

    def wait(self, moment: _Moment) -> None:
        if isinstance(moment, _CudaMoment):
            moment.event.synchronize()

    def keep(self, buffer: torch.Tensor) -> None:
        """Do nothing, as all is done."""


class _CudaStream:
    """A stream of a GPU."""

    def __init__(self, name: str) -> None:
        self._device = torch.device(name)
        new_stream: Any = torch.cuda.Stream
        self._stream = new_stream(self._device)
        self.set_clock()

    def set_clock(self) -> None:
        """Note what time it is; times since then are 24-bit numbers of milliseconds."""
        with self.entered():
            self._origin = self._event()
        self._origin.synchronize()
        self._origin_time = time.monotonic()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let what is issued go to this stream, and its GPU be the current one."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def mark(self) -> _CudaMoment:
        return _CudaMoment(self._event(), self._origin, self._origin_time)

    def wait(self, moment: _Moment) -> None:
        """Let what is issued from now on wait for a moment; those of CPUs have come."""
        if isinstance(moment, _CudaMoment):
            self._stream.wait_event(moment.event)

    def keep(self, buffer: torch.Tensor) -> None:
        """Let the memory of a tensor be used anew only after what was issued so far."""
        if buffer.is_cuda:
            buffer.record_stream(self._stream)

    def _event(self) -> Any:
        new_event: Any = torch.cuda.Event
        event = new_event(enable_timing=True)
        event.record(self._stream)
        return event


_Stream: TypeAlias = _HostStream | _CudaStream


class StreamedDevices:
    """Devices of which at least one is a GPU, run by this process; they run one placement.

    Parameters
    ----------
    step, program
        What runs.
    devices
        Names of the devices.
    op_device : int32[V]
        Device of each op.
    """

    def __init__(
        self,
        step: ExecutableStep,
        program: StepProgram,
        devices: Sequence[str],
        op_device: NDArray[np.int32],
    ) -> None:
        self._graph, self._program, self._devices = step.graph, program, devices
        self._steps = [step.on_device(n, devices, op_device) for n in range(len(devices))]
        self._streams = [_stream(name) for name in devices]
        pairs = {(each.source, each.destination) for each in program.messages}
        self._copy_streams = {pair: self._streams_of_pair(*pair) for pair in sorted(pairs)}
        self._notes: list[Any] = []  # records with moments, which are still to come, for times
        self._last: list[_Moment] = []  # moment of the last op of each device
        self._rooms: dict[int, tuple[Sequence[torch.Tensor], _Moment]] = {}
        self._arrivals: dict[int, _Moment] = {}

    def pieces(self, names: Collection[str] | None) -> Mapping[Any, Any]:
        """Return the pieces of results of all devices."""
        return {key: piece for step in self._steps for key, piece in step.pieces(names).items()}

    def close(self) -> None:
        """Do nothing: memory is given back with this object."""

    def run(self, feed: Any) -> tuple[list[Record], float]:
        """Run a step; return what the devices noted, and the time at which it began.

        Raises
        ------
        ExecutionError
            If an op fails.
        """
        with ExitStack() as stack:
            for step in self._steps:
                stack.enter_context(step.entered())
            for step, stream in zip(self._steps, self._streams, strict=True):
                with stream.entered():
                    step.begin(feed)
            self._finish()
            for stream in (*self._streams, *chain.from_iterable(self._copy_streams.values())):
                stream.set_clock()
            start = time.monotonic()
            self._notes = [Record() for _ in self._streams]
            self._last = [stream.mark() for stream in self._streams]
            for device, instruction in self._program.instructions:
                try:
                    with self._streams[device].entered():
                        self._issue(device, instruction)
                except Exception as error:
                    doing = self._program.text(instruction, self._graph)
                    line = f"{doing} on {self._devices[device]}: {error_line(error)}"
                    raise ExecutionError(line) from error
            self._finish()
        return [_with_times(notes) for notes in self._notes], start

    def _issue(self, device: int, instruction: Instruction) -> None:
        step, notes, last = self._steps[device], self._notes[device], self._last[device]
        if isinstance(instruction, Run):
            self._run(device, instruction)
        elif isinstance(instruction, Free):
            freed = step.free(instruction.tensor)
            notes.freed.append((instruction.tensor, last, freed))
        else:
            number = instruction.message
            message = self._program.messages[number]
            if not isinstance(instruction, Receive):
                self._send(number, message)
            elif message.tensor is not None:
                buffers, more = step.expect(message.tensor)
                self._rooms[number] = buffers, self._streams[device].mark()
                notes.made.append((last, more))

    def _run(self, device: int, instruction: Run) -> None:
        stream, step, notes = self._streams[device], self._steps[device], self._notes[device]
        for number in instruction.messages:
            stream.wait(self._arrivals.pop(number))
            tensor = self._program.messages[number].tensor
            if tensor is not None:
                step.arrived(tensor)
        start = stream.mark()
        more = step.run(instruction.op)
        end = self._last[device] = stream.mark()
        notes.ops.append((instruction.op, start, end))
        notes.made.append((start, more))

    def _send(self, number: int, message: Message) -> None:
        source = self._streams[message.source]
        if message.tensor is None:
            self._arrivals[number] = source.mark()
            return
        values = self._steps[message.source].buffers(message.tensor, message.destination)
        made = source.mark()
        buffers, is_there = self._rooms.pop(number)
        streams = self._copy_streams[message.source, message.destination]
        with ExitStack() as stack:
            for stream in streams:
                stream.wait(made)
                stream.wait(is_there)
                stack.enter_context(stream.entered())
            start = streams[-1].mark()
            for target, value in zip(buffers, values, strict=True):
                target.copy_(value, non_blocking=True)
                for stream in streams:
                    stream.keep(target)
                    stream.keep(value)
            self._arrivals[number] = streams[-1].mark()
        self._notes[message.source].sent.append((number, start))
        self._notes[message.destination].arrived.append((number, self._arrivals[number]))

    def _streams_of_pair(self, source: int, destination: int) -> list[_Stream]:
        """Return streams for what is sent: PyTorch copies on the current ones of both GPUs."""
        names = self._devices[destination], self._devices[source]
        return [_stream(name) for name in names if is_cuda(name)] or [_HostStream()]

    def _finish(self) -> None:
        for name in self._devices:
            if is_cuda(name):
                torch.cuda.synchronize(name)


def _with_times(notes: Any) -> Record:
    """Return a record with the times of its moments, all of which have come."""
    return Record(
        ops=[(op, start.seconds(), end.seconds()) for op, start, end in notes.ops],
        sent=[(message, moment.seconds()) for message, moment in notes.sent],
        arrived=[(message, moment.seconds()) for message, moment in notes.arrived],
        made=[(moment.seconds(), num_bytes) for moment, num_bytes in notes.made],
        freed=[(tensor, moment.seconds(), size) for tensor, moment, size in notes.freed],
    )


def _stream(name: str) -> _Stream:
    return _CudaStream(name) if is_cuda(name) else _HostStream()
