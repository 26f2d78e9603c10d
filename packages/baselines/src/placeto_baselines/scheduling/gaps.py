"""When a device is free."""

from bisect import bisect_right


class Gaps:
    """The times in which nothing has been scheduled on a device, in their order.

    Examples
    --------
    >>> gaps = Gaps()
    >>> gaps.take(0.0, 2.0)
    >>> gaps.take(5.0, 6.0)
    >>> gaps.first(1.0, 3.0), gaps.first(1.0, 4.0), gaps.first(3.0, 1.0)
    (2.0, 6.0, 3.0)
    """

    def __init__(self) -> None:
        self._starts = [0.0]
        self._ends = [float("inf")]

    def first(self, earliest: float, seconds: float) -> float:
        """Return when so many seconds first are free, no earlier than asked."""
        gap = bisect_right(self._ends, earliest)
        while True:
            start = max(earliest, self._starts[gap])
            if start + seconds <= self._ends[gap]:
                return start
            gap += 1

    def take(self, start: float, end: float) -> None:
        """Let something run from a time in a gap to another one in it."""
        if end <= start:
            return
        gap = bisect_right(self._starts, start) - 1
        parts = ((self._starts[gap], start), (end, self._ends[gap]))
        left = [(begin, until) for begin, until in parts if begin < until]
        self._starts[gap : gap + 1] = [begin for begin, _ in left]
        self._ends[gap : gap + 1] = [until for _, until in left]
