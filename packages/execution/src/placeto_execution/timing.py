"""When an op starts and ends: as fast as it can, or at a given pace."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from placeto_execution.clock import Clock
from placeto_execution.halt import Halt
from placeto_graphs import StepRun


class OpTimes(NamedTuple):
    """What is known of an op that ran.

    Attributes
    ----------
    start, end : float
        From when to when, by the clock; seconds.
    due : float
        When others get what it has made; seconds.
    num_bytes : int
        How much more its device holds.
    """

    start: float
    end: float
    due: float
    num_bytes: int


class Timing(Protocol):
    """Runs the ops of one device."""

    @property
    def free_at(self) -> float:
        """When the device is free for its next op; what happened before decides which one it is."""
        ...

    def run(self, op: int, ready: float) -> OpTimes:
        """Run an op that has been ready since a time; return when its result is handed on."""
        ...


class AsFastAsItCan:
    """Hands a result on when it is there.

    Parameters
    ----------
    step_run
        Runs the ops.
    clock
        Says how long they take.
    """

    def __init__(self, step_run: StepRun, clock: Clock) -> None:
        self._run = step_run.run
        self._now = clock.now

    @property
    def free_at(self) -> float:
        """Now."""
        return self._now()

    def run(self, op: int, ready: float) -> OpTimes:
        """Run an op; what it makes is handed on at once."""
        del ready
        start = self._now()
        num_bytes = self._run(op)
        end = self._now()
        return OpTimes(start, end, end, num_bytes)


class Paced:
    """Hands a result on after the time that its op is said to take, if that is longer.

    An op is due so long after the device was free and its inputs were due, not after the moment in
    which a thread woke up for it: that a thread wakes up late delays no more than it itself hands
    on. An op that takes longer than it is said to delays all that follow, by the clock.

    Parameters
    ----------
    step_run, clock
        As for `AsFastAsItCan`.
    halt
        Wakes up who sleeps.
    seconds : float of each op
        How long the ops take on the device.
    overhead
        For how many seconds the device stays busy after an op that takes any time.
    """

    def __init__(
        self,
        step_run: StepRun,
        clock: Clock,
        halt: Halt,
        seconds: Sequence[float],
        overhead: float,
    ) -> None:
        self._run = step_run.run
        self._clock = clock
        self._halt = halt
        self._seconds = seconds
        self._overhead = overhead
        self.free_at = 0.0

    def run(self, op: int, ready: float) -> OpTimes:
        """Run an op, and return when it is due."""
        due_start = max(ready, self.free_at)
        self._sleep_until(due_start)
        start = self._clock.now()
        num_bytes = self._run(op)
        due = due_start + self._seconds[op]
        self.free_at = due + (self._overhead if self._seconds[op] > 0 else 0.0)
        self._sleep_until(due)
        return OpTimes(start, self._clock.now(), due, num_bytes)

    def _sleep_until(self, moment: float) -> None:
        while (seconds := self._clock.seconds_until(moment)) > 0 and not self._halt.is_called:
            self._halt.sleep(seconds)  # which may end some microseconds early
