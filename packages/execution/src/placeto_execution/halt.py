"""How all workers of a run are stopped."""

import threading
from collections.abc import Sequence

from placeto_execution.inbox import Inbox


class Halt:
    """Stops the workers of a run, each after the op that it is running.

    Parameters
    ----------
    inboxes
        Those of all workers.

    Attributes
    ----------
    error : BaseException or None
        What was the first to go wrong.
    """

    def __init__(self, inboxes: Sequence[Inbox]) -> None:
        self.error: BaseException | None = None
        self._inboxes = inboxes
        self._lock = threading.Lock()
        self._event = threading.Event()

    @property
    def is_called(self) -> bool:
        """Whether the workers are to stop."""
        return self._event.is_set()

    def call(self, error: BaseException | None = None) -> None:
        """Stop all workers; of several errors the first one counts."""
        with self._lock:
            if self.error is None:
                self.error = error
        self._event.set()
        for inbox in self._inboxes:
            inbox.close()

    def sleep(self, seconds: float) -> None:
        """Sleep, unless the workers are stopped."""
        self._event.wait(seconds)
