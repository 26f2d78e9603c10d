"""Ctrl-C as a request to stop at the next checkpoint, and a note that Ctrl-C came."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Notes the first Ctrl-C or termination; the second ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class InterruptNote:
    """Notes Ctrl-C, which still ends what runs: a search that keeps its best does not tell it.

    Only the main thread gets Ctrl-C; on another one nothing is noted.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: Any = None

    def __enter__(self) -> "InterruptNote":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.noted = True
        raise KeyboardInterrupt
