"""An experiment from where it stands to its page, or to where it is asked to stop."""

from collections import defaultdict
from collections.abc import Generator
from contextlib import closing

import numpy as np

from placeto_tools.errors import RunError
from placeto_tools.experiments.experiment import Experiment
from placeto_tools.experiments.folder import PAGE
from placeto_tools.experiments.folder import ExperimentFolder
from placeto_tools.experiments.running import Finished
from placeto_tools.experiments.running import run_here
from placeto_tools.experiments.running import run_in_processes
from placeto_tools.experiments.trials import Record
from placeto_tools.experiments.trials import Results
from placeto_tools.experiments.trials import StoppedError
from placeto_tools.experiments.trials import Trial
from placeto_tools.experiments.trials import Watch
from placeto_tools.progress import Progress
from placeto_tools.progress import clock
from placeto_tools.stopping import StopRequest
from placeto_tools.tables import seconds_text


def conduct(
    experiment: Experiment, folder: ExperimentFolder, progress: Progress, *, jobs: int
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

    Raises
    ------
    RunError
        When it was stopped, or a trial failed.
    """
    left = folder.left
    forecast = _Forecast(experiment, folder.log.records, jobs)
    with StopRequest() as stop:
        watch = Watch(
            lambda: stop.requested, lambda text: progress.update(f"{forecast.text()}; {text}")
        )
        try:
            folder.make_problems(watch)
            with closing(_run(left, folder, watch, jobs)) as finished:
                for trial, record in finished:
                    folder.log.add(trial.key, record)
                    forecast.add(trial, record)
        except StoppedError:
            done, total = len(folder.log.records), len(experiment.trials)
            raise RunError(
                f"stopped after {done} of {total} trials; the same command goes on"
            ) from None
    progress.update(f"writing {PAGE} ...")
    folder.write_page(experiment.page(Results(folder.log.records)))


def _run(
    left: list[Trial], folder: ExperimentFolder, watch: Watch, jobs: int
) -> Generator[Finished, None, None]:
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
        if "seconds" in record:
            self._seconds[trial.task.kind].append(record["seconds"])
        if record.get("cost") is not None:
            self._last = f", last {trial.key}: {seconds_text(record['cost'])}"

    def text(self) -> str:
        """Return how far the experiment is."""
        every = [seconds for kind in self._seconds.values() for seconds in kind]
        usual = float(np.mean(every)) if every else None
        of_kind = {kind: float(np.mean(seconds)) for kind, seconds in self._seconds.items()}
        done = f"{self._total - len(self._left)} of {self._total} trials"
        if usual is None:
            return done
        left = sum(of_kind.get(kind, usual) for kind in self._left.values()) / self._jobs
        return f"{done}, about {clock(left)} left{self._last}"
