"""Trials, and experiments, which are made of them: each trial can run on its own, in any process.

Begin to read here; then `records` (what a trial leaves), `folder` (files of an experiment, and keys
by which a finished trial is found again) and `running` (several trials at once, up to the page).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from placeto.outputs import Picture
from placeto.placing.evaluators import EvaluatorSpec
from placeto.placing.placers import warm_up_evaluator
from placeto.texts import TextTable
from placeto.trials.records import RecordType, Trained, TrialRecord
from placeto_graphs import Evaluator, PlacementProblem, load_problem

LETTERS_OF_KEY = 16  # in the names of files


class StoppedError(BaseException):
    """Ends a trial, which can run again; no `Exception`, which placers take for a failure."""


@dataclass(frozen=True)
class Graph:
    """A problem of the experiment, which its folder holds."""

    name: str
    # Number of the random order in which its groups are visited; None for the usual one
    order: int | None = None

    @property
    def label(self) -> str:
        """Name of the problem in this order."""
        return self.name if self.order is None else f"{self.name}-order-{self.order}"


# Problems of this process by their files and digests, with the evaluators of each
_loaded: dict[tuple[Path, str], tuple[PlacementProblem, dict[str, Evaluator]]] = {}


@dataclass(frozen=True)
class Workspace:
    """Folder of the problems and trained policies of trials."""

    path: Path  # folder of the experiment
    # Keys of trials by their names. The files that a trial leaves for others have its key in their
    # names, so that none takes what a trial with other settings left.
    keys: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)  # of problems

    def keep(self, name: str, problem: PlacementProblem) -> None:
        """Keep a problem that was made in this process."""
        _loaded[self.problem_file(name), self.digests[name]] = problem, {}

    def problem(self, graph: Graph) -> PlacementProblem:
        """Return a problem, which a process loads once."""
        path = self.problem_file(graph.name)
        digest = self.digests.get(graph.name)
        if digest is None:  # its file may change
            return load_problem(path)
        if (path, digest) not in _loaded:
            _loaded[path, digest] = load_problem(path), {}
        return _loaded[path, digest][0]

    def evaluator(self, problem: PlacementProblem, spec: EvaluatorSpec) -> Evaluator:
        """Return an evaluator with one thread, compiled; one a process for what `problem` gave."""
        evaluators: dict[str, Evaluator] = {}
        if not spec.modules:  # one of a user may count
            for loaded_problem, evaluators_of_problem in _loaded.values():
                if loaded_problem is problem:
                    evaluators = evaluators_of_problem
                    break
        if spec.name not in evaluators:
            evaluators[spec.name] = spec.make(problem, 1)
            warm_up_evaluator(evaluators[spec.name])
        return evaluators[spec.name]

    def problem_file(self, name: str) -> Path:
        """Return the file of a problem."""
        return self.path / "problems" / f"{name}.json.gz"

    def policy_file(self, name: str) -> Path:
        """Return the file of a policy, beside which is a log, ``.jsonl``."""
        key = self.keys.get(training_name(name))
        stem = name if key is None else f"{name}-{key[:LETTERS_OF_KEY]}"
        return self.path / "policies" / f"{stem}.safetensors"


@dataclass(frozen=True)
class Watch:
    """Shows the progress of a trial, and stops it on request."""

    stopping: Callable[[], bool]  # returns True if trials are to stop
    show: Callable[[str], None] = lambda _text: None  # shows a line

    def update(self, text: str) -> None:
        """Show the progress; raise `StoppedError` if the trial is to stop."""
        if self.stopping():
            raise StoppedError
        self.show(text)


class Task(Protocol):
    """Work of a trial: a frozen dataclass, so that it can go to another process.

    Its fields, the problems that they name and the trials that it needs decide its result.
    """

    @property
    def kind(self) -> str:
        """Name of a kind of task; those of one kind take about equally long."""
        ...

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Run the task, and return its record."""
        ...


@dataclass(frozen=True)
class Trial:
    """One part of an experiment."""

    name: str  # name that no other trial of the experiment has
    task: Task
    dependencies: tuple[str, ...] = ()  # names of the trials that must be done before
    may_fail: bool = False  # True if an error of it is none of the experiment
    is_long: bool = False  # True if it is begun before others, where several run at once
    title: str = ""  # shown, if not its name
    placer: str = ""  # its placer and graph, if it places one
    graph: str = ""

    @property
    def label(self) -> str:
        """What is shown of it."""
        return self.title or self.name


def placing_trial(
    task: Task, placer: str, graph: Graph, seed: int | None, *dependencies: str
) -> Trial:
    """Return the trial of a placer on a graph; the seed is None where none changes it."""
    name = _placing_name(placer, graph.label, seed)
    return Trial(name, task, dependencies, placer=placer, graph=graph.label)


def _placing_name(placer: str, graph: str, seed: int | None) -> str:
    return f"{'every-seed' if seed is None else f'seed{seed}'}/{graph}/{placer}"


def training_name(policy: str) -> str:
    """Return the name of the trial that trains a policy."""
    return f"training/{policy}"


@dataclass(frozen=True)
class Results:
    """Records of the trials of an experiment that are finished, by their names."""

    records: Mapping[str, TrialRecord]

    def find(self, placer: str, graph: str, seed: int) -> TrialRecord | None:
        """Return the record of a placer on a graph with a seed, or that of all seeds."""
        record = self.records.get(_placing_name(placer, graph, seed))
        return record or self.records.get(_placing_name(placer, graph, None))

    def record(self, kind: type[RecordType], placer: str, graph: str, seed: int) -> RecordType:
        """Return the same record of a type; raise `KeyError` if there is none."""
        record = self.find(placer, graph, seed)
        if not isinstance(record, kind):
            raise KeyError(kind, placer, graph, seed)
        return record

    def trained(self, policy: str) -> Trained:
        """Return the record of the training of a policy."""
        record = self.records[training_name(policy)]
        assert isinstance(record, Trained), policy  # noqa: S101 (of a trial that trains)
        return record


@dataclass(frozen=True)
class Page:
    """Page of an experiment."""

    sections: Sequence[str]  # paragraphs and tables, as Markdown
    # Pictures by the names of their files, to which the sections link
    figures: Mapping[str, Picture] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment: its problems, trials and page."""

    name: str
    title: str
    # Options for its page; its trials alone decide its results
    options: Mapping[str, Any]
    problems: Mapping[str, Callable[[], PlacementProblem]]  # makers of the problems by their names
    trials: Sequence[Trial]  # in an order in which each comes after what it needs
    page: Callable[[Results], Page]  # from the records of all trials
    # A table and a line to show from the records so far and the last trial, if something is shown
    # before the end; then ``page`` takes fewer records, too
    news: Callable[[Results, Trial], tuple[TextTable, str]] | None = None
    # Command that repeats it, for the first line of the page; empty for none
    command: str = ""
