"""The time of a run."""

import time


class Clock:
    """Seconds since a run began, in the problem's seconds.

    Parameters
    ----------
    pace
        How many seconds of the world are one second of the problem.

    Examples
    --------
    >>> clock = Clock(pace=2.0)
    >>> clock.start()
    >>> 0 <= clock.now() < clock.seconds_until(60.0)
    True
    """

    def __init__(self, pace: float = 1.0) -> None:
        self._pace = pace
        self._origin = 0.0

    def start(self) -> None:
        """Let it be 0 now."""
        self._origin = time.perf_counter()

    def now(self) -> float:
        """Return the time."""
        return (time.perf_counter() - self._origin) / self._pace

    def seconds_until(self, moment: float) -> float:
        """Return the seconds of the world until a time; negative if it has passed."""
        return self._origin + moment * self._pace - time.perf_counter()
