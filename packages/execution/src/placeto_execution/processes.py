"""The processes of all CPU devices, and what becomes of them when one of them fails."""

import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_execution.device_process import (
    NOT_WAITING,
    DeviceTask,
    Failure,
    Progress,
    doing_text,
    serve,
)
from placeto_execution.errors import ExecutionError
from placeto_execution.links import EmulatedLinks
from placeto_execution.programs import StepProgram
from placeto_execution.records import Record
from placeto_graphs import ExecutableStep

LEAD = 2e-3  # seconds from when devices are told to start until they do
GRACE = 0.3  # seconds in which it is seen that a process has ended, when others miss it
PATIENCE = 20.0  # seconds in which all devices wait, after which they wait in vain


class DeviceProcesses:
    """A process for each CPU device, forked from this one; they run one placement of a step.

    Parameters
    ----------
    step, program
        What runs.
    devices
        Names of the devices, all ``"cpu:N"``.
    op_device : int32[V]
        Device of each op.
    links
        Emulated links, if any.
    """

    def __init__(
        self,
        step: ExecutableStep,
        program: StepProgram,
        devices: Sequence[str],
        op_device: NDArray[np.int32],
        links: EmulatedLinks | None,
    ) -> None:
        self._graph, self._program, self._devices, self._links = step.graph, program, devices, links
        self._progress = Progress(len(devices))
        self._folder = Path(tempfile.mkdtemp(prefix="placeto-"))
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []
        try:
            with _without_interrupts():
                for number, name in enumerate(devices):
                    task = DeviceTask(
                        number,
                        name,
                        len(devices),
                        step.graph,
                        program,
                        partial(step.on_device, number, devices, op_device),
                        str(self._folder / "store"),
                        self._progress,
                        links,
                    )
                    self._fork(task)
        except BaseException:
            self.close()
            raise

    def _fork(self, task: DeviceTask) -> None:
        context = get_context("fork")
        own, pipe = context.Pipe()
        self._pipes.append(own)
        process = context.Process(target=serve, args=(task, pipe, os.getpid()), daemon=True)
        self._processes.append(process)
        with warnings.catch_warnings():
            # Other threads are not there in the child. It waits for none of them, as it only
            # computes and sends, in new threads.
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            process.start()
        pipe.close()

    def run(self, feed: Any) -> tuple[list[Record], float]:
        """Run a step; return what the devices noted, and the time at which it began.

        Raises
        ------
        ExecutionError
            If a device fails; all processes have ended then.
        """
        self._ask("begin", feed)
        shutil.rmtree(self._folder, ignore_errors=True)  # the processes have found each other
        records: list[Record] = self._ask("run", time.monotonic() + LEAD)
        return records, min(record.began for record in records)

    def pieces(self, names: Collection[str] | None) -> Mapping[Any, Any]:
        """Return the pieces of results of all devices."""
        answers = self._ask("pieces", names if names is None else list(names))
        return {key: piece for own in answers for key, piece in own.items()}

    def close(self) -> None:
        """End the processes."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, what: str, value: Any) -> list[Any]:
        """Tell all devices to do something, and return their answers."""
        try:
            question = pickle.dumps((what, value))
            for pipe in self._pipes:
                pipe.send_bytes(question)
            return self._answers()
        except (EOFError, OSError):
            for process in self._processes:
                if process.sentinel in connection.wait(self._sentinels(), GRACE):
                    process.join(GRACE)  # which may be a moment later than its sentinel
            line = self._ended_text()
            self.close()
            raise ExecutionError(line) from None
        except BaseException:
            self.close()
            raise

    def _answers(self) -> list[Any]:
        answers: dict[int, Any] = {}
        far, since = self._far(), time.monotonic()
        while len(answers) < len(self._pipes):
            pending = {pipe: n for n, pipe in enumerate(self._pipes) if n not in answers}
            ready = connection.wait([*pending, *self._sentinels()], timeout=1.0)
            if any(isinstance(each, int) for each in ready):
                raise EOFError
            for pipe, number in pending.items():
                if pipe in ready:
                    answers[number] = pickle.loads(pipe.recv_bytes())  # noqa: S301, of a child
                    if isinstance(answers[number], Failure):
                        if connection.wait(self._sentinels(), GRACE):
                            raise EOFError
                        raise ExecutionError(answers[number].line)
            if self._far() != far or not self._all_wait(answers):
                far, since = self._far(), time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise ExecutionError(self._stalled_text(answers))
        return [answers[number] for number in range(len(self._pipes))]

    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes]

    def _far(self) -> list[int]:
        return [*self._progress.instruction, *self._progress.awaited]

    def _all_wait(self, answers: Collection[int]) -> bool:
        """Return whether all devices that are not done wait for others, and no link is busy."""
        awaited = [self._progress.awaited[n] for n in range(len(self._pipes)) if n not in answers]
        links_are_busy = self._links is not None and self._links.are_busy
        return NOT_WAITING not in awaited and not links_are_busy

    def _doing(self, device: int) -> str:
        return doing_text(self._graph, self._program, device, self._progress)

    def _ended_text(self) -> str:
        """Return which process has ended, and what it did then."""
        ended = [n for n, process in enumerate(self._processes) if process.exitcode is not None]
        if not ended:
            return "a process of a device does not answer"
        (device, *_), name = ended, self._devices[ended[0]]
        code = self._processes[device].exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"{self._doing(device)} on {name}: its process has ended ({how})"

    def _stalled_text(self, answers: Collection[int]) -> str:
        (device, *_) = [n for n in range(len(self._pipes)) if n not in answers]
        return (
            f"{self._doing(device)} on {self._devices[device]}: "
            f"it has waited for {PATIENCE:.0f} s, and no device does anything"
        )


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
