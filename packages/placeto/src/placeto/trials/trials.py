"""Trials, and experiments, which are made of them: each trial can run on its own, in any process.

Begin to read here; then `store` (what makes a trial the same as one that is finished), `folder`
(where an experiment stands) and `running` (several at once, up to the page).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from placeto.outputs import Picture
from placeto.texts import TextTable
from placeto.trials.records import Record, Trained
from placeto_graphs import PlacementProblem, load_problem

Kind = TypeVar("Kind", bound=Record)
LETTERS_OF_KEY = 16  # in the names of files


class StoppedError(BaseException):
    """A trial was asked to stop; it can be run again.

    It is no `Exception`, so that no placer takes it for an evaluator that fails.
    """


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


@dataclass(frozen=True)
class Workspace:
    """Folder in which trials find problems and trained policies, and leave their own."""

    path: Path  # folder of the experiment
    # Keys of trials by their names. The files that a trial leaves for others have its key in their
    # names, so that none takes what a trial with other settings left.
    keys: Mapping[str, str] = field(default_factory=dict)

    def problem(self, graph: Graph) -> PlacementProblem:
        """Return a problem, read anew: what is computed of it counts for who computes it."""
        return load_problem(self.problem_file(graph.name))

    def problem_file(self, name: str) -> Path:
        """Return the file of a problem."""
        return self.path / "problems" / f"{self._stem(measuring_name(name), name)}.json.gz"

    def policy_file(self, name: str) -> Path:
        """Return the file of a policy, beside which is a log, ``.jsonl``."""
        return self.path / "policies" / f"{self._stem(training_name(name), name)}.safetensors"

    def _stem(self, trial: str, name: str) -> str:
        key = self.keys.get(trial)
        return name if key is None else f"{name}-{key[:LETTERS_OF_KEY]}"


@dataclass(frozen=True)
class Watch:
    """Lets a trial show how far it is, and stops it if that is wanted."""

    stopping: Callable[[], bool]  # whether trials are to stop
    show: Callable[[str], None] = lambda _text: None  # shows a line to people

    def update(self, text: str) -> None:
        """Show how far the trial is; raise `StoppedError` when it is to stop."""
        if self.stopping():
            raise StoppedError
        self.show(text)


class Task(Protocol):
    """Work of a trial: a frozen dataclass, so that it can go to another process.

    Its fields are all that decides what it comes to, besides the problems that they name (each a
    `Graph`) and what the trials that it needs have left.
    """

    @property
    def kind(self) -> str:
        """Name of a kind of task; those of one kind take about equally long."""
        ...

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Do it, and return its numbers."""
        ...


@dataclass(frozen=True)
class Trial:
    """One part of an experiment."""

    name: str  # name that no other trial of the experiment has
    task: Task
    needs: tuple[str, ...] = ()  # names of the trials that must be done before
    measured: bool = False  # whether it measures this machine: on another one it is another trial
    # Whether a `Failed` says why its task cannot be done, so that the experiment tells of the rest
    may_fail: bool = False


def placing(task: Task, placer: str, graph: Graph, seed: int | None, *needs: str) -> Trial:
    """Return the trial of a placer on a graph; the seed is None where none changes it."""
    return Trial(_placing_name(placer, graph.label, seed), task, needs)


def _placing_name(placer: str, graph: str, seed: int | None) -> str:
    return f"{'every-seed' if seed is None else f'seed{seed}'}/{graph}/{placer}"


def training_name(policy: str) -> str:
    """Return the name of the trial that trains a policy."""
    return f"training/{policy}"


def measuring_name(problem: str) -> str:
    """Return the name of the trial that measures the ops of a problem, and leaves its file."""
    return f"measuring/{problem}"


@dataclass(frozen=True)
class Results:
    """Records of the trials of an experiment that are finished, by their names."""

    records: Mapping[str, Record]

    def find(self, placer: str, graph: str, seed: int) -> Record | None:
        """Return what a placer came to on a graph with a seed, or with all of them alike."""
        names = [_placing_name(placer, graph, one) for one in (seed, None)]
        return next((self.records[name] for name in names if name in self.records), None)

    def record(self, kind: type[Kind], placer: str, graph: str, seed: int) -> Kind:
        """Return the same of a kind; raise `KeyError` if there is none."""
        found = self.find(placer, graph, seed)
        if not isinstance(found, kind):
            raise KeyError(kind, placer, graph, seed)
        return found

    def trained(self, policy: str) -> Trained:
        """Return how the training of a policy went."""
        found = self.records[training_name(policy)]
        assert isinstance(found, Trained), policy  # noqa: S101 (of a trial that trains)
        return found


@dataclass(frozen=True)
class Page:
    """What an experiment showed."""

    parts: Sequence[str]  # paragraphs and tables, as Markdown
    # Pictures by the name of their files, which the parts refer to
    figures: Mapping[str, Picture] = field(default_factory=dict)
    failures: Sequence[str] = ()  # lines that say what went wrong in trials that could not be done


@dataclass(frozen=True)
class News:
    """What is shown of an experiment that grows, when a trial is finished."""

    line: str  # what the trial came to
    table: TextTable  # all that is known of its problem


@dataclass(frozen=True)
class Experiment:
    """Everything about an experiment."""

    name: str
    title: str
    # What was asked for, for its page; its trials alone decide what it comes to
    options: Mapping[str, Any]
    problems: Mapping[str, Callable[[], PlacementProblem]]  # makers of the problems by their names
    trials: Sequence[Trial]  # in an order in which each comes after what it needs
    page: Callable[[Results], Page]  # from what all trials came to, to what is told
    # From what the trials so far came to, and the last of them, to what is shown, where something
    # can be told before the end; then ``page`` tells of any of them, too
    news: Callable[[Results, Trial], News] | None = None
    # Command that makes the same again, for the first line of the page; empty for none
    command: str = ""
