"""The processes of all CPU devices, and how they end if one of them fails."""

import os
import pickle
import signal
import socket
import struct
import threading
import time
import warnings
import weakref
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_all_start_methods, get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_execution.device_process import DeviceProcess, Failure
from placeto_execution.devices import is_cuda, sharing_cores, threads_of
from placeto_execution.errors import ExecutionError
from placeto_execution.programs import StepProgram
from placeto_execution.records import DeviceRecord
from placeto_execution.shared_messages import EmulatedLinks, SharedMessages
from placeto_graphs import ExecutableStep

LEAD = 2e-3  # seconds from when devices are told to start until they do
GRACE = 0.3  # seconds in which it is seen that a process has ended, when others miss it
PATIENCE = 20.0  # seconds in which all devices wait, after which they wait in vain


class DeviceProcesses:
    """A process for each CPU device, forked from this one; they run one placement of a step.

    `StreamedDevices` runs those of the devices that are no CPUs. ``op_device`` is the device of
    each op.
    """

    def __init__(
        self,
        step: ExecutableStep,
        program: StepProgram,
        devices: Sequence[str],
        op_device: NDArray[np.int32],
        links: EmulatedLinks | None,
    ) -> None:
        if "fork" not in get_all_start_methods():
            raise ExecutionError("devices: expected a system that forks processes, such as Linux")
        self._links = links
        self._device_processes: dict[int, DeviceProcess] = {}  # by device, as all that follow
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, connection.Connection] = {}
        self._replies: dict[int, Any] = {}
        share_cores = bool(sharing_cores(devices, threads_of(step)))
        shared = SharedMessages(program.messages, len(devices), share_cores=share_cores)
        self.shared = shared
        # Ends the processes; it is called at the latest when nothing holds this object any more.
        self.close = weakref.finalize(self, _end, os.getpid(), self._processes, self._pipes, shared)
        try:
            with _without_interrupts():
                for device, name in enumerate(devices):
                    if not is_cuda(name):
                        device_step = step.on_device(device, devices, op_device)
                        device_process = DeviceProcess(
                            device, name, device_step, step.graph, program, shared, links
                        )
                        self._fork(device, device_process)
        except BaseException:
            self.close()
            raise

    def _fork(self, device: int, device_process: DeviceProcess) -> None:
        context = get_context("fork")
        parent_end, child_end = context.Pipe()
        limit = struct.pack("ll", int(PATIENCE), 0)  # of a message that a stopped process leaves
        with socket.socket(fileno=os.dup(parent_end.fileno())) as parent_socket:
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                parent_socket.setsockopt(socket.SOL_SOCKET, direction, limit)
        os.set_blocking(parent_end.fileno(), True)  # which `socket.setdefaulttimeout` has changed
        process = context.Process(
            target=device_process.serve, args=(child_end, os.getpid()), daemon=True
        )
        self._device_processes[device] = device_process
        self._pipes[device] = parent_end
        self._processes[device] = process
        with warnings.catch_warnings():
            # Other threads are not there in the child. It waits for none of them, as it only
            # computes and sends, in new threads.
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            process.start()
        child_end.close()

    def run(self, feed: Any) -> tuple[list[DeviceRecord], float]:
        """Run a step; return what the devices noted, and the time at which it began."""
        self.call("begin", feed)
        records: dict[int, DeviceRecord] = self.call("run", time.monotonic() + LEAD)
        return list(records.values()), min(record.start for record in records.values())

    def pieces(self, names: Collection[str]) -> Mapping[Any, Any]:
        return ChainMap(*self.call("pieces", list(names)).values())

    def call(self, method: str, argument: Any) -> dict[int, Any]:
        """Call a method in all processes, and return its reply for each device."""
        self.begin_call(method, argument)
        return self.replies()

    def begin_call(self, method: str, argument: Any) -> None:
        """Call a method of `DeviceProcess` in all processes, without waiting for replies."""
        request = pickle.dumps((method, argument))
        with self._closing():
            for pipe in self._pipes.values():
                pipe.send_bytes(request)
            self._replies = {}

    def replies(self) -> dict[int, Any]:
        """Wait until the last call has returned on all devices; return its reply for each."""
        self.wait_until(lambda: len(self._replies) == len(self._pipes), timeout=1.0)
        return dict(sorted(self._replies.items()))

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        timeout: float = 0.0,
        is_sending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take replies until a condition is met; fail if a process does, or if all wait in vain."""
        progress, since = self._progress(), time.monotonic()
        while not condition():
            self._watch(timeout)
            if self._progress() != progress or is_sending() or not self._all_wait():
                progress, since = self._progress(), time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                activity = self._device_processes[self._pending()[0]].activity()
                waits = f"it has waited for {PATIENCE:.0f} s, and no device does anything"
                line = self._fault_line(f"{activity}: {waits}")
                self.close()
                raise ExecutionError(line)

    def _watch(self, timeout: float) -> None:
        """Take the replies that come within some seconds, and fail if a process does."""
        pending = {self._pipes[device]: device for device in self._pending()}
        with self._closing():
            ready = connection.wait([*pending, *self._sentinels()], timeout)
            if any(isinstance(ready_end, int) for ready_end in ready):
                raise EOFError
            for pipe, device in pending.items():
                if pipe in ready:
                    reply = pickle.loads(pipe.recv_bytes())  # noqa: S301, of a child
                    if isinstance(reply, Failure):
                        if connection.wait(self._sentinels(), GRACE):
                            raise EOFError
                        raise ExecutionError(reply)
                    self._replies[device] = reply

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """End all processes if one fails; say which one if it has ended."""
        try:
            yield
        except (EOFError, OSError):
            for process in self._processes.values():
                if process.sentinel in connection.wait(self._sentinels(), GRACE):
                    process.join(GRACE)  # which may be a moment later than its sentinel
            line = self._fault_line("a process of a device does not answer")
            self.close()
            raise ExecutionError(line) from None
        except BaseException:
            self.close()
            raise

    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes.values()]

    def _progress(self) -> list[int]:
        return [
            counter
            for device_process in self._device_processes.values()
            for counter in device_process.progress
        ]

    def _pending(self) -> list[int]:
        return [device for device in self._pipes if device not in self._replies]

    def _all_wait(self) -> bool:
        """Return whether all devices that are not done wait for others, and no link is busy.

        A process that has been stopped waits, too.
        """
        all_wait = all(
            self._device_processes[device].is_waiting or _is_stopped(self._processes[device])
            for device in self._pending()
        )
        return all_wait and not (self._links is not None and self._links.are_busy)

    def _fault_line(self, default: str) -> str:
        """Return which process has ended, or is stopped, and what it did then."""
        activities = {
            device: device_process.activity()
            for device, device_process in self._device_processes.items()
        }
        for device, process in self._processes.items():
            if process.exitcode is not None:
                code = process.exitcode
                cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                return f"{activities[device]}: its process has ended ({cause})"
        for device, process in self._processes.items():
            if _is_stopped(process):
                return f"{activities[device]}: its process is stopped"
        return default


def _end(
    owner: int,
    processes: Mapping[int, Any],
    pipes: Mapping[int, connection.Connection],
    shared: SharedMessages,
) -> None:
    if os.getpid() != owner:
        return  # a copy, in a process that was forked later
    started = [process for process in processes.values() if process.pid is not None]
    for process in started:
        process.kill()
    for process in started:
        process.join()
    for pipe in pipes.values():
        pipe.close()
    shared.close()


def _is_stopped(process: Any) -> bool:
    """Return whether a process is stopped, as by SIGSTOP, on systems that tell."""
    with suppress(ChildProcessError, AttributeError):  # macOS has waitid since Python 3.13
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, options) is not None
    return False


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait, which Python drops within a fork, and new processes do nothing at it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread gets it
        return
    interrupts: list[Any] = []
    handler = signal.signal(signal.SIGINT, lambda *arguments: interrupts.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        signal.raise_signal(signal.SIGINT)
