"""GPUs, which one process runs: it issues the programs of all of them in one order.

Each GPU has a stream for its ops, and each pair of devices others for what is sent. Events say in
which order streams work, so that the process waits for no GPU before the end. CPUs beside GPUs are
processes (`DeviceProcesses`); what they send and get lies in memory that all processes share.

`StreamedDevices` is where to begin to read.
"""

import gc
import time
from collections import ChainMap, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_execution import processes
from placeto_execution.devices import is_cuda
from placeto_execution.errors import ExecutionError
from placeto_execution.processes import DeviceProcesses
from placeto_execution.programs import Free, Instruction, Message, Receive, RunOp, StepProgram
from placeto_execution.records import DeviceRecord
from placeto_graphs import ExecutableStep, error_line

WATCH_INTERVAL = 0.1  # seconds after which it is seen whether an awaited process has ended


@dataclass(frozen=True)
class _Moment:
    """When a stream has done what was issued before: an event, and one of which time is known."""

    event: Any
    origin: Any
    origin_time: float

    @property
    def has_come(self) -> bool:
        return bool(self.event.query())

    def seconds(self) -> float:
        """Return its time by `time.monotonic`, after it has come."""
        return self.origin_time + float(self.origin.elapsed_time(self.event)) * 1e-3


@cache
def _cuda_stream(name: str, _purpose: str) -> Any:
    """Return a stream of a GPU: the same in all runs, as memory is kept for each stream."""
    new_stream: Any = torch.cuda.Stream
    return new_stream(torch.device(name))


