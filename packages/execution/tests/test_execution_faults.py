"""Whatever fails, and wherever: one line, no process is left, and the next run is as ever."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from host_streams import HostStream, host_streams
from numeric_step import FEED, Happens, NumericStep, cpus, expected_results, random_problem
from placeto_execution import ExecutionError, Executor, compile_step, processes
from placeto_execution.device_process import DeviceProcess
from placeto_execution.programs import topological_schedule
from placeto_execution.streams import StreamedDevices

NUM_OPS = 20
HALVES: NDArray[np.int32] = np.array([0, 1] * (NUM_OPS // 2), np.int32)
PROBLEM = random_problem(0, NUM_OPS, 2, "fifo")
EXPECTED = expected_results(PROBLEM.graph)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)


def nothing(_method: str, _index: int) -> None:
    """Let nothing happen."""


def does(action: Callable[[], object], op: int) -> Happens:
    """Return what does something in the process of an op."""

    def happens(method: str, index: int) -> None:
        if (method, index) == ("run", op):
            action()

    return happens


def executor_of(happens: Happens = nothing) -> Executor:
    return Executor(PROBLEM, NumericStep(PROBLEM.graph, happens), cpus(2))


def check_failure(happens: Happens, line: str) -> None:
    """Check that a run fails with a line, and that one without the fault runs after it."""
    with executor_of(happens) as executor:
        began = time.monotonic()
        with pytest.raises(ExecutionError, match=line) as caught:
            executor.execute(HALVES)
        assert time.monotonic() - began < 30.0
        assert "\n" not in str(caught.value)
        assert not multiprocessing.active_children()
        executor.step.happens = nothing  # type: ignore[attr-defined]
        assert executor.execute(HALVES).results() == EXPECTED


@pytest.mark.parametrize("method", ["begin", "run", "buffers", "expect", "arrived", "free"])
def test_whatever_fails_is_said_in_one_line(method: str) -> None:
    happened = multiprocessing.get_context("fork").Value("i", 0)

    def happens(called: str, _number: int) -> None:
        with happened.get_lock():
            happened.value += called == method
            strikes = called == method and happened.value == 2
        if strikes:
            raise RuntimeError("the device\nis on fire")

    check_failure(happens, r"^\w.* on cpu:[01]: RuntimeError: the device is on fire$")


def raises(error: BaseException) -> None:
    raise error


def signals_itself(signal_number: signal.Signals) -> None:
    os.kill(os.getpid(), signal_number)
    time.sleep(0.5)  # in which all threads of the process stop


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("action", "line"),
    [
        (partial(raises, MemoryError("no more")), "MemoryError: no more$"),
        (partial(raises, SystemExit(1)), "SystemExit"),
        (partial(raises, KeyboardInterrupt()), "KeyboardInterrupt"),
        (partial(signals_itself, signal.SIGKILL), r"its process has ended \(SIGKILL\)$"),
        (partial(signals_itself, signal.SIGSTOP), r"its process is stopped$"),
    ],
)
def test_an_op_that_fails_is_named_with_its_device(action: Callable[[], object], line: str) -> None:
    check_failure(does(action, 9), rf"^op9 on cpu:1: {line}")


def beside_a_gpu(happens: Happens = nothing) -> StreamedDevices:
    """Return a GPU and the process of a CPU, with halves of the ops."""
    schedule = topological_schedule(PROBLEM, HALVES)
    step, program = NumericStep(PROBLEM.graph, happens), compile_step(schedule)
    return StreamedDevices(step, program, ["cuda:0", "cpu:1"], schedule.op_device)


@pytest.mark.usefixtures("impatient")
def test_a_process_gets_nothing_before_a_gpu_has_done_it_and_waits_as_long() -> None:
    with host_streams() as patch:
        devices = beside_a_gpu()
        patch.setattr(HostStream, "done_at", time.monotonic() + 2.0)
        (_, record), _ = devices.run(FEED)
        assert min(start for _, start, _ in record.receives) >= HostStream.done_at
        assert devices.pieces(PROBLEM.graph.op_names) == EXPECTED
        devices.close()


class LargeFeed(int):
    """A batch that does not fit into a pipe: its process gets `FEED` of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (FEED, "real", bytes(1 << 20))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("signal_number", "asks_for_results", "line"),
    [
        (signal.SIGKILL, True, "has ended"),
        (signal.SIGKILL, False, "has ended"),
        (signal.SIGSTOP, False, "is stopped"),
    ],
)
def test_a_process_that_is_killed_or_stopped_after_a_step(
    signal_number: signal.Signals,
    asks_for_results: bool,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NumericStep, "feed", lambda _: LargeFeed())
    with executor_of() as executor:
        executed = executor.execute(HALVES)
        victim = multiprocessing.active_children()[0]
        os.kill(victim.pid or 0, signal_number)
        end = threading.Timer(20.0, victim.kill)  # if it is waited for without an end
        end.start()
        with pytest.raises(ExecutionError, match=rf"^begin on cpu:[01]: its process {line}"):
            executed.results() if asks_for_results else executor.execute(HALVES)
        end.cancel()
        assert not multiprocessing.active_children()
        assert executor.execute(HALVES).results() == EXPECTED


@pytest.mark.usefixtures("impatient")
def test_a_tensor_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceProcess, "_send_message", lambda *_: None)
    line = r"^transfer of an output of op\d+ on cpu:[01]: it has waited"
    with executor_of() as executor, pytest.raises(ExecutionError, match=line):
        executor.execute(HALVES)


def test_a_long_op_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one of a system that does not tell of stops, as macOS before Python 3.13."""
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    monkeypatch.delattr(os, "waitid")
    with executor_of(does(partial(time.sleep, 2.5), 3)) as executor:
        assert executor.execute(HALVES).results() == EXPECTED


def test_an_interrupt_in_the_middle_of_a_step() -> None:
    with executor_of(does(partial(time.sleep, 60), NUM_OPS // 2)) as executor:
        main = threading.main_thread().ident or 0
        threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            executor.execute(HALVES)
        assert not multiprocessing.active_children()


def none_left(_name: str) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("owner", "name", "instead", "line"),
    [
        (processes, "get_all_start_methods", lambda: ["spawn"], "expected a system that forks pr"),
        (os, "memfd_create", none_left, "no process for each: .*Too many open"),
    ],
)
def test_a_system_that_has_no_processes_or_files(
    owner: Any, name: str, instead: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises(ExecutionError, match=f"^devices: {line}"):
        executor_of().execute(HALVES)


ORPHANS = """
import numpy as np, os, sys, time
sys.path.insert(0, {tests!r})
from numeric_step import NumericStep, cpus, random_problem
from placeto_execution import Executor

def happens(method, index):
    if (method, index) == ("run", 5):
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
