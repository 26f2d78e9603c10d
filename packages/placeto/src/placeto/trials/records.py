"""Records of finished trials: the lines of ``trials.jsonl``, which name their type."""

import math

import msgspec

from placeto.texts import SECONDS

Curve = list[tuple[int, float | None]]


def finite(seconds: float) -> float | None:
    """Return seconds as files have them: None for infinity."""
    return seconds if math.isfinite(seconds) else None


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a problem before any placer has placed it, in SI units."""

    source: str
    cluster: str
    devices: list[str]
    gpus: int
    ops: int
    groups: int
    lower_bound: float  # 0 where none is known
    least_excess: int = 0  # bytes that a device lacks with every placement, as far as is proven
    objective: str = "runtime"  # what is priced, and in what
    unit: str = SECONDS


class Described(CaseReport, frozen=True, kw_only=True, tag=str.lower):
    """A problem that placers will place."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    pass


class Failed(_Record, frozen=True, kw_only=True):
    """A placer that could not place a problem."""

    error: str


class Outcome(_Record, frozen=True, kw_only=True):
    """What a placer, or a bound, came to."""

    # Seconds of the step, and with the penalty for memory; None for infinity
    runtime: float | None
    cost: float | None
    fits: bool  # whether the memory suffices
    evaluations: int  # how many placements were sampled
    seconds: float  # CPU seconds of placing


class Placed(Outcome, frozen=True, kw_only=True):
    """What one run of a placer came to."""

    peak_memory: list[int]  # bytes of each device
    # How many placements were sampled until it was within 1 % of its own best
    evaluations_to_best: int
    curve: Curve  # placements sampled so far, and the best runtime so far in seconds
    placement: list[int]  # the device of each group


class Episode(_Record, frozen=True, kw_only=True):
    """The costs in seconds along the steps of an episode, and of its end."""

    cost: float
    steps: list[float]


class Trained(_Record, frozen=True, kw_only=True):
    """How a training went: rows of (update, placements so far, mean runtime, best runtime)."""

    evaluations: int
    seconds: float
    updates: list[tuple[int, int, float, float]] = []


class Learned(_Record, frozen=True, kw_only=True):
    """What a policy learned: the best it saw, its placement and one device measured, in seconds.

    ``episodes`` are the updates, and what the placements took that the episodes of each ended with.
    """

    runtime: float
    measured: float
    single: float
    evaluations: int
    learning_seconds: float
    episodes: list[tuple[int, float]]


class Profiled(_Record, frozen=True, kw_only=True):
    """A problem whose ops were measured on this machine, and how long that took in seconds."""

    ops: int
    seconds: float


class MeasuredPlacement(msgspec.Struct, frozen=True):
    """What a step takes with one placement, in seconds."""

    placement: str  # what it is called
    # Simulated, also with ops that slow each other down, if that was measured, or that take what
    # they took
    simulated: float
    slowed: float | None
    own_times: float
    measured: float


class Measured(_Record, frozen=True, kw_only=True):
    """What placements of a problem take; ``op_seconds`` of all ops on the first device."""

    ops: int
    op_seconds: float
    rows: list[MeasuredPlacement]


Record = Described | Failed | Outcome | Placed | Episode | Trained | Learned | Profiled | Measured