class _Stream:
    """A stream of a GPU for one purpose."""

    def __init__(self, name: str, purpose: str) -> None:
        self._device = torch.device(name)
        self._stream = _cuda_stream(name, purpose)
        self.set_clock()

    def set_clock(self) -> None:
        """Note what time it is; times since then are 24-bit numbers of milliseconds."""
        with torch.cuda.device(self._device):
            self._origin = self._event()
        self._origin.synchronize()
        self._origin_time = time.monotonic()

    def enter(self) -> None:
        """Let what is issued from now on go to this stream, and its GPU be the current one."""
        torch.cuda.set_stream(self._stream)

    def mark(self) -> _Moment:
        return _Moment(self._event(), self._origin, self._origin_time)

    def wait(self, moment: _Moment) -> None:
        """Let what is issued from now on wait for a moment."""
        self._stream.wait_event(moment.event)

    def keep(self, buffer: torch.Tensor) -> None:
        """Let the memory of a tensor be used anew only after what was issued so far."""
        if buffer.is_cuda:
            buffer.record_stream(self._stream)

    def staging(self, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return memory of the CPU like buffers, which a GPU reads and writes by itself."""
        return [torch.empty_like(buffer, device="cpu", pin_memory=True) for buffer in buffers]

    def _event(self) -> Any:
        new_event: Any = torch.cuda.Event
        event = new_event(enable_timing=True)
        event.record(self._stream)
        return event


class StreamedDevices:
    """GPUs, run by this process, and processes of the CPUs of the step; they run one placement."""

    def __init__(
        self,
        step: ExecutableStep,
        program: StepProgram,
        devices: Sequence[str],
        op_device: NDArray[np.int32],
    ) -> None:
        self._graph, self._program, self._devices = step.graph, program, devices
        self._gpus = [device for device, name in enumerate(devices) if is_cuda(name)]
        self._steps = {device: step.on_device(device, devices, op_device) for device in self._gpus}
        self._streams = {gpu: _Stream(devices[gpu], f"ops of {gpu}") for gpu in self._gpus}
        self._instructions = [
            (device, instruction)
            for device, instruction in program.instructions
            if device in self._streams
        ]
        pairs = sorted({(message.source, message.destination) for message in program.messages})
        # PyTorch copies on the current streams of both GPUs.
        self._copy_streams: dict[tuple[int, int], list[_Stream]] = {}
        for pair in pairs:
            gpus_of_pair = [device for device in reversed(pair) if device in self._streams]
            self._copy_streams[pair] = [
                _Stream(devices[gpu], f"{gpu} of {pair}") for gpu in gpus_of_pair
            ]
        self._processes = DeviceProcesses(step, program, devices, op_device, None)
        self._current: _Stream | None = None
        self._notes: dict[int, Any] = {}  # records with moments, which are still to come, for times
        self._last: dict[int, _Moment] = {}  # moment of the last op of each device
        self._receive_buffers: dict[int, tuple[Sequence[torch.Tensor], _Moment]] = {}
        self._arrivals: dict[int, _Moment] = {}
        # Messages to CPUs, which are there for their processes from a moment on.
        self._leaving: deque[tuple[int, Sequence[torch.Tensor], _Moment]] = deque()

    def pieces(self, names: Collection[str]) -> Mapping[Any, Any]:
        of_gpus: list[Any] = [step.pieces(names) for step in self._steps.values()]
        return ChainMap(*of_gpus, dict(self._processes.pieces(names)))

    def close(self) -> None:
        """End the processes; memory of GPUs is given back with this object."""
        self._processes.close()

    def run(self, feed: Any) -> tuple[list[DeviceRecord], float]:
        """Run a step; return what the devices noted, and the time at which it began."""
        self._processes.call("begin", feed)
        with ExitStack() as stack:
            for step in self._steps.values():
                stack.enter_context(step.entered())
            stack.enter_context(self._on_own_streams())
            if gc.isenabled():  # a collection can take as long as a step
                gc.disable()
                stack.callback(gc.enable)
            for device, step in self._steps.items():
                with self._naming("begin", device):
                    self._enter(self._streams[device])
                    step.begin(feed)
            self._finish()
            for stream in (*self._streams.values(), *chain(*self._copy_streams.values())):
                stream.set_clock()
            self._receive_buffers, self._arrivals, self._leaving = {}, {}, deque()
            start = time.monotonic() + processes.LEAD
            self._processes.begin_call("run", start)
            while time.monotonic() < start:
                pass
            self._notes = {device: DeviceRecord() for device in self._gpus}
            self._last = {device: stream.mark() for device, stream in self._streams.items()}
            for device, instruction in self._instructions:
                with self._naming(instruction, device):
                    self._enter(self._streams[device])
                    self._issue(device, instruction)
                self._announce()
            while self._leaving:
                self._announce()
            self._finish()
        records = self._processes.replies()
        for device, notes in self._notes.items():
            records[device] = _timed(notes)
        return [records[device] for device in range(len(self._devices))], start

    def _issue(self, device: int, instruction: Instruction) -> None:
        step, notes, last = self._steps[device], self._notes[device], self._last[device]
        if isinstance(instruction, RunOp):
            self._run(device, instruction)
        elif isinstance(instruction, Free):
            notes.releases.append((instruction.tensor, last, step.free(instruction.tensor)))
        else:
            message_id = instruction.message
            message = self._program.messages[message_id]
            if not isinstance(instruction, Receive):
                self._send(message_id, message)
            elif message.tensor is not None:
                buffers, num_bytes = step.expect(message.tensor)
                self._receive_buffers[message_id] = buffers, self._streams[device].mark()
                notes.allocations.append((last, num_bytes))

    def _run(self, device: int, instruction: RunOp) -> None:
        stream, step, notes = self._streams[device], self._steps[device], self._notes[device]
        for message_id in instruction.messages:
            message = self._program.messages[message_id]
            if message.source not in self._streams:
                self._take(message_id, message)
            if message_id in self._arrivals:
                stream.wait(self._arrivals.pop(message_id))
            if message.tensor is not None:
                step.arrived(message.tensor)
        start = stream.mark()
        num_bytes = step.run(instruction.op)
        end = self._last[device] = stream.mark()
        notes.ops.append((instruction.op, start, end))
        notes.allocations.append((start, num_bytes))

    def _send(self, message_id: int, message: Message) -> None:
        source = self._streams[message.source]
        is_to_gpu = message.destination in self._streams
        values: Sequence[torch.Tensor] = []
        if message.tensor is not None:
            values = self._steps[message.source].buffers(message.tensor, message.destination)
        produced = source.mark()
        if message.tensor is None:
            arrival, targets = produced, values
        else:
            if is_to_gpu:
                targets, free_from = self._receive_buffers.pop(message_id)
            else:
                targets, free_from = source.staging(values), produced
            arrival = self._copy(message_id, message, values, targets, [produced, free_from])
        if is_to_gpu:
            self._arrivals[message_id] = arrival
        else:
            self._leaving.append((message_id, targets, arrival))

    def _take(self, message_id: int, message: Message) -> None:
        """Get a message of the process of a CPU, which the GPU could not do without anyway."""
        shared = self._processes.shared

        def has_come() -> bool:
            until = time.monotonic() + WATCH_INTERVAL
            while not shared.has_come(message_id):
                self._announce()
                if time.monotonic() > until:
                    return False
            return True

        self._processes.wait_until(has_come, is_sending=lambda: bool(self._leaving))
        buffers, free_from = self._receive_buffers.pop(message_id, ((), None))
        start = time.monotonic()
        stream = self._streams[message.destination]
        staging = stream.staging(buffers)
        shared.take(message_id, staging)
        staged = time.monotonic() - start
        if free_from is not None:
            arrival = self._copy(message_id, message, staging, buffers, [free_from], staged)
            self._arrivals[message_id] = arrival
            self._enter(stream)

    def _copy(
        self,
        message_id: int,
        message: Message,
        values: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        moments: Sequence[_Moment],
        staged: float = 0.0,
    ) -> _Moment:
        """Copy after some moments; return that in which it is done.

        The message is noted as received for the seconds of the copy, and the ``staged`` seconds in
        which it was copied to memory that the GPU reads. The time between them, in which the copy
        may wait for its buffers, is not a part of it.
        """
        streams = self._copy_streams[message.source, message.destination]
        for stream in streams:
            for moment in moments:
                stream.wait(moment)
            self._enter(stream)
        start = streams[-1].mark()
        for target, value in zip(targets, values, strict=True):
            target.copy_(value, non_blocking=True)
            for stream in streams:
                stream.keep(target)
                stream.keep(value)
        arrival = streams[-1].mark()
        if message.source in self._notes:
            self._notes[message.source].send_starts.append((message_id, start))
        if message.destination in self._notes:
            self._notes[message.destination].receives.append((message_id, start, arrival, staged))
        return arrival

    def _announce(self) -> None:
        """Give processes of CPUs what has left the GPUs."""
        while self._leaving and self._leaving[0][2].has_come:
            message_id, staging, _ = self._leaving.popleft()
            self._processes.shared.put(message_id, staging)
            arrival = time.monotonic()
            source = self._program.messages[message_id].source
            self._notes[source].send_ends.append((message_id, arrival))
            self._processes.shared.announce(message_id, arrival)

    def _enter(self, stream: _Stream) -> None:
        if stream is not self._current:
            stream.enter()
            self._current = stream

    @contextmanager
    def _on_own_streams(self) -> Iterator[None]:
        """Let the streams that are current before be current after it."""
        previous = [torch.cuda.current_stream(self._devices[device]) for device in self._gpus]
        self._current = None
        try:
            yield
        finally:
            for stream in previous:
                torch.cuda.set_stream(stream)

    def _finish(self) -> None:
        for device in self._gpus:
            with self._naming("end of the step", device):
                torch.cuda.synchronize(self._devices[device])

    @contextmanager
    def _naming(self, activity: str | Instruction, device: int) -> Iterator[None]:
        """Let an error say what a device was doing."""
        try:
            yield
        except ExecutionError:
            raise  # of a process, which says what it was doing
        except Exception as error:
            if not isinstance(activity, str):
                activity = self._program.text(activity, self._graph)
            line = f"{activity} on {self._devices[device]}: {error_line(error)}"
            raise ExecutionError(line) from error


def _timed(notes: Any) -> DeviceRecord:
    """Return a record with the times of its moments, all of which have come."""
    return DeviceRecord(
        ops=[(op, start.seconds(), end.seconds()) for op, start, end in notes.ops],
        send_starts=[(message, moment.seconds()) for message, moment in notes.send_starts],
        send_ends=notes.send_ends,  # known when it happens
        receives=[
            (message, start.seconds() - staged, end.seconds())
            for message, start, end, staged in notes.receives
        ],
        allocations=[(moment.seconds(), num_bytes) for moment, num_bytes in notes.allocations],
        releases=[(tensor, moment.seconds(), size) for tensor, moment, size in notes.releases],
    )
