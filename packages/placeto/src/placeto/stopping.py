"""Ctrl-C as a wish to stop at the next good moment."""

import os
import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PARENT_VARIABLE = "PLACETO_PARENT"  # the process that started this one as a worker


class StopRequest:
    """Notes the first Ctrl-C or termination; the second ends the process at once.

    A worker whose parent is gone stops, too.
    """

    def __init__(self) -> None:
        self._requested = False
        self._before: dict[signal.Signals, Any] = {}
        self._parent = os.environ.get(PARENT_VARIABLE)

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        orphaned = self._parent is not None and self._parent != str(os.getppid())
        return self._requested or orphaned

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
