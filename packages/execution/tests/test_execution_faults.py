"""Whatever fails, and wherever: one line, no process is left, and the next run is as ever."""

import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from host_streams import HostMoment, HostStream, host_streams
from numeric_step import FEED, Happens, NumericStep, cpus, expected_results, random_problem
from placeto_execution import ExecutionError, Executor, compile_step, processes
from placeto_execution.programs import topological_schedule
from placeto_execution.streams import StreamedDevices

NUM_OPS = 20
HALVES: NDArray[np.int32] = np.array([0, 1] * (NUM_OPS // 2), np.int32)


def raises(error: BaseException, what: str, number: int) -> Happens:
    def happens(happened: str, of: int) -> None:
        if (happened, of) == (what, number):
            raise error

    return happens


def check_failure(happens: Happens, line: str, *, most_seconds: float = 30.0) -> None:
    """Check that a run fails with a line, and that one without the fault runs after it."""
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    step = NumericStep(problem.graph, happens)
    with Executor(problem, step, cpus(2)) as executor:
        began = time.monotonic()
        with pytest.raises(ExecutionError, match=line) as caught:
            executor.execute(HALVES)
        assert time.monotonic() - began < most_seconds
        assert "\n" not in str(caught.value)
        assert not multiprocessing.active_children()
        step.happens = lambda _what, _number: None
        assert executor.execute(HALVES).results() == expected_results(problem.graph)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("what", ["begin", "run", "buffers", "expect", "arrived", "free"])
def test_whatever_fails_is_said_in_one_line(what: str) -> None:
    happened = multiprocessing.get_context("fork").Value("i", 0)

    def happens(each: str, _number: int) -> None:
        with happened.get_lock():
            happened.value += each == what
            strikes = each == what and happened.value == 2
        if strikes:
            raise RuntimeError("the device\nis on fire")

    check_failure(happens, r"^\w.* on cpu:[01]: RuntimeError: the device is on fire$")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("no more"), "MemoryError: no more$"),
        (SystemExit(1), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_op_that_fails_is_named_with_its_device(error: BaseException, line: str) -> None:
    check_failure(raises(error, "run", 7), rf"^op7 on cpu:1: {line}")


def signals_itself(number: signal.Signals) -> Happens:
    """Return what sends a signal to the process of an op."""

    def happens(what: str, op: int) -> None:
        if (what, op) == ("run", 9):
            os.kill(os.getpid(), number)
            time.sleep(0.5)  # in which all of its threads stop

    return happens


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGKILL, r"its process has ended \(SIGKILL\)$"),
        (signal.SIGSTOP, r"its process is stopped$"),
    ],
)
def test_a_process_that_is_killed_or_stopped(
    number: signal.Signals, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    check_failure(signals_itself(number), f"^op9 on cpu:1: {line}")


def beside_a_gpu(happens: Happens = lambda _what, _number: None) -> StreamedDevices:
    """Return a GPU and the process of a CPU, with halves of the ops."""
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    schedule = topological_schedule(problem, HALVES)
    step, program = NumericStep(problem.graph, happens), compile_step(schedule)
    return StreamedDevices(step, program, ["cuda:0", "cpu:1"], schedule.op_device)


def test_a_process_that_is_stopped_while_a_gpu_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    with host_streams():
        devices = beside_a_gpu(signals_itself(signal.SIGSTOP))
        (process,) = multiprocessing.active_children()
        end = threading.Timer(20.0, process.kill)
        end.start()
        with pytest.raises(ExecutionError, match=r"^op9 on cpu:1: its process is stopped$"):
            devices.run(FEED)
        end.cancel()
        devices.close()
    assert not multiprocessing.active_children()


class LateStream(HostStream):
    """Has done at a time what was issued up to then."""

    done_at = 0.0

    def mark(self) -> HostMoment:
        return LateMoment(max(time.monotonic(), self.done_at))


class LateMoment(HostMoment):
    @property
    def has_come(self) -> bool:
        return time.monotonic() >= self.time


def test_a_process_gets_nothing_before_a_gpu_has_done_it_and_waits_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with host_streams(LateStream):
        devices = beside_a_gpu()
        monkeypatch.setattr(LateStream, "done_at", time.monotonic() + 2.0)
        (_, record), _ = devices.run(FEED)
        assert min(begun for _, begun, _ in record.taken) >= LateStream.done_at
        assert devices.pieces(problem.graph.op_names) == expected_results(problem.graph)
        devices.close()


@pytest.mark.parametrize("asks_for_results", [True, False])
def test_a_process_that_is_killed_after_a_step(asks_for_results: bool) -> None:
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with Executor(problem, NumericStep(problem.graph), cpus(2)) as executor:
        executed = executor.execute(HALVES)
        victim, _ = multiprocessing.active_children()
        victim.kill()
        with pytest.raises(ExecutionError, match=r"^begin on cpu:[01]: its process has ended"):
            executed.results() if asks_for_results else executor.execute(HALVES)
        assert not multiprocessing.active_children()
        assert executor.execute(HALVES).results() == expected_results(problem.graph)


class LargeFeed(int):
    """A batch that does not fit into a pipe: its process gets `FEED` of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (FEED, "real", bytes(1 << 20))


@pytest.mark.parametrize("default_timeout", [None, 0.1])
def test_a_process_that_is_stopped_before_it_gets_a_large_batch(
    default_timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    monkeypatch.setattr(NumericStep, "feed", lambda _: LargeFeed())
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    socket.setdefaulttimeout(default_timeout)
    try:
        with Executor(problem, NumericStep(problem.graph), cpus(2)) as executor:
            assert executor.execute(HALVES).results() == expected_results(problem.graph)
            victim, _ = multiprocessing.active_children()
            os.kill(victim.pid or 0, signal.SIGSTOP)
            end = threading.Timer(20.0, victim.kill)
            end.start()
            with pytest.raises(ExecutionError, match=r"^begin on cpu:[01]: its process is stopped"):
                executor.execute(HALVES)
            end.cancel()
    finally:
        socket.setdefaulttimeout(None)
    assert not multiprocessing.active_children()


def test_a_tensor_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    send = "placeto_execution.device_process.DeviceProcess._send"
    monkeypatch.setattr(send, lambda *_: None)
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with (
        Executor(problem, NumericStep(problem.graph), cpus(2)) as executor,
        pytest.raises(
            ExecutionError, match=r"^transfer of an output of op\d+ on cpu:[01]: it has w"
        ),
    ):
        executor.execute(HALVES)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("tells_of_stops", [True, False])
def test_a_long_op_is_no_fault(tells_of_stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    if not tells_of_stops:  # as macOS before Python 3.13
        monkeypatch.delattr(os, "waitid")

    def happens(what: str, number: int) -> None:
        if (what, number) == ("run", 3):
            time.sleep(3.5)

    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with Executor(problem, NumericStep(problem.graph, happens), cpus(2)) as executor:
        assert executor.execute(HALVES).results() == expected_results(problem.graph)


def test_an_interrupt_in_the_middle_of_a_step() -> None:
    problem = random_problem(0, NUM_OPS, 2, "fifo")

    def happens(what: str, number: int) -> None:
        if (what, number) == ("run", NUM_OPS // 2):
            time.sleep(60)

    step = NumericStep(problem.graph, happens)
    with Executor(problem, step, cpus(2)) as executor:
        main = threading.main_thread().ident or 0
        threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            executor.execute(HALVES)
        assert not multiprocessing.active_children()


INTERRUPTED = """
import multiprocessing, numpy as np, os, signal, sys
sys.path.insert(0, {tests!r})
from numeric_step import NumericStep, cpus, random_problem
from placeto_execution import Executor

problem = random_problem(0, 20, 2, "fifo")
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    Executor(problem, NumericStep(problem.graph), cpus(2)).execute(np.array([0, 1] * 10, np.int32))
except KeyboardInterrupt:
    print("interrupted", multiprocessing.active_children())
"""


def test_an_interrupt_within_a_fork() -> None:
    code = INTERRUPTED.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted []\n", "")


def test_a_system_that_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "get_all_start_methods", lambda: ["spawn"])
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with pytest.raises(ExecutionError, match=r"^devices: expected a system that forks processes"):
        Executor(problem, NumericStep(problem.graph), cpus(2)).execute(HALVES)


def test_no_room_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_name: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", none_left)
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    with pytest.raises(ExecutionError, match=r"^devices: no process for each: .*Too many open"):
        Executor(problem, NumericStep(problem.graph), cpus(2)).execute(HALVES)


ORPHANS = """
import numpy as np, os, sys, time
sys.path.insert(0, {tests!r})
from numeric_step import NumericStep, cpus, random_problem
from placeto_execution import Executor

def happens(what, number):
    if (what, number) == ("run", 5):
        time.sleep(1)

problem = random_problem(0, 20, 2, "fifo")
executor = Executor(problem, NumericStep(problem.graph, happens), cpus(2))
executor.execute(np.array([0, 1] * 10, np.int32))
bystander = os.fork()
if not bystander:  # it has all files that the parent has
    time.sleep(60)
    os._exit(0)
children = [process.pid for process in executor._placed.devices._processes.values()]
print(bystander, *children, flush=True)
while True:
    executor.execute(np.array([0, 1] * 10, np.int32))
"""


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Neither a process, nor a file, nor a word, though another process has its open files."""
    code = ORPHANS.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    errors = tmp_path / "errors.txt"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        ) as parent,
    ):
        assert parent.stdout is not None
        bystander, *devices = map(int, parent.stdout.readline().split())
        time.sleep(0.3)  # in which a step begins
        parent.kill()
    try:
        for _ in range(100):
            if not any(Path(f"/proc/{device}").exists() for device in devices):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the processes of devices are still there")
    finally:
        os.kill(bystander, signal.SIGKILL)
    assert errors.read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["errors.txt"]
