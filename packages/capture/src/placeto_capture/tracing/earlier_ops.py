"""Whether one op of a graph comes before another one, while the graph is being made."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

LONGEST_SEARCH = 1_000  # ops that are looked at before the answer is no


class EarlierOps:
    """The ops that come before one by the edges of a graph; asked for from the last to the first.

    The earliest ops are looked at first: from a gradient op the way to what its forward op has read
    is short by what the forward op has kept. After some steps the answer is no, which is on the
    safe side: an edge more says what other edges say already.

    Parameters
    ----------
    before
        For each op those right before it.
    inputs
        The ops right before the one in question.
    """

    def __init__(self, before: Sequence[Iterable[int]], inputs: Iterable[int]) -> None:
        self._before = before
        self._seen = set(inputs)
        self._waiting: list[int] = []  # a heap of ops after the one that was asked for
        self._further = [-op for op in self._seen]  # a heap of ops before it, the last one first
        heapify(self._further)

    def has(self, op: int) -> bool:
        """Return whether an op is among them."""
        while self._further and -self._further[0] >= op:
            heappush(self._waiting, -heappop(self._further))
        for _ in range(LONGEST_SEARCH):
            if op in self._seen or not self._waiting:
                break
            for before in self._before[heappop(self._waiting)]:
                if before not in self._seen:
                    self._seen.add(before)
                    if before > op:
                        heappush(self._waiting, before)
                    else:
                        heappush(self._further, -before)
        return op in self._seen

    def add(self, op: int) -> None:
        """Add an op that was not among them."""
        self._seen.add(op)
        heappush(self._waiting, op)
