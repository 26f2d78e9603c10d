"""Runs trials up to the page of their experiment, or until they are stopped.

Begin to read in `conduct`. One after the other they run in this process, several at once in others,
each on one core.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import numpy as np
import torch

from placeto.errors import RUN_FAILED, RunError, StoppedRunError, exit_code, one_line
from placeto.progress import Progress, clock
from placeto.stopping import StopRequest
from placeto.texts import seconds_text
from placeto.trials.folder import PAGE, ExperimentFolder
from placeto.trials.records import Episode, Failed, Outcome, Record, Trained
from placeto.trials.trials import Experiment, StoppedError, Trial, Watch, Workspace

ONE_THREAD = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
SECONDS_BETWEEN_LOOKS = 0.2

Finished = tuple[Trial, Record]


def conduct(
    experiment: Experiment,
    folder: ExperimentFolder,
    progress: Progress,
    *,
    jobs: int,
    resumable: bool = True,
) -> None:
    """Run the trials of an experiment that are left, and write its page."""
    before = time.monotonic()
    folder.make_problems(progress.update)
    finished = folder.finished
    left = [trial for trial in experiment.trials if trial.name not in finished]
    forecast = _Forecast(experiment, finished, jobs)
    progress.update(forecast.text())
    failed: RunError | None = None
    with StopRequest() as stop:
        watch = Watch(
            lambda: stop.requested, lambda text: progress.update(f"{forecast.text()}; {text}")
        )
        run = run_trials(
            left, folder.workspace, watch, jobs=max(1, min(jobs, len(left))), done=finished
        )
        try:
            with closing(run) as run:
                for trial, record in run:
                    now = time.monotonic()
                    folder.add(trial, record, now - before)
                    before = now
                    forecast.add(trial, record)
                    if experiment.news:
                        news = experiment.news(folder.results, trial)
                        progress.grow(news.table, news.line)
        except StoppedError:
            further = "; the same command resumes" if resumable else ""
            failed = StoppedRunError(f"stopped after {forecast.done}{further}")
        except RunError as error:
            failed = error
    if failed and not experiment.news:
        raise failed
    progress.update(f"writing {PAGE} ...")
    page = experiment.page(folder.results)
    folder.write_page(page)
    if failed:
        raise failed
    if page.failures:
        raise RunError(several(page.failures))


class _Forecast:
    """Number of finished trials, and the time left, estimated from trials of the same kind."""

    def __init__(self, experiment: Experiment, done: Mapping[str, Record], jobs: int) -> None:
        self._jobs = jobs
        self._total = len(experiment.trials)
        self._left = {trial.name: trial.task.kind for trial in experiment.trials}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._last = ""
        for trial in experiment.trials:
            if trial.name in done:
                self.add(trial, done[trial.name])

    @property
    def done(self) -> str:
        return f"{self._total - len(self._left)} of {self._total} trials"

    def add(self, trial: Trial, record: Record) -> None:
        del self._left[trial.name]
        if isinstance(record, Outcome | Trained):
            self._seconds[trial.task.kind].append(record.seconds)
        if isinstance(record, Outcome | Episode) and record.cost is not None:
            self._last = f", last {trial.name}: {seconds_text(record.cost)}"

    def text(self) -> str:
        """Return the progress of the experiment."""
        of_kind = {kind: float(np.mean(seconds)) for kind, seconds in self._seconds.items()}
        if not self._left or not of_kind.keys() >= set(self._left.values()):
            return self.done  # nothing tells how long a kind takes of which none is finished
        left = sum(of_kind[kind] for kind in self._left.values()) / self._jobs
        return f"{self.done}, about {clock(left)} left{self._last}"


def run_trials(
    trials: Sequence[Trial],
    workspace: Workspace,
    watch: Watch,
    *,
    jobs: int = 1,
    done: Collection[str] = (),
) -> Generator[Finished, None, None]:
    """Run trials, each as soon as what it needs is done, and yield each with its record.

    If a trial fails, only those that need it do not run. When the run ends early, trials that have
    finished meanwhile are yielded first.
    """
    waiting, known = list(trials), set(done)
    running: dict[Future[Record], Trial] = {}
    failures: list[RunError] = []
    end: BaseException | None = None
    try:
        with _runner(jobs, workspace, watch) as runner:
            while True:
                ready = [] if end else [trial for trial in waiting if known.issuperset(trial.needs)]
                for trial in ready[: jobs - len(running)]:
                    waiting.remove(trial)
                    running[runner.submit(trial)] = trial
                if not running:
                    break
                for future in wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED).done:
                    trial, error = running.pop(future), future.exception()
                    if error is None:
                        known.add(trial.name)
                        yield trial, future.result()
                    elif isinstance(error, RunError):
                        failures.append(error)
                    else:
                        end = end or error
                try:
                    watch.update(", ".join(sorted(trial.name for trial in running.values())))
                except StoppedError as error:
                    end = end or error
                if end:
                    runner.stop()
            if end:
                raise end
    except BrokenProcessPool:
        raise RunError("a process of a trial was killed; the same command resumes") from None
    if failures:
        raise RunError(several(list(map(str, failures)))) from failures[0]


def several(failures: Sequence[str]) -> str:
    """Return one line for some failures: the first, and the number of the others."""
    return failures[0] + (f" (and {len(failures) - 1} more)" if len(failures) > 1 else "")


class _Runner(NamedTuple):
    submit: Callable[[Trial], "Future[Record]"]
    stop: Callable[[], None]


@contextmanager
def _runner(jobs: int, workspace: Workspace, watch: Watch) -> Iterator[_Runner]:
    if jobs > 1:
        with _processes(jobs, workspace) as runner:
            yield runner
        return

    def run_now(trial: Trial) -> "Future[Record]":
        future: Future[Record] = Future()
        try:
            watch.update(trial.name)
            future.set_result(_run(trial, workspace, watch))
        except BaseException as error:  # as a process pool does
            future.set_exception(error)
        return future

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield _Runner(run_now, lambda: None)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _processes(jobs: int, workspace: Workspace) -> Iterator[_Runner]:
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    with _one_thread_each():
        pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stopping,))
        try:
            _start(pool, jobs)
            yield _Runner(
                lambda trial: pool.submit(_run_in_process, trial, workspace), stopping.set
            )
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def _start(pool: ProcessPoolExecutor, jobs: int) -> None:
    """Start the processes while this one ignores Ctrl-C, so that they ignore it, too.

    Each task starts one more process, as long as none is idle.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in range(jobs):
            pool.submit(int)
    finally:
        signal.signal(signal.SIGINT, before)


def _run(trial: Trial, workspace: Workspace, watch: Watch) -> Record:
    try:
        return trial.task.run(workspace, watch)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError):
            if exit_code(error) == RUN_FAILED:
                raise  # of no package of ours, so a mistake in the code
            if trial.may_fail:
                return Failed(error=one_line(error).removeprefix(f"{trial.placer}: "))
        raise RunError(f"{trial.name}: {one_line(error)}") from error


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
    """Give one thread to each process that is started meanwhile."""
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
