"""Trials, and experiments, which are made of them: each trial can run on its own, in any process.

Begin to read here; then `keys` (what makes two trials equal), `folder` (files of an experiment) and
`running` (several trials at once, up to the page).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto.outputs import Picture
from placeto.placing.evaluators import EvaluatorSpec
from placeto.placing.placers import warm_up_evaluator
from placeto.texts import SECONDS, TextTable
from placeto_graphs import Evaluator, PlacementProblem, load_problem

LETTERS_OF_KEY = 16  # in the names of files
MOST_POINTS = 200  # of a curve in a file
NEAR_BEST = 0.01  # fraction of the best runtime within which a search has found it

Curve = list[tuple[int, float | None]]


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    pass


class Problem(_Record, frozen=True, kw_only=True):
    """A problem of a comparison, in SI units: named, then described, then with all runs."""

    stem: str  # of the names of its files
    source: str  # name of the model or graph
    cluster: str  # name of the devices
    step: str = ""  # unique name of the step without micro-batching
    micro_batches: int = 1
    evaluator: str = "latency"
    objective: str = "runtime"  # name of the cost
    unit: str = SECONDS
    devices: list[str] = []
    gpus: int = 0
    ops: int = 0
    groups: int = 0
    lower_bound: float = 0.0  # 0 if none is known
    least_excess: int = 0  # bytes that a device provably lacks with every placement
    placers: list["Runs"] = []

    @property
    def title(self) -> str:
        """Name of the problem in tables: its source and its devices."""
        return f"{self.source} on {self.cluster}"

    @property
    def has_cpu(self) -> bool:
        """True if one of its devices is a CPU; otherwise CPU only is placed on one of its own."""
        return self.gpus < len(self.devices)

    def find(self, name: str) -> "Runs":
        """Return the runs of one placer; none if it did not take part."""
        return next((placer for placer in self.placers if placer.name == name), Runs(name))


class Failed(_Record, frozen=True, kw_only=True):
    """The error of a placer on a problem."""

    error: str


class Outcome(_Record, frozen=True, kw_only=True):
    """Result of a placer, or a lower bound."""

    # Seconds of the step, and with the penalty for memory; None for infinity
    runtime: float | None
    cost: float | None
    fits: bool  # True if it fits the memory
    evaluations: int  # number of evaluations
    seconds: float  # CPU seconds of placing


class Placed(Outcome, frozen=True, kw_only=True):
    """Result of one run of a placer."""

    peak_memory: list[int]  # bytes of each device
    # Number of evaluations until it was within 1 % of its own best
    evaluations_to_best: int
    curve: Curve  # rows of evaluations and the best runtime so far in seconds
    placement: list[int]  # the device of each group


class Runs(msgspec.Struct, frozen=True):
    """Runs of a placer on a problem, and the error of one that failed."""

    name: str
    title: str = ""
    runs: list[Placed] = []
    error: str | None = None
    failed: int = 0  # number of runs that did not succeed
    seeds: int = 1  # number of runs when all are done
    searches: bool = False  # whether it ends with its budget alone
    below: int | None = None  # its budget, if it trains with less than the paper's

    @property
    def best(self) -> Placed | None:
        """The best run; of those that do not fit the memory, the one that costs least."""
        ranks = [(not run.fits, inf if run.cost is None else run.cost) for run in self.runs]
        return self.runs[ranks.index(min(ranks))] if ranks else None


class Episode(_Record, frozen=True, kw_only=True):
    """The costs in seconds along the steps of an episode, and of its end."""

    cost: float
    steps: list[float]


class Trained(_Record, frozen=True, kw_only=True):
    """A training, and the mean runtime of the episodes of each update in seconds."""

    evaluations: int
    seconds: float
    runtimes: list[float] = []


Record = Problem | Failed | Outcome | Placed | Episode | Trained
Kind = TypeVar("Kind", bound=Record)


def finite(seconds: float) -> float | None:
    """Return seconds as files have them: None for infinity."""
    return seconds if isfinite(seconds) else None


def short_curve(curve: NDArray[np.float64]) -> Curve:
    """Return at most 200 points of a curve at which the best changed, and its last one."""
    if not len(curve):
        return []
    changes = np.flatnonzero(curve[1:, 1] != curve[:-1, 1]) + 1
    points = np.union1d(changes, [0, len(curve) - 1])
    even = np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).round().astype(int)
    return [(int(count), finite(best)) for count, best in curve[points[even]].tolist()]


def evaluations_until(curve: Curve | NDArray[np.float64], runtime: float) -> float:
    """Return the evaluations until a search was as fast, infinity if it never was.

    It has to stay as fast: a curve rises where a slower placement that fits the memory replaces one
    that does not.
    """
    found = inf
    for evaluations, best in reversed(curve):
        if best is None or not best <= runtime:  # nor is it as fast as what is not known
            break
        found = float(evaluations)
    return found


def evaluations_to_best(curve: NDArray[np.float64]) -> int:
    """Return the evaluations until a search was within 1 % of its best."""
    if not len(curve):
        return 0
    last = curve[-1, 1]
    with np.errstate(invalid="ignore"):  # infinity is near infinity
        far = np.abs(curve[:, 1] - last) > NEAR_BEST * last
    row = int(np.flatnonzero(far).max(initial=-1)) + 1
    return int(curve[min(row, len(curve) - 1), 0])


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
_held: dict[tuple[Path, str], tuple[PlacementProblem, dict[str, Evaluator]]] = {}


@dataclass(frozen=True)
class Workspace:
    """Folder of the problems and trained policies of trials."""

    path: Path  # folder of the experiment
    # Keys of trials by their names. The files that a trial leaves for others have its key in their
    # names, so that none takes what a trial with other settings left.
    keys: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)  # of problems

    def hold(self, name: str, problem: PlacementProblem) -> None:
        """Keep a problem that was made in this process."""
        _held[self.problem_file(name), self.digests[name]] = problem, {}

    def problem(self, graph: Graph) -> PlacementProblem:
        """Return a problem, which a process loads once."""
        path = self.problem_file(graph.name)
        digest = self.digests.get(graph.name)
        if digest is None:  # its file may change
            return load_problem(path)
        if (path, digest) not in _held:
            _held[path, digest] = load_problem(path), {}
        return _held[path, digest][0]

    def priced(self, problem: PlacementProblem, spec: EvaluatorSpec) -> Evaluator:
        """Return an evaluator with one thread, compiled; one a process for what `problem` gave."""
        known = [own for held, own in _held.values() if held is problem and not spec.modules]
        own = known[0] if known else {}  # one of a user may count
        if spec.name not in own:
            own[spec.name] = spec.make(problem, 1)
            warm_up_evaluator(own[spec.name])
        return own[spec.name]

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

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Run the task, and return its record."""
        ...


