"""Records of finished trials: the lines of ``trials.jsonl``, which name their type."""

import math
from collections.abc import Sequence

import msgspec

from placeto.texts import SECONDS

Curve = list[tuple[int, float | None]]


def finite(seconds: float) -> float | None:
    """Return seconds as files have them: None for infinity."""
    return seconds if math.isfinite(seconds) else None


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    pass


class Problem(_Record, frozen=True, kw_only=True):
    """A problem before it is placed, in SI units, and in a comparison the runs of all placers."""

    source: str
    cluster: str
    devices: list[str]
    gpus: int
    ops: int
    groups: int
    lower_bound: float  # 0 if none is known
    least_excess: int = 0  # bytes that a device provably lacks with every placement
    evaluator: str = "latency"
    objective: str = "runtime"  # name of the cost
    unit: str = SECONDS
    placers: list["Runs"] = []

    @property
    def title(self) -> str:
        """Name of the problem in tables: its source and its devices."""
        return f"{self.source} on {self.cluster}"

    def find(self, name: str) -> "Runs":
        """Return the runs of one placer; none if it did not take part."""
        return find_runs(name, self.placers)


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


def find_runs(name: str, placers: Sequence[Runs]) -> Runs:
    """Return the runs of one of some placers; none if it is not one of them."""
    return next((placer for placer in placers if placer.name == name), Runs(name))


class Episode(_Record, frozen=True, kw_only=True):
    """The costs in seconds along the steps of an episode, and of its end."""

    cost: float
    steps: list[float]


class Trained(_Record, frozen=True, kw_only=True):
    """A training: rows of (update, evaluations so far, mean runtime, best runtime)."""

    evaluations: int
    seconds: float
    updates: list[tuple[int, int, float, float]] = []


class Profiled(_Record, frozen=True, kw_only=True):
    """A problem whose ops were measured on this machine, and the seconds of measuring."""

    ops: int
    seconds: float


class MeasuredPlacement(msgspec.Struct, frozen=True):
    """Seconds of a step with one placement."""

    placement: str  # its name
    # Simulated: as it is, with measured slowdown of concurrent ops, and with op times of these runs
    simulated: float
    slowed: float | None
    own_times: float
    measured: float


class Measured(_Record, frozen=True, kw_only=True):
    """Steps of a problem; ``op_seconds`` are of all ops on the first device."""

    ops: int
    op_seconds: float
    rows: list[MeasuredPlacement]


Record = Problem | Failed | Outcome | Placed | Episode | Trained | Profiled | Measured
