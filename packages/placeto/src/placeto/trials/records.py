"""Records of finished trials: the lines of ``trials.jsonl``, which name their type."""

import math

import msgspec

Curve = list[tuple[int, float | None]]


def finite(seconds: float) -> float | None:
    """Return seconds as files have them: None for infinity."""
    return seconds if math.isfinite(seconds) else None


class Labelled(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower):
    """What every record says.

    Attributes
    ----------
    scheme : text
        What was done: a scheme, or the name of a trained policy.
    graph : text
        The label of the graph that was placed; empty if there is not one.
    seed : int or None
        None for what no seed changes.
    """

    scheme: str
    graph: str
    seed: int | None


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a problem before any scheme has placed it, in SI units."""

    source: str
    cluster: str
    devices: list[str]
    gpus: int
    ops: int
    groups: int
    lower_bound: float


class Described(Labelled, frozen=True, kw_only=True):
    """A problem that schemes will place."""

    case: CaseReport


class Failed(Labelled, frozen=True, kw_only=True):
    """A scheme that could not place a problem."""

    error: str


class Outcome(Labelled, frozen=True, kw_only=True):
    """What a scheme, or a bound, came to.

    Attributes
    ----------
    runtime, cost : float or None
        Seconds of the step, and with the penalty for memory; None for infinity.
    fits : bool
        Whether the memory suffices.
    evaluations : int
        How many placements were sampled.
    seconds : float
        How long placing took.
    """

    runtime: float | None
    cost: float | None
    fits: bool
    evaluations: int
    seconds: float


class Drawn(Outcome, frozen=True, kw_only=True):
    """The means of random placements."""

    standard_deviation: float


class Placed(Outcome, frozen=True, kw_only=True):
    """What one run of a scheme came to.

    Attributes
    ----------
    peak_memory : ints
        Bytes of each device.
    evaluations_to_best : int
        How many placements were sampled until it was within 1 % of its own best.
    curve : rows of (int, float or None)
        Placements sampled so far, and the best runtime so far in seconds.
    placement : ints
        The device of each group.
    """

    peak_memory: list[int]
    evaluations_to_best: int
    curve: Curve
    placement: list[int]


class Episode(Labelled, frozen=True, kw_only=True):
    """The costs in seconds along the steps of an episode, and of its end."""

    cost: float
    steps: list[float]


class Trained(Labelled, frozen=True, kw_only=True):
    """How a training went: rows of (update, placements so far, mean runtime, best runtime)."""

    evaluations: int
    seconds: float
    updates: list[tuple[int, int, float, float]] = []


class Learned(Labelled, frozen=True, kw_only=True):
    """What a policy learned: the best it saw, its placement and one device measured, in seconds.

    ``episodes`` are the updates, and what the placements took that the episodes of each ended with.
    """

    runtime: float
    measured: float
    single: float
    evaluations: int
    learning_seconds: float
    episodes: list[tuple[int, float]]


class Profiled(Labelled, frozen=True, kw_only=True):
    """A problem whose ops were measured on this machine, and how long that took in seconds."""

    ops: int
    seconds: float


class MeasuredPlacement(msgspec.Struct, frozen=True):
    """What a step takes with one placement, in seconds.

    Attributes
    ----------
    placement : text
        What it is called.
    simulated, slowed, own_times : float
        Simulated, also with ops that slow each other down, or that take what they took.
    free, free_spread, paced : float
        Measured, by which part runs differ, and measured with ops that only wait.
    """

    placement: str
    simulated: float
    free: float
    free_spread: float
    slowed: float
    own_times: float
    paced: float


class Measured(Labelled, frozen=True, kw_only=True):
    """What the placements of a problem take on workers; ``op_seconds`` is the sum of its ops."""

    ops: int
    op_seconds: float
    rows: list[MeasuredPlacement]


Record = (
    Described
    | Failed
    | Outcome
    | Drawn
    | Placed
    | Episode
    | Trained
    | Learned
    | Profiled
    | Measured
)
