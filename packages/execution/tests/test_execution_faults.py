"""Whatever fails, and wherever: one line, no thread is left, and the next run is as ever."""

import signal
import threading

import numpy as np
import pytest

from numeric_step import NumericStep, expected_results, random_problem, workers
from placeto_execution import ExecutionError, Executor

NUM_FAULTS = 500
NUM_OPS = 20


class Fault:
    """Raises when something has happened so many times; 0 is never."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.countdown = 0
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, *_what: object) -> None:
        with self._lock:
            self.count += 1
            self.countdown -= 1
            strikes = self.countdown == 0
        if strikes:
            raise self.error


def test_five_hundred_faults() -> None:
    generator = np.random.default_rng(0)
    threads = set(threading.enumerate())
    for _ in range(NUM_FAULTS // 50):
        seed = int(generator.integers(2**32))
        problem = random_problem(seed, NUM_OPS, int(generator.integers(1, 5)), "fifo")
        placement = generator.integers(0, problem.num_devices, NUM_OPS, np.int32)
        fault = Fault(RuntimeError("the device\nis on fire"))
        step = NumericStep(problem.graph, fault)
        names = workers(problem.num_devices)
        with Executor(problem, step, names, emulate_links=bool(seed % 2)) as executor:
            executor.execute(placement)
            num_calls = fault.count
            for _ in range(50):
                fault.countdown = int(generator.integers(1, num_calls + 1))
                with pytest.raises(ExecutionError, match=r"RuntimeError: the device is on fire$"):
                    executor.execute(placement)
                assert set(threading.enumerate()) == threads
                fault.countdown = 0
            assert executor.execute(placement).results() == expected_results(problem.graph)
    assert set(threading.enumerate()) == threads


def test_the_line_names_the_op_and_the_device() -> None:
    problem = random_problem(0, NUM_OPS, 2, "fifo")

    def fails_at_seven(what: str, number: int) -> None:
        if (what, number) == ("run", 7):
            raise MemoryError("no more")

    step = NumericStep(problem.graph, fails_at_seven)
    with (
        Executor(problem, step, workers(2)) as executor,
        pytest.raises(ExecutionError, match=r"^op7 on cpu:1: MemoryError: no more$") as caught,
    ):
        executor.execute(np.ones(NUM_OPS, np.int32))
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_op_that_wants_to_leave_stops_all_workers(error: BaseException) -> None:
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    fault = Fault(error)
    threads = set(threading.enumerate())
    with Executor(problem, NumericStep(problem.graph, fault), workers(2)) as executor:
        fault.countdown = 12
        with pytest.raises(ExecutionError, match=type(error).__name__):
            executor.execute(np.array([0, 1] * (NUM_OPS // 2), np.int32))
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize("emulate_links", [True, False])
def test_an_interrupt_in_the_middle_of_a_step(emulate_links: bool) -> None:
    problem = random_problem(0, NUM_OPS, 2, "fifo")
    interrupted = threading.Event()

    def interrupt(what: str, number: int) -> None:
        if what == "run" and number == NUM_OPS // 2 and not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    step = NumericStep(problem.graph, interrupt)
    threads = set(threading.enumerate())
    placement = np.array([0, 1] * (NUM_OPS // 2), np.int32)
    with Executor(problem, step, workers(2), emulate_links=emulate_links, pace=20.0) as executor:
        with pytest.raises(KeyboardInterrupt):
            executor.execute(placement)
        assert set(threading.enumerate()) == threads
        assert executor.execute(placement).results() == expected_results(problem.graph)
