"""The folder of an experiment: what was asked for, its problems, trials, policies and page."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from placeto.errors import InputError, writing
from placeto.json_files import json_text, read_json, write_json
from placeto.outputs import make_folder, save_png, write_text
from placeto.progress import clock
from placeto.trials.experiment import Experiment, Page
from placeto.trials.trial_log import TrialLog
from placeto.trials.trials import Results, Trial, Workspace
from placeto_graphs import save_problem

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
        described = _Description(
            experiment=experiment.name,
            options=experiment.options,
            trials=len(experiment.trials),
        )
        # As it will be read: what JSON makes of it, tuples for example.
        self._described = msgspec.json.decode(msgspec.json.encode(described), type=_Description)
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
        return Results(self.log.records.values())

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
            f"- {name}: {json_text(value, indent=0)}"
            for name, value in self._described.options.items()
        )
        parts = [f"# {self._experiment.title}", *self._origin(), *page.parts, "## Options", options]
        write_text(self.path / PAGE, "\n\n".join(parts) + "\n")

    def _origin(self) -> list[str]:
        """Return what made the page, and how long it took; nothing where no command makes it."""
        if not self._experiment.command:
            return []
        origins = self.log.origins.values()
        commits = list(dict.fromkeys(origin.commit for origin in origins if origin.commit))
        seeds = self._described.options.get("seeds")
        said = [
            f"`{self._experiment.command}`",
            *([f"commit {' to '.join(commits)}"] if commits else []),
            *([f"seeds {', '.join(map(str, seeds))}"] if seeds else []),
            f"{clock(sum(origin.took for origin in origins))} in all",
        ]
        return [", ".join(said) + "."]

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
        found = self._found().deciding()
        for name, value in self._described.deciding().items():
            if found.get(name) != value:
                raise InputError(
                    f"{self.path / DESCRIPTION}: begun with other options: "
                    f"{_difference(found, name, value)}; --force begins anew"
                )

    def _found(self) -> "_Description":
        """Return what the folder was begun with."""
        writer = "`placeto experiment` or `placeto compare`"
        return read_json(self.path / DESCRIPTION, _Description, writer)


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["placeto-experiment"] = "placeto-experiment"
    version: int = 2
    experiment: str
    options: Mapping[str, Any]
    trials: int

    def deciding(self) -> dict[str, Any]:
        return {"version": self.version, "experiment": self.experiment, **self.options}


def _difference(options: dict[str, Any], name: str, value: Any) -> str:
    """Return what differs, down to one number."""
    found = options.get(name)
    if isinstance(found, dict) and isinstance(value, dict):
        inner = next(key for key in {**found, **value} if found.get(key) != value.get(key))
        return _difference(found, inner, value.get(inner))
    return f"{name} {json_text(found, indent=0)}, not {json_text(value, indent=0)}"
