"""An experiment from where it stands to its page, or to where it is asked to stop."""

import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import closing

import numpy as np

from placeto.errors import RunError, StoppedRunError
from placeto.progress import Progress, clock
from placeto.stopping import StopRequest
from placeto.texts import seconds_text
from placeto.trials.experiment import Experiment
from placeto.trials.folder import PAGE, ExperimentFolder
from placeto.trials.origin import commit
from placeto.trials.records import Episode, Outcome, Record, Trained
from placeto.trials.running import Finished, run_here, run_in_processes
from placeto.trials.trial_log import Origin
from placeto.trials.trials import StoppedError, Trial, Watch


def conduct(
    experiment: Experiment,
    folder: ExperimentFolder,
    progress: Progress,
    *,
    jobs: int,
    goes_on: bool = True,
) -> None:
    """Run the trials that are left, and write the page.

    Parameters
    ----------
    experiment
        The experiment.
    folder
        Its folder.
    progress
        Shows how far it is.
    jobs
        How many trials run at once, each on one core.
    goes_on
        Whether the folder is there when the same command comes again.

    Raises
    ------
    StoppedRunError
        When it was stopped.
    RunError
        When a trial failed.
    """
    forecast = _Forecast(experiment, folder.log.records, jobs)
    sources, before = commit(), time.monotonic()
    folder.make_problems(progress.update)
    progress.update(forecast.text())
    with StopRequest() as stop:
        watch = Watch(
            lambda: stop.requested, lambda text: progress.update(f"{forecast.text()}; {text}")
        )
        try:
            with closing(_run(folder, watch, jobs)) as finished:
                for trial, record in finished:
                    now = time.monotonic()
                    origin = Origin(key=trial.key, commit=sources, took=now - before)
                    folder.log.add(origin, record)
                    before = now
                    forecast.add(trial, record)
                    if experiment.news:
                        news = experiment.news(folder.results, record)
                        progress.grow(news.table, news.line)
        except StoppedError:
            done, total = len(experiment.trials) - len(folder.left), len(experiment.trials)
            if experiment.news:
                folder.write_page(experiment.page(folder.results))
            further = "; the same command goes on" if goes_on else ""
            raise StoppedRunError(f"stopped after {done} of {total} trials{further}") from None
    progress.update(f"writing {PAGE} ...")
    page = experiment.page(folder.results)
    folder.write_page(page)
    if page.failures:
        others = f" (and {len(page.failures) - 1} more)" if len(page.failures) > 1 else ""
        raise RunError(f"{page.failures[0]}{others}")


def _run(folder: ExperimentFolder, watch: Watch, jobs: int) -> Generator[Finished, None, None]:
    left = folder.left
    if jobs == 1 or len(left) <= 1:
        return run_here(left, folder.workspace, watch)
    return run_in_processes(left, folder.workspace, watch, jobs, list(folder.log.records))


class _Forecast:
    """How many trials are done, and how long the others take, as those of their kind did."""

    def __init__(self, experiment: Experiment, done: dict[str, Record], jobs: int) -> None:
        self._jobs = jobs
        self._total = len(experiment.trials)
        self._left = {trial.key: trial.task.kind for trial in experiment.trials}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._last = ""
        for trial in experiment.trials:
            if trial.key in done:
                self.add(trial, done[trial.key])

    def add(self, trial: Trial, record: Record) -> None:
        """Take note of a finished trial."""
        del self._left[trial.key]
        if isinstance(record, Outcome | Trained):
            self._seconds[trial.task.kind].append(record.seconds)
        if isinstance(record, Outcome | Episode) and record.cost is not None:
            self._last = f", last {trial.key}: {seconds_text(record.cost)}"

    def text(self) -> str:
        """Return how far the experiment is."""
        of_kind = {kind: float(np.mean(seconds)) for kind, seconds in self._seconds.items()}
        done = f"{self._total - len(self._left)} of {self._total} trials"
        if not self._left or not of_kind.keys() >= set(self._left.values()):
            return done  # nothing tells how long a kind takes of which none is finished
        left = sum(of_kind[kind] for kind in self._left.values()) / self._jobs
        return f"{done}, about {clock(left)} left{self._last}"
