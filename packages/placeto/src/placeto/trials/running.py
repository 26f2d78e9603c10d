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
from statistics import fmean
from typing import Any

import torch

from placeto.errors import RUN_FAILED, RunError, StoppedRunError, exit_code, one_line
from placeto.progress import Progress, StopRequest, clock
from placeto.texts import seconds_text
from placeto.trials.folder import ExperimentFolder
from placeto.trials.records import Episode, Failed, Outcome, Trained, TrialRecord
from placeto.trials.trials import Experiment, StoppedError, Trial, Watch, Workspace

ONE_THREAD = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
SECONDS_BETWEEN_LOOKS = 0.2

# What begins to run a trial, and what asks those that run to stop
Runner = tuple[Callable[[Trial], "Future[TrialRecord]"], Callable[[], None]]


def conduct(
    experiment: Experiment,
    folder: ExperimentFolder,
    progress: Progress,
    *,
    jobs: int,
    resumable: bool = True,
) -> None:
    """Run the trials of an experiment that are left, also after a failure, and write its page."""
    last_end = time.monotonic()
    folder.make_problems(progress.update)
    done, trials, last = folder.finished, experiment.trials, ""
    remaining = [trial for trial in trials if trial.name not in done]

    def show(text: str) -> None:
        progress.update(f"{_forecast(trials, done, jobs)}{last}{text}")

    show("")
    failed: RunError | None = None
    failures: list[str] = []
    with StopRequest() as stop:
        watch = Watch(lambda: stop.requested, lambda text: show(f"; {text}"))
        jobs = max(1, min(jobs, len(remaining)))
        run = run_trials(remaining, folder.workspace, watch, jobs=jobs, done=done)
        try:
            with closing(run) as run:
                for trial, record in run:
                    now = time.monotonic()
                    folder.add(trial, record, now - last_end)
                    last_end = now
                    done[trial.name] = record
                    if isinstance(record, Outcome | Episode) and record.cost is not None:
                        last = f", last {trial.label}: {seconds_text(record.cost)}"
                    if isinstance(record, Failed):
                        line = f"{trial.label}: {record.error}"
                        if not trial.may_fail and line not in failures:
                            failures.append(line)
                        progress.say(line)
                    elif experiment.news:
                        progress.grow(*experiment.news(folder.results, trial))
        except StoppedError:
            further = "; run the same command again to resume" if resumable else ""
            so_far = f"{len(done)} of {len(trials)} trials"
            failed = StoppedRunError(f"stopped after {so_far}{further}")
        except RunError as error:
            failed = error
    if failures and not failed:
        num_more = len(failures) - 1
        failed = RunError(f"{failures[0]} (and {num_more} more)" if num_more else failures[0])
    if experiment.news or not failed:  # a page without news needs all records
        progress.update("writing tables ...")
        folder.write_page(experiment.page(folder.results))
    if failed:
        raise failed


def _forecast(trials: Sequence[Trial], done: Mapping[str, TrialRecord], jobs: int) -> str:
    """Return the number of trials that are done, and the time left as others of a kind took."""
    remaining_kinds = [trial.task.kind for trial in trials if trial.name not in done]
    text = f"{len(trials) - len(remaining_kinds)} of {len(trials)} trials"
    seconds: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        record = done.get(trial.name)
        if isinstance(record, Outcome | Trained):
            seconds[trial.task.kind].append(record.seconds)
    if not remaining_kinds or not seconds.keys() >= set(remaining_kinds):
        return text  # nothing tells how long a kind takes of which none is finished
    return (
        f"{text}, about {clock(sum(fmean(seconds[kind]) for kind in remaining_kinds) / jobs)} left"
    )


def run_trials(
    trials: Sequence[Trial],
    workspace: Workspace,
    watch: Watch,
    *,
    jobs: int,
    done: Collection[str],
) -> Generator[tuple[Trial, TrialRecord], None, None]:
    """Run trials, each as soon as its dependencies are done, and yield each with its record.

    Those that depend on one that failed do not run. If the run ends early, those that have finished
    meanwhile are yielded first.
    """
    waiting, finished = starting_order(trials, jobs), set(done)
    running: dict[Future[TrialRecord], Trial] = {}
    end: BaseException | None = None
    runner = _processes(jobs, workspace) if jobs > 1 else _this_process(workspace, watch)
    try:
        with runner as (submit, stop):
            while True:
                ready = (
                    []
                    if end
                    else [trial for trial in waiting if finished.issuperset(trial.dependencies)]
                )
                for trial in ready[: jobs - len(running)]:
                    waiting.remove(trial)
                    running[submit(trial)] = trial
                if not running:
                    break
                for future in wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED).done:
                    trial, error = running.pop(future), future.exception()
                    if error is None:
                        record = future.result()
                        if not isinstance(record, Failed):
                            finished.add(trial.name)
                        yield trial, record
                    else:
                        end = end or error
                try:
                    watch.update(", ".join(sorted(trial.label for trial in running.values())))
                except StoppedError as error:
                    end = end or error
                if end:
                    stop()
            if end:
                raise end
    except BrokenProcessPool:
        raise RunError(
            "a process of a trial was killed; run the same command again to resume"
        ) from None


def starting_order(trials: Sequence[Trial], jobs: int) -> list[Trial]:
    """Return trials in the order in which they begin: of several at once, the longest first.

    Those that come last of the long ones are the longest. Begun last, one would run on alone.
    """
    if jobs == 1:
        return list(trials)
    long = [trial for trial in trials if trial.is_long]
    return [*reversed(long), *(trial for trial in trials if not trial.is_long)]


@contextmanager
def _this_process(workspace: Workspace, watch: Watch) -> Iterator[Runner]:
    def run_now(trial: Trial) -> "Future[TrialRecord]":
        future: Future[TrialRecord] = Future()
        try:
            watch.update(trial.label)
            future.set_result(_run(trial, workspace, watch))
        except BaseException as error:  # as a process pool does
            future.set_exception(error)
        return future

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield run_now, lambda: None
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _processes(jobs: int, workspace: Workspace) -> Iterator[Runner]:
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    environment = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stopping,))
    try:
        # While they are started, this process ignores Ctrl-C, so that they ignore it, too.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for _ in range(jobs):  # each task starts one more process, as long as none is idle
                pool.submit(int)
        finally:
            signal.signal(signal.SIGINT, handler)
        yield lambda trial: pool.submit(_run_in_process, trial, workspace), stopping.set
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
        for name, value in environment.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _run(trial: Trial, workspace: Workspace, watch: Watch) -> TrialRecord:
    try:
        return trial.task.run(workspace, watch)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and exit_code(error) == RUN_FAILED:
            raise  # of no package of ours, so a mistake in the code
        return Failed(error=one_line(error).removeprefix(f"{trial.placer}: "))


_stopping: list[Event] = []  # of the process of a trial


def _begin(stopping: Any) -> None:
    """Prepare a process: one thread, and an end when the parent ends."""

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    _stopping[:] = [stopping]
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _run_in_process(trial: Trial, workspace: Workspace) -> TrialRecord:
    (stopping,) = _stopping
    return _run(trial, workspace, Watch(stopping.is_set))
