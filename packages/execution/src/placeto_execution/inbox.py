"""What other workers tell a worker, and how it waits for that."""

import heapq
import threading
from dataclasses import dataclass
from typing import NamedTuple

from placeto_execution.clock import Clock
from placeto_execution.links import Transfer


@dataclass(slots=True)
class DoneOp:
    """An op for which others wait.

    Attributes
    ----------
    op : int
        The op.
    end : float
        When it is done; seconds.
    """

    op: int
    end: float


class Message(NamedTuple):
    """From when on a transfer or an op is done.

    Attributes
    ----------
    time : float
        Seconds.
    number : int
        Messages of one time are read in the order of their numbers.
    news : `Transfer` or `DoneOp`
        The source of a transfer reads that it has been sent, its destination that it has arrived.
    """

    time: float
    number: int
    news: Transfer | DoneOp


class Inbox:
    """The messages of a worker. Anybody may put one in; the worker alone takes them out.

    Parameters
    ----------
    clock
        Says when a message may be read.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: list[Message] = []  # a heap
        self._num_messages = 0
        self._condition = threading.Condition(threading.Lock())
        self._is_closed = False

    def put(self, news: Transfer | DoneOp) -> None:
        """Leave a message that a transfer or an op is done at its end."""
        with self._condition:
            heapq.heappush(self._messages, Message(news.end, self._num_messages, news))
            self._num_messages += 1
            self._condition.notify()

    def take(self, before: float) -> Transfer | DoneOp | None:
        """Return the news of the first message, if it is of a time before this one."""
        if not self._messages:
            return None
        with self._condition:
            if self._messages[0].time >= before:
                return None
            return heapq.heappop(self._messages).news

    def wait(self) -> None:
        """Wait until the first message may be read, or there is nothing to wait for any more."""
        with self._condition:
            while not self._is_closed:
                if not self._messages:
                    self._condition.wait()
                    continue
                seconds = self._clock.seconds_until(self._messages[0].time)
                if seconds <= 0:
                    return
                self._condition.wait(seconds)

    def close(self) -> None:
        """Let the worker wait no longer."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
