"""What carries tensors from one device to another."""

import threading
from dataclasses import dataclass
from typing import Any

from placeto_execution.queues import Queue


@dataclass(slots=True)
class Transfer:
    """A tensor on its way.

    Attributes
    ----------
    tensor, source, destination, link : int
        What goes from which device to which over which link.
    seconds, overhead : float
        How long it takes, and how long the link stays busy afterwards.
    parcel
        What `StepRun.send` has returned.
    start, end : float
        From when to when; seconds.
    """

    tensor: int
    source: int
    destination: int
    link: int
    seconds: float
    overhead: float
    parcel: Any
    start: float = 0.0
    end: float = 0.0


class EmulatedLink:
    """A link on which one transfer at a time is on its way, though nothing moves.

    It needs no thread: as soon as a transfer is next in its queue, it is known when it ends.

    Parameters
    ----------
    queue
        Says which transfer is next.

    Examples
    --------
    >>> from placeto_execution.queues import FirstInFirstOut
    >>> link = EmulatedLink(FirstInFirstOut())
    >>> for tensor in (0, 1):
    ...     transfer = Transfer(tensor, 0, 1, 0, seconds=2.0, overhead=0.5, parcel=None)
    ...     [(each.start, each.end) for each in link.offer(transfer, time=1.0)]
    [(1.0, 3.0)]
    [(3.5, 5.5)]
    """

    def __init__(self, queue: Queue[Transfer]) -> None:
        self._queue = queue
        self._free_at = 0.0
        self._lock = threading.Lock()

    def offer(self, transfer: Transfer, time: float) -> list[Transfer]:
        """Let a transfer queue from a time on; return those whose times are known now."""
        settled = []
        with self._lock:
            transfer.start = time
            self._queue.add(transfer)
            while (next_one := self._queue.pop()) is not None:
                next_one.start = max(next_one.start, self._free_at)
                next_one.end = next_one.start + next_one.seconds
                self._free_at = next_one.end + next_one.overhead
                settled.append(next_one)
        return settled
