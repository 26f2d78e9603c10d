"""Records of finished trials: the lines of ``trials.jsonl``, which name their type."""

import math

import msgspec

from placeto.texts import SECONDS

Curve = list[tuple[int, float | None]]


def finite(seconds: float) -> float | None:
    """Return seconds as files have them: None for infinity."""
    return seconds if math.isfinite(seconds) else None


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a problem before it is placed, in SI units."""

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


class Described(CaseReport, frozen=True, kw_only=True, tag=str.lower):
    """A described problem."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    pass


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


Record = Described | Failed | Outcome | Placed | Episode | Trained | Profiled | Measured
