"""Folder of an experiment: problems, finished trials, policies and the page; and keys of trials."""

import ast
import hashlib
import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from placeto import __version__
from placeto.errors import InputError, writing
from placeto.outputs import (
    VARYING,
    alone_in,
    check_folder,
    decode_json,
    json_text,
    read_json,
    save_picture,
    write_json,
    write_text,
)
from placeto.progress import clock
from placeto.trials.records import Failed, TrialRecord
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial, Workspace
from placeto_graphs import save_problem, write_atomically

DESCRIPTION, TRIALS, PAGE = "experiment.json", "trials.jsonl", "results.md"
FOLDERS = ("problems", "policies", "placements")
VERSION = 4
# Packages that decide the results of trials. Capture has the cost models, by which CPU only is
# placed on a CPU that the problem lacks.
RUN_BY = (
    "placeto",
    "placeto_baselines",
    "placeto_capture",
    "placeto_graphs",
    "placeto_policy",
    "placeto_simulator",
)
INIT = "__init__.py"
LIBRARIES = ("networkx", "numba", "numpy", "pymetis", "pyscotch", "scipy", "torch")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a finished trial, in front of its record."""

    key: str
    name: str  # its name in the experiment
    # Seconds since the trial before, or since the command began: their sum is how long the
    # experiment took, with however many jobs
    took: float = 0.0


class ExperimentFolder:
    """Folder of an experiment, from which it resumes, also with trials of earlier commands."""

    def __init__(self, path: Path, experiment: Experiment, written: Mapping[str, str]) -> None:
        self.path = path
        self.workspace = Workspace(path)
        self._experiment = experiment
        self._written = dict(written)  # digests of the problems that the folder has
        self._describe()
        self._records: dict[str, TrialRecord] = {}  # by key
        self._origins: dict[str, Origin] = {}
        if (path / TRIALS).exists():
            self._read(path / TRIALS)

    def make_problems(self, show: Callable[[str], None]) -> None:
        """Make the problems, and the keys by which finished trials are found."""
        digests = {}
        for name, make in self._experiment.problems.items():
            show(f"{name}: reading or capturing its graph ...")
            problem, path = make(), self.workspace.problem_file(name)
            digests[name] = content_digest(problem)
            if self._written.get(name) != digests[name] or not path.exists():
                self._written[name] = ""  # not known, if it is cut now
                self._describe()
                with writing(path):
                    path.parent.mkdir(exist_ok=True)
                    save_problem(problem, path)
            self._written[name] = digests[name]
            Workspace(self.path, {}, digests).keep(name, problem)
        self._describe()
        keys = trial_keys(self._experiment.trials, digests)
        self.workspace = Workspace(self.path, keys, digests)

    def _describe(self) -> None:
        described = _Description(
            experiment=self._experiment.name,
            options=self._experiment.options,
            trials=len(self._experiment.trials),
            problems=self._written,
        )
        write_json(self.path / DESCRIPTION, described)

    @property
    def finished(self) -> dict[str, TrialRecord]:
        """The records of the experiment's trials that are finished, by name, but for failures."""
        records = self.results.records
        return {name: record for name, record in records.items() if not isinstance(record, Failed)}

    @property
    def results(self) -> Results:
        """Records of the finished trials and of those that failed."""
        keys, records = self.workspace.keys, self._records
        return Results({name: records[key] for name, key in keys.items() if key in records})

    def add(self, trial: Trial, record: TrialRecord, took: float) -> None:
        """Store a trial, and return when it is on disk; an equal failure is stored once."""
        key = self.workspace.keys[trial.name]
        if self._records.get(key) == record:
            return
        origin = Origin(key=key, name=trial.name, took=took)
        line = msgspec.json.encode(msgspec.to_builtins(origin) | msgspec.to_builtins(record))
        with writing(self.path / TRIALS), (self.path / TRIALS).open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._records[key], self._origins[key] = record, origin

    def _read(self, path: Path) -> None:
        """Read the finished trials; the incomplete last line of a crash is dropped."""
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for line_number, line in enumerate(whole.splitlines(), start=1):
            problem = f"{path}, line {line_number}: expected a finished trial (--force begins anew)"
            origin = decode_json(line, Origin, problem)
            self._origins[origin.key] = origin
            self._records[origin.key] = decode_json(
                line, cast(type[TrialRecord], TrialRecord), problem
            )
        if whole != content:
            with writing(path):
                write_atomically(path, whole)

    def write_page(self, page: Page) -> None:
        """Write the page and its pictures."""
        for name, figure in page.figures.items():
            for suffix in VARYING:
                save_picture(figure, (self.path / name).with_suffix(suffix))
        options = "\n".join(
            f"- {name}: {json_text(value, indent=0)}"
            for name, value in self._experiment.options.items()
        )
        title = f"# {self._experiment.title}"
        sections = [title, *self._origin(), *page.sections, "## Options", options]
        write_text(self.path / PAGE, "\n\n".join(sections) + "\n")

    def _origin(self) -> list[str]:
        """Return the command, code, seeds and time of the page; nothing without a command."""
        if not self._experiment.command:
            return []
        keys = self.workspace.keys.values()
        took = sum(self._origins[key].took for key in keys if key in self._origins)
        seeds = self._experiment.options.get("seeds")
        phrases = [f"`{self._experiment.command}`", code_version()]
        if seeds:
            phrases.append(f"seeds {', '.join(map(str, seeds))}")
        phrases.append(f"{clock(took)} in all")
        return [", ".join(phrases) + "."]


