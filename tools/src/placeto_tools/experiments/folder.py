"""The folder of an experiment: what was asked for, its problems, trials, policies and page."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placeto_graphs import save_problem
from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.errors import writing
from placeto_tools.experiments.plan import Experiment
from placeto_tools.experiments.plan import Page
from placeto_tools.experiments.trial_log import TrialLog
from placeto_tools.experiments.trials import Results
from placeto_tools.experiments.trials import Trial
from placeto_tools.experiments.trials import Workspace
from placeto_tools.outputs import make_folder
from placeto_tools.outputs import write_json
from placeto_tools.outputs import write_text
from placeto_tools.plots.png import save_png

FORMAT = "placeto-experiment"
VERSION = 1
OURS = "expected what `placeto experiment` or `placeto compare` writes"
DESCRIPTION = "experiment.json"
TRIALS = "trials.jsonl"
PAGE = "results.md"
FOLDERS = ("problems", "policies", "placements")


class ExperimentFolder:
    """A folder with all that an experiment needs to go on, and what it came to.

    ``experiment.json`` says what was asked for; ``problems`` and ``policies`` hold what trials
    work with; ``trials.jsonl`` has a line for each that is finished; ``results.md`` and pictures
    tell them all.

    Parameters
    ----------
    path
        The folder. An experiment with the same options goes on where it stopped.
    experiment
        The experiment.
    force
        Whether what another one left may be overwritten; then this one begins anew, too.

    Raises
    ------
    InputError
        When the folder holds something else, even if that is to be overwritten.
    """

    def __init__(self, path: Path, experiment: Experiment, *, force: bool) -> None:
        self.path = path
        self.workspace = Workspace(path)
        self._experiment = experiment
        # As it will be read: what JSON makes of it, tuples for example.
        self._described = json.loads(json.dumps(_description(experiment)))
        if force or not (path / DESCRIPTION).exists():
            self._create(force=force)
        else:
            self._check()
        self.log = TrialLog(path / TRIALS)

    @property
    def left(self) -> list[Trial]:
        """The trials that are not finished."""
        return [trial for trial in self._experiment.trials if trial.key not in self.log.records]

    @property
    def results(self) -> Results:
        """What the finished trials came to."""
        return Results(self.log.records)

    def make_problems(self, show: Callable[[str], None]) -> None:
        """Write the problems that are not there yet."""
        for name, make in self._experiment.problems.items():
            path = self.workspace.problem_file(name)
            if not path.exists():
                show(f"{name}: reading or capturing its graph ...")
                problem = make()
                with writing(path):
                    path.parent.mkdir(exist_ok=True)
                    save_problem(problem, path)

    def write_page(self, page: Page) -> None:
        """Write what was shown."""
        for name, figure in page.figures.items():
            save_png(figure, self.path / name)
        options = "\n".join(
            f"- {name}: {json.dumps(value)}" for name, value in self._described["options"].items()
        )
        parts = [f"# {self._experiment.title}", *page.parts, "## Options", options]
        write_text(self.path / PAGE, "\n\n".join(parts) + "\n")

    def _create(self, *, force: bool) -> None:
        make_folder(self.path, force=force)
        if any(self.path.iterdir()):
            self._found()
        with writing(self.path):
            for name in (TRIALS, PAGE):
                (self.path / name).unlink(missing_ok=True)
            for name in FOLDERS:
                if (self.path / name).is_dir():
                    shutil.rmtree(self.path / name)
        write_json(self.path / DESCRIPTION, self._described)

    def _check(self) -> None:
        path = self.path / DESCRIPTION
        kind, options = self._found()
        wanted = (FORMAT, VERSION, self._experiment.name)
        if kind != wanted:
            raise InputError(f"{path}: expected {wanted}, got {kind}; --force overwrites it")
        for name, value in self._described["options"].items():
            if options.get(name) != value:
                raise InputError(
                    f"{path}: begun with other options: {_difference(options, name, value)}; "
                    "--force begins anew"
                )

    def _found(self) -> tuple[tuple[str, int, str], dict[str, Any]]:
        """Return the format, version and name of the experiment of the folder, and its options."""
        path = self.path / DESCRIPTION
        with reading(path):
            text = path.read_bytes()
        try:
            found = json.loads(text)
            kind = (found["format"], found["version"], found["experiment"])
            options = dict(found["options"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: {OURS}: {error!r}") from None
        if kind[0] != FORMAT:
            raise InputError(f"{path}: {OURS}, got {kind[0]!r}")
        return kind, options


def _description(experiment: Experiment) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment.name,
        "options": dict(experiment.options),
        "trials": len(experiment.trials),
    }


def _difference(options: dict[str, Any], name: str, value: Any) -> str:
    """Return what differs, down to one number."""
    found = options.get(name)
    if isinstance(found, dict) and isinstance(value, dict):
        inner = next(key for key in {**found, **value} if found.get(key) != value.get(key))
        return _difference(found, inner, value.get(inner))
    return f"{name} {json.dumps(found)}, not {json.dumps(value)}"
