"""Trials one after the other in this process, or several at once in others, each on one core."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import torch

from placeto.errors import RunError, exit_code, one_line
from placeto.trials.records import Record
from placeto.trials.trials import Trial, Watch, Workspace

ONE_THREAD = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
SECONDS_BETWEEN_LOOKS = 0.2

Finished = tuple[Trial, Record]


def run_here(
    trials: Sequence[Trial], workspace: Workspace, watch: Watch
) -> Generator[Finished, None, None]:
    """Run trials in their order, and yield each with its record.

    Raises
    ------
    StoppedError
        When they are to stop.
    RunError
        When one of them fails.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for trial in trials:
            watch.update(trial.key)
            yield trial, _run(trial, workspace, watch)
    finally:
        torch.set_num_threads(threads)


def run_in_processes(
    trials: Sequence[Trial], workspace: Workspace, watch: Watch, jobs: int, done: Sequence[str]
) -> Generator[Finished, None, None]:
    """Run several trials at once, each as soon as what it needs is done, and yield their records.

    Parameters
    ----------
    trials
        The trials.
    workspace
        The folder.
    watch
        Says when to stop.
    jobs
        How many processes there are.
    done
        The keys of trials that were done before.

    Raises
    ------
    StoppedError
        When they are to stop.
    RunError
        When one of them fails, or a process is killed.
    """
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    with _one_thread_each():
        pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stopping,))
        try:
            _start(pool, jobs)
            yield from _finished(trials, workspace, watch, jobs, set(done), pool)
        except BrokenProcessPool:
            raise RunError("a process of a trial was killed; the same command goes on") from None
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def _start(pool: ProcessPoolExecutor, jobs: int) -> None:
    """Start the processes while this one ignores Ctrl-C, which they then do, too, all their life.

    Each task starts one more, as long as none has nothing to do.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(jobs):
            pool.submit(int)
    finally:
        signal.signal(signal.SIGINT, before)


def _finished(
    trials: Sequence[Trial],
    workspace: Workspace,
    watch: Watch,
    jobs: int,
    done: set[str],
    pool: ProcessPoolExecutor,
) -> Generator[Finished, None, None]:
    waiting = list(trials)
    running: dict[Future[Record], Trial] = {}
    while waiting or running:
        ready = [trial for trial in waiting if done.issuperset(trial.needs)]
        for trial in ready[: jobs - len(running)]:
            waiting.remove(trial)
            running[pool.submit(_run_in_process, trial, workspace)] = trial
        finished, _ = wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
        for future in finished:
            trial = running.pop(future)
            record = future.result()
            done.add(trial.key)
            yield trial, record
        watch.update(", ".join(sorted(trial.key for trial in running.values())))


def _run(trial: Trial, workspace: Workspace, watch: Watch) -> Record:
    try:
        return trial.task.run(workspace, watch)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and exit_code(error) == 1:
            raise  # of no package of ours, so a mistake in the code
        raise RunError(f"{trial.key}: {one_line(error)}") from error


_stopping: list[Event] = []  # of the process of a trial


def _run_in_process(trial: Trial, workspace: Workspace) -> Record:
    (stopping,) = _stopping
    return _run(trial, workspace, Watch(stopping.is_set))


def _begin(stopping: Any) -> None:
    """Prepare a process: one thread, and an end when the parent ends."""
    _stopping[:] = [stopping]
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let the processes that are started meanwhile have one thread each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
