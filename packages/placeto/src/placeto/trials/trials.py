"""Trials, of which experiments are made: each can run on its own, in any process.

Begin to read here; then `store` (what makes a trial the same as one that is finished), `running`
(several at once) and `conducting` (an experiment from where it stands to its page).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from placeto.trials.records import Record
from placeto_graphs import PlacementProblem, load_problem

Kind = TypeVar("Kind", bound=Record)
LETTERS_OF_KEY = 16  # in the names of files


class StoppedError(Exception):
    """A trial was asked to stop; it can be run again."""


@dataclass(frozen=True)
class Graph:
    """A problem of the experiment, which its folder holds."""

    name: str
    # Number of the random order in which its groups are visited; None for the usual one
    order: int | None = None

    @property
    def label(self) -> str:
        """Name in records."""
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
        """Return the file of a policy."""
        return self.path / "policies" / f"{self._stem(training_name(name), name)}.safetensors"

    def log_file(self, name: str) -> Path:
        """Return the file with a line for each update of a training."""
        return self.policy_file(name).with_suffix(".jsonl")

    def placement_file(self, name: str, placer: str) -> Path:
        """Return the file of the best placement that a placer has found for a problem."""
        return self.path / "placements" / name / f"{placer}.json"

    def _stem(self, trial: str, name: str) -> str:
        key = self.keys.get(trial)
        return name if key is None else f"{name}-{key[:LETTERS_OF_KEY]}"


class Watch:
    """Lets a trial show how far it is, and stops it if that is wanted.

    Parameters
    ----------
    stopping
        Whether trials are to stop.
    show
        Shows a line to people.
    """

    def __init__(
        self, stopping: Callable[[], bool], show: Callable[[str], None] = lambda _text: None
    ) -> None:
        self.stopping = stopping
        self._show = show

    def update(self, text: str) -> None:
        """Show how far the trial is.

        Raises
        ------
        StoppedError
            When it is to stop.
        """
        if self.stopping():
            raise StoppedError
        self._show(text)


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


class Results:
    """Records of all trials of an experiment that are finished.

    Parameters
    ----------
    records
        In any order; no two of one scheme, graph and seed.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_place = {(record.scheme, record.graph, record.seed): record for record in records}

    def record(self, kind: type[Kind], scheme: str, graph: str, seed: int) -> Kind:
        """Return what a scheme came to on a graph with a seed, or with all of them alike."""
        found = self.find(scheme, graph, seed)
        if not isinstance(found, kind):
            raise KeyError(kind, scheme, graph, seed)
        return found

    def find(self, scheme: str, graph: str, seed: int) -> Record | None:
        """Return the same, of any kind, or None if that trial is not finished."""
        found = self._by_place.get((scheme, graph, seed))
        return self._by_place.get((scheme, graph, None)) if found is None else found


def placing(task: Task, scheme: str, graph: Graph, seed: int | None, *needs: str) -> Trial:
    """Return the trial of a scheme on a graph."""
    whose = "every-seed" if seed is None else f"seed{seed}"
    return Trial(f"{whose}/{graph.label}/{scheme}", task, needs)


def training_name(policy: str) -> str:
    """Return the name of the trial that trains a policy."""
    return f"training/{policy}"


def measuring_name(problem: str) -> str:
    """Return the name of the trial that measures the ops of a problem, and leaves its file."""
    return f"measuring/{problem}"
