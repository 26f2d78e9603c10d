"""Records that trials leave: described problems, results of placers, trainings; and curves."""

from math import inf, isfinite
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto.texts import SECONDS

MOST_POINTS = 200  # of a curve in a file
NEAR_BEST = 0.01  # fraction of the best runtime within which a search has found it

Curve = list[tuple[int, float | None]]


class _TrialRecord(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    pass


class Problem(_TrialRecord, frozen=True, kw_only=True):
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


class Failed(_TrialRecord, frozen=True, kw_only=True):
    """The error of a placer on a problem."""

    error: str


class Outcome(_TrialRecord, frozen=True, kw_only=True):
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


class Episode(_TrialRecord, frozen=True, kw_only=True):
    """The costs in seconds along the steps of an episode, and of its end."""

    cost: float
    steps: list[float]


class Trained(_TrialRecord, frozen=True, kw_only=True):
    """A training, and numbers of each of its updates; none of an RNN."""

    evaluations: int
    seconds: float
    runtimes: list[float] = []  # means over the episodes, seconds
    entropies: list[float] = []  # means over the steps, nats


TrialRecord = Problem | Failed | Outcome | Placed | Episode | Trained
RecordType = TypeVar("RecordType", bound=TrialRecord)


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


def evaluations_until(run: Placed, runtime: float) -> float:
    """Return the evaluations until a search was as fast, infinity if it never was.

    It has to stay as fast: a curve rises where a slower placement that fits the memory replaces one
    that does not. What does not fit at its end never was: its curve has another penalty.
    """
    first = inf
    for evaluations, best in reversed(run.curve) if run.fits else ():
        if best is None or not best <= runtime:  # nor is it as fast as what is not known
            break
        first = float(evaluations)
    return first


def evaluations_to_best(curve: NDArray[np.float64]) -> int:
    """Return the evaluations until a search was within 1 % of its best."""
    if not len(curve):
        return 0
    last = curve[-1, 1]
    with np.errstate(invalid="ignore"):  # infinity is near infinity
        far = np.abs(curve[:, 1] - last) > NEAR_BEST * last
    row = int(np.flatnonzero(far).max(initial=-1)) + 1
    return int(curve[min(row, len(curve) - 1), 0])
