"""Folder of an experiment: problems, finished trials, policies and the page."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from filelock import FileLock, Timeout

from placeto.errors import InputError, writing
from placeto.json_files import json_text, read_json, write_json
from placeto.outputs import make_folder, save_png, write_text
from placeto.progress import clock
from placeto.trials.records import Failed, Record
from placeto.trials.store import Origin, TrialStore, content_digest, trial_keys
from placeto.trials.trials import Experiment, Page, Results, Trial, Workspace
from placeto_graphs import save_problem

DESCRIPTION, TRIALS, PAGE = "experiment.json", "trials.jsonl", "results.md"
LOCK = ".lock"
FOLDERS = ("problems", "policies", "placements")
VERSION = 3  # the first whose trials have keys


class ExperimentFolder:
    """Folder with all that an experiment needs to go on, and what it came to.

    ``experiment.json`` says what was asked for last; ``problems`` and ``policies`` hold what trials
    work with; ``trials.jsonl`` has a line for each that is finished, of this command or of one
    before it with other options; ``results.md`` and pictures tell those of this command.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.workspace = Workspace(path)
        self._experiment = experiment
        self._store = TrialStore(path / TRIALS)
        self._commit = commit()

    def make_problems(self, show: Callable[[str], None]) -> None:
        """Make the problems, and the keys of the trials, which say what is finished."""
        digests = {}
        for name, make in self._experiment.problems.items():
            show(f"{name}: reading or capturing its graph ...")
            problem, path = make(), self.workspace.problem_file(name)
            with writing(path):
                path.parent.mkdir(exist_ok=True)
                save_problem(problem, path)
            digests[name] = content_digest(problem)
        self.workspace = Workspace(self.path, trial_keys(self._experiment.trials, digests))

    @property
    def finished(self) -> dict[str, Record]:
        """The records of the experiment's trials that are finished, by name, but for failures."""
        records = self.results.records
        return {name: one for name, one in records.items() if not isinstance(one, Failed)}

    @property
    def results(self) -> Results:
        """What the finished trials came to, and why others failed."""
        keys, records = self.workspace.keys, self._store.records
        return Results({name: records[key] for name, key in keys.items() if key in records})

    def add(self, trial: Trial, record: Record, took: float) -> None:
        """Write down a finished trial that took so many seconds."""
        key = self.workspace.keys[trial.name]
        origin = Origin(key=key, name=trial.name, commit=self._commit, took=took)
        self._store.put(origin, record)

    def write_page(self, page: Page) -> None:
        """Write what was shown."""
        for name, figure in page.figures.items():
            save_png(figure, self.path / name)
        options = "\n".join(
            f"- {name}: {json_text(value, indent=0)}"
            for name, value in self._experiment.options.items()
        )
        title = f"# {self._experiment.title}"
        parts = [title, *self._origin(), *page.parts, "## Options", options]
        write_text(self.path / PAGE, "\n\n".join(parts) + "\n")

    def _origin(self) -> list[str]:
        """Return what made the page, and how long it took; nothing where no command makes it."""
        if not self._experiment.command:
            return []
        keys, known = self.workspace.keys.values(), self._store.origins
        origins = [known[key] for key in keys if key in known]
        commits = list(dict.fromkeys(origin.commit for origin in origins if origin.commit))
        seeds = self._experiment.options.get("seeds")
        said = [
            f"`{self._experiment.command}`",
            *([f"commit {' to '.join(commits)}"] if commits else []),
            *([f"seeds {', '.join(map(str, seeds))}"] if seeds else []),
            f"{clock(sum(origin.took for origin in origins))} in all",
        ]
        return [", ".join(said) + "."]


@contextmanager
def experiment_folder(
    path: Path, experiment: Experiment, *, force: bool
) -> Iterator[ExperimentFolder]:
    """Give the folder of an experiment to this process alone.

    Trials that are finished there, and have the keys of this experiment's, stay, unless ``force``
    lets this one begin anew.

    Raises
    ------
    InputError
        When the folder holds another experiment, unless that may be overwritten; something else; or
        another process works in it.
    """
    if force or not (path / DESCRIPTION).exists():
        make_folder(path, force=force or _is_empty(path))
    if not _is_empty(path):
        found = read_json(path / DESCRIPTION, _Description, "`placeto experiment` or `compare`")
        if not force:
            found.check(path / DESCRIPTION, experiment)
    with writing(path):
        try:
            lock = FileLock(path / LOCK).acquire(timeout=0)
        except Timeout:
            raise InputError(f"{path}: another process works in it; name another folder") from None
    with lock:
        if force:
            _empty(path)
        described = _Description(
            experiment=experiment.name, options=experiment.options, trials=len(experiment.trials)
        )
        write_json(path / DESCRIPTION, described)
        yield ExperimentFolder(path, experiment)


def _is_empty(path: Path) -> bool:
    """Return whether a folder has nothing but what a process leaves that was killed at once."""
    return path.is_dir() and {one.name for one in path.iterdir()} <= {LOCK}


def _empty(path: Path) -> None:
    with writing(path):
        for name in (TRIALS, PAGE):
            (path / name).unlink(missing_ok=True)
        for name in FOLDERS:
            if (path / name).is_dir():
                shutil.rmtree(path / name)


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["placeto-experiment"] = "placeto-experiment"
    version: int = VERSION
    experiment: str
    options: Mapping[str, Any]
    trials: int

    def check(self, path: Path, experiment: Experiment) -> None:
        if self.version != VERSION:
            raise InputError(
                f"{path}: expected version {VERSION}, got {self.version}, whose trials have no "
                "keys; --force begins anew"
            )
        if self.experiment != experiment.name:
            raise InputError(
                f"{path}: begun as another experiment: {self.experiment}, not {experiment.name}; "
                "--force begins anew"
            )


def commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None where it is installed.

    A ``+`` behind it says that sources of any package were changed since, or are new.
    """
    head = _git("rev-parse", "--short", "HEAD")
    if head is None or _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    changed = _git("status", "--porcelain", "--", ":/packages", ":/tools")
    return f"{head}+" if changed else head


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 (arguments of this module's own)
        [git, *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None
