"""What experiments are made of: trials that can run on their own, in any process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from placeto.trials.records import Record
from placeto_graphs import PlacementProblem, load_problem

Kind = TypeVar("Kind", bound=Record)


class StoppedError(Exception):
    """A trial was asked to stop; it can be run again."""


@dataclass(frozen=True)
class Graph:
    """A problem of the experiment, which its folder holds.

    Attributes
    ----------
    name : text
        Of the problem.
    order : int or None
        The number of the random order in which its groups are visited; None for the usual one.
    """

    name: str
    order: int | None = None

    @property
    def label(self) -> str:
        """What it is called in records."""
        return self.name if self.order is None else f"{self.name}-order-{self.order}"


@dataclass(frozen=True)
class Workspace:
    """Where a trial finds problems and trained policies, and leaves its own.

    Attributes
    ----------
    path : path
        The folder of the experiment.
    """

    path: Path

    def problem(self, graph: Graph) -> PlacementProblem:
        """Return a problem, read anew: what is computed of it counts for who computes it."""
        return load_problem(self.problem_file(graph.name))

    def problem_file(self, name: str) -> Path:
        """Return the file of a problem."""
        return self.path / "problems" / f"{name}.json.gz"

    def policy_file(self, name: str) -> Path:
        """Return the file of a policy."""
        return self.path / "policies" / f"{name}.safetensors"

    def placement_file(self, name: str, scheme: str) -> Path:
        """Return the file of the best placement that a scheme has found for a problem."""
        return self.path / "placements" / name / f"{scheme}.json"

    def log_file(self, name: str) -> Path:
        """Return the file with a line for each update of a training."""
        return self.path / "policies" / f"{name}.jsonl"


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
    """What a trial does: a frozen dataclass, so that it can go to another process."""

    @property
    def kind(self) -> str:
        """What takes about as long as others of this kind."""
        ...

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Do it, and return its numbers."""
        ...


@dataclass(frozen=True)
class Trial:
    """One part of an experiment; what it comes to depends on itself and what it needs only.

    Attributes
    ----------
    key : text
        Unique in the experiment.
    task : `Task`
        What is done.
    needs : keys of trials
        Which must be done before.
    """

    key: str
    task: Task
    needs: tuple[str, ...] = ()


class Results:
    """What all trials came to.

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