@dataclass(frozen=True)
class Trial:
    """One part of an experiment."""

    name: str  # name that no other trial of the experiment has
    task: Task
    needs: tuple[str, ...] = ()  # names of the trials that must be done before
    may_fail: bool = False  # True if an error of it is none of the experiment
    is_long: bool = False  # True if it is begun before others, where several run at once
    title: str = ""  # shown, if not its name
    placer: str = ""  # its placer and graph, if it places one
    graph: str = ""

    @property
    def label(self) -> str:
        """What is shown of it."""
        return self.title or self.name


def placing(task: Task, placer: str, graph: Graph, seed: int | None, *needs: str) -> Trial:
    """Return the trial of a placer on a graph; the seed is None where none changes it."""
    name = _placing_name(placer, graph.label, seed)
    return Trial(name, task, needs, placer=placer, graph=graph.label)


def _placing_name(placer: str, graph: str, seed: int | None) -> str:
    return f"{'every-seed' if seed is None else f'seed{seed}'}/{graph}/{placer}"


def training_name(policy: str) -> str:
    """Return the name of the trial that trains a policy."""
    return f"training/{policy}"


@dataclass(frozen=True)
class Results:
    """Records of the trials of an experiment that are finished, by their names."""

    records: Mapping[str, Record]

    def find(self, placer: str, graph: str, seed: int) -> Record | None:
        """Return the record of a placer on a graph with a seed, or that of all seeds."""
        own = self.records.get(_placing_name(placer, graph, seed))
        return own or self.records.get(_placing_name(placer, graph, None))

    def record(self, kind: type[Kind], placer: str, graph: str, seed: int) -> Kind:
        """Return the same record of a type; raise `KeyError` if there is none."""
        found = self.find(placer, graph, seed)
        if not isinstance(found, kind):
            raise KeyError(kind, placer, graph, seed)
        return found

    def trained(self, policy: str) -> Trained:
        """Return the record of the training of a policy."""
        found = self.records[training_name(policy)]
        assert isinstance(found, Trained), policy  # noqa: S101 (of a trial that trains)
        return found


@dataclass(frozen=True)
class Page:
    """Page of an experiment."""

    parts: Sequence[str]  # paragraphs and tables, as Markdown
    # Pictures by the names of their files, to which the parts link
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
    # before the end; then ``page`` takes a part of the records, too
    news: Callable[[Results, Trial], tuple[TextTable, str]] | None = None
    # Command that repeats it, for the first line of the page; empty for none
    command: str = ""
