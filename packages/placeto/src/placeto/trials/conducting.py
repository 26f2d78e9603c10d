"""An experiment from where it stands to its page, or to where it is asked to stop."""

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from placeto.errors import RunError, StoppedRunError
from placeto.progress import Progress, clock
from placeto.stopping import StopRequest
from placeto.texts import seconds_text
from placeto.trials.folder import PAGE, ExperimentFolder
from placeto.trials.records import Episode, Outcome, Record, Trained
from placeto.trials.running import run_trials, several
from placeto.trials.trials import Experiment, StoppedError, Trial, Watch


def conduct(
    experiment: Experiment,
    folder: ExperimentFolder,
    progress: Progress,
    *,
    jobs: int,
    goes_on: bool = True,
) -> None:
    """Run the trials of an experiment that are left, and write its page.

    Parameters
    ----------
    jobs
        Number of trials that run at once, each on one core.
    goes_on
        Whether the folder is there when the same command comes again.

    Raises
    ------
    StoppedRunError
        When it was stopped.
    RunError
        When a trial failed. The page is written if it can tell of the others alone.
    """
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
            further = "; the same command goes on" if goes_on else ""
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
    """How many trials are done, and how long the others take, as those of their kind did."""

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
        """Return how far the experiment is."""
        of_kind = {kind: float(np.mean(seconds)) for kind, seconds in self._seconds.items()}
        if not self._left or not of_kind.keys() >= set(self._left.values()):
            return self.done  # nothing tells how long a kind takes of which none is finished
        left = sum(of_kind[kind] for kind in self._left.values()) / self._jobs
        return f"{self.done}, about {clock(left)} left{self._last}"