@contextmanager
def experiment_folder(
    path: Path, experiment: Experiment, *, force: bool
) -> Iterator[ExperimentFolder]:
    """Give the folder of an experiment to this process alone; ``force`` empties it."""
    check_folder(path, DESCRIPTION, force=force)
    written: Mapping[str, str] = {}
    is_ours = (path / DESCRIPTION).exists()
    if is_ours:
        description = read_json(
            path / DESCRIPTION, _Description, "`placeto experiment` or `compare`"
        )
        if not force:
            description.check(path / DESCRIPTION, experiment)
            written = description.problems
    with alone_in(path):
        if force:
            with writing(path):
                for name in (TRIALS, PAGE):
                    (path / name).unlink(missing_ok=True)
                for name in FOLDERS if is_ours else ():
                    if (path / name).is_dir():
                        shutil.rmtree(path / name)
        yield ExperimentFolder(path, experiment, written)


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["placeto-experiment"] = "placeto-experiment"
    version: int = VERSION
    experiment: str
    options: Mapping[str, Any]
    trials: int
    problems: Mapping[str, str] = {}  # digests by name

    def check(self, path: Path, experiment: Experiment) -> None:
        if self.version != VERSION:
            raise InputError(
                f"{path}: expected version {VERSION}, got {self.version}; --force begins anew"
            )
        if self.experiment != experiment.name:
            raise InputError(
                f"{path}: expected the experiment {experiment.name}, got {self.experiment}; "
                "--force begins anew"
            )


@cache
def code_version() -> str:
    """Return the commit of the checkout that runs, with ``+`` if it has edits; else the version."""
    try:
        # An environment can lie in a checkout of other code, which does not track this file.
        _git("ls-files", "--error-unmatch", __file__)
        return f"commit {_git('describe', '--always', '--exclude=*', '--dirty=+')}"
    except (OSError, subprocess.CalledProcessError):
        return f"placeto {__version__}"


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()


def content_digest(value: object, problems: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 of a value: equal digests are equal values, in every process."""

    def content(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            contents = {field.name: getattr(value, field.name) for field in fields(value)}
            if isinstance(value, Graph):
                contents[""] = (problems or {})[value.name]
            return {type(value).__qualname__: contents}
        if isinstance(value, msgspec.Struct):
            return {type(value).__qualname__: msgspec.structs.asdict(value)}
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:  # these are addresses
            hashed = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return [value.dtype.str, value.shape, hashed]
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise TypeError(f"expected a value whose content can be told, got {type(value)}")

    return hashlib.sha256(json.dumps(value, default=content, sort_keys=True).encode()).hexdigest()


def trial_keys(trials: Sequence[Trial], problems: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each trial by its name, from digests of the problems by name."""
    keys: dict[str, str] = {}
    libraries = {name: _version(name) for name in LIBRARIES}
    for trial in trials:
        user_modules = getattr(trial.task, "modules", ())  # of a placer or an evaluator of a user
        packages = {*RUN_BY, type(trial.task).__module__.partition(".")[0], *user_modules}
        decisive = (
            libraries,
            {name: files_digest(name) for name in packages},
            {name: imports_digest(name) for name in user_modules if not os.path.isabs(name)},
            trial.task,
            [keys[name] for name in trial.dependencies],
        )
        keys[trial.name] = content_digest(decisive, problems)
    return keys


@cache
def files_digest(package: str) -> str:
    """Return the SHA-256 of the files of a package, module or path: no version tells edits."""
    source = _file(package)
    folder = source if source.is_dir() else source.parent
    paths = folder.rglob("*") if source == folder or source.name == INIT else [source]
    files = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    return content_digest(
        {path.relative_to(folder).as_posix(): _file_digest(path) for path in files}
    )


@cache
def imports_digest(module: str) -> str:
    """Return the SHA-256 of what a module of a user's own imports from beside it, and that imports.

    Files are read, and nothing is imported. An installed module has only libraries beside it.
    """
    source, digests = _file(module), dict[str, str]()
    if source.suffix == ".py" and not {"site-packages", "dist-packages"} & {*source.parts}:
        root = source.parents[module.count(".") + (source.name == INIT)]
        unread = [source]
        while unread:
            path = unread.pop()
            name = path.relative_to(root).as_posix()
            if name not in digests:
                digests[name] = _file_digest(path)
                for imported in _imported(path, name.split("/")[:-1]):
                    for depth in range(1, len(imported) + 1):
                        stem = root.joinpath(*imported[:depth])
                        files = (stem / INIT, Path(f"{stem}.py"))
                        unread += [file for file in files if file.is_file()]
    return content_digest(digests)


def _imported(path: Path, package: list[str]) -> Iterator[list[str]]:
    """Yield the modules that a file of a package may import, by the parts of their names."""
    with suppress(SyntaxError):  # of a file that nothing has imported so far
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                start = [*above, *(node.module.split(".") if node.module else [])]
                yield from ([*start, alias.name] for alias in node.names)


def _file(module: str) -> Path:
    """Return the path itself, or the file of a module; built-in ones and namespaces have none."""
    if os.path.isabs(module):
        return Path(module)
    return Path(getattr(importlib.import_module(module), "__file__", None) or os.devnull)


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
