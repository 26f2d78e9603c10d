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
from placeto_execution.devices import is_cuda, sharing_cores
from placeto_execution.errors import ExecutionError
from placeto_execution.programs import StepProgram
from placeto_execution.records import Record
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
        self._devices: dict[int, DeviceProcess] = {}  # by number, as all that follow
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, connection.Connection] = {}
        self._answers: dict[int, Any] = {}
        share_cores = bool(sharing_cores(devices))
        shared = SharedMessages(program.messages, len(devices), share_cores=share_cores)
        self.shared = shared
        # Ends the processes; it is called at the latest when nothing holds this object any more.
        self.close = weakref.finalize(self, _end, os.getpid(), self._processes, self._pipes, shared)
        try:
            with _without_interrupts():
                for number, name in enumerate(devices):
                    if not is_cuda(name):
                        part = step.on_device(number, devices, op_device)
                        device = DeviceProcess(
                            number, name, part, step.graph, program, shared, links
                        )
                        self._fork(number, device)
        except BaseException:
            self.close()
            raise

    def _fork(self, number: int, device: DeviceProcess) -> None:
        context = get_context("fork")
        own, pipe = context.Pipe()
        limit = struct.pack("ll", int(PATIENCE), 0)  # of a message that a stopped process leaves
        with socket.socket(fileno=os.dup(own.fileno())) as end:
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                end.setsockopt(socket.SOL_SOCKET, direction, limit)
        os.set_blocking(own.fileno(), True)  # which `socket.setdefaulttimeout` has changed
        process = context.Process(target=device.serve, args=(pipe, os.getpid()), daemon=True)
        self._devices[number], self._pipes[number], self._processes[number] = device, own, process
        with warnings.catch_warnings():
            # Other threads are not there in the child. It waits for none of them, as it only
            # computes and sends, in new threads.
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            process.start()
        pipe.close()

    def run(self, feed: Any) -> tuple[list[Record], float]:
        """Run a step; return what the devices noted, and the time at which it began."""
        self.ask("begin", feed)
        records: dict[int, Record] = self.ask("run", time.monotonic() + LEAD)
        return list(records.values()), min(record.began for record in records.values())

    def pieces(self, names: Collection[str]) -> Mapping[Any, Any]:
        return ChainMap(*self.ask("pieces", list(names)).values())

    def ask(self, what: str, value: Any) -> dict[int, Any]:
        """Tell all processes to do something, and return the answer for each device."""
        self.tell(what, value)
        return self.answers()

    def tell(self, what: str, value: Any) -> None:
        """Tell all processes to do something."""
        question = pickle.dumps((what, value))
        with self._closing():
            for pipe in self._pipes.values():
                pipe.send_bytes(question)
            self._answers = {}

    def answers(self) -> dict[int, Any]:
        """Return the answers to what processes were told."""
        self.wait_until(lambda: len(self._answers) == len(self._pipes), timeout=1.0)
        return dict(sorted(self._answers.items()))

    def wait_until(
        self,
        is_so: Callable[[], bool],
        *,
        timeout: float = 0.0,
        others_send: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take answers until something is so; fail if a process does, or if all wait in vain."""
        far, since = self._far(), time.monotonic()
        while not is_so():
            self._watch(timeout)
            if self._far() != far or others_send() or not self._all_wait():
                far, since = self._far(), time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                doing = self._devices[self._pending()[0]].doing()
                waits = f"it has waited for {PATIENCE:.0f} s, and no device does anything"
                line = self._fault(f"{doing}: {waits}")
                self.close()
                raise ExecutionError(line)

    def _watch(self, timeout: float) -> None:
        """Take the answers that come within some seconds, and fail if a process does."""
        pending = {self._pipes[number]: number for number in self._pending()}
        with self._closing():
            ready = connection.wait([*pending, *self._sentinels()], timeout)
            if any(isinstance(each, int) for each in ready):
                raise EOFError
            for pipe, number in pending.items():
                if pipe in ready:
                    answer = pickle.loads(pipe.recv_bytes())  # noqa: S301, of a child
                    if isinstance(answer, Failure):
                        if connection.wait(self._sentinels(), GRACE):
                            raise EOFError
                        raise ExecutionError(answer)
                    self._answers[number] = answer

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """End all processes if one fails; say which one if it has ended."""
        try:
            yield
        except (EOFError, OSError):
            for process in self._processes.values():
                if process.sentinel in connection.wait(self._sentinels(), GRACE):
                    process.join(GRACE)  # which may be a moment later than its sentinel
            line = self._fault("a process of a device does not answer")
            self.close()
            raise ExecutionError(line) from None
        except BaseException:
            self.close()
            raise

    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes.values()]

    def _far(self) -> list[int]:
        return [number for device in self._devices.values() for number in device.progress]

    def _pending(self) -> list[int]:
        return [number for number in self._pipes if number not in self._answers]

    def _all_wait(self) -> bool:
        """Return whether all devices that are not done wait for others, and no link is busy.

        A process that has been stopped waits, too.
        """
        all_wait = all(
            self._devices[number].is_waiting or _is_stopped(self._processes[number])
            for number in self._pending()
        )
        return all_wait and not (self._links is not None and self._links.are_busy)

    def _fault(self, otherwise: str) -> str:
        """Return which process has ended, or is stopped, and what it did then."""
        doing = {number: device.doing() for number, device in self._devices.items()}
        for number, process in self._processes.items():
            if process.exitcode is not None:
                code = process.exitcode
                how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                return f"{doing[number]}: its process has ended ({how})"
        for number, process in self._processes.items():
            if _is_stopped(process):
                return f"{doing[number]}: its process is stopped"
        return otherwise


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
