"""Progress of long work: displays for it, its texts, and Ctrl-C that stops it."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Protocol, TextIO

from placeto.texts import TextTable

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_BETWEEN_LINES = 10.0  # where the output is no terminal
# How long others take says something when so much is done, or so long has passed.
SHARE_THAT_TELLS, SECONDS_THAT_TELL = 0.05, 10.0


class Progress(Protocol):
    """A display of one moving line, and of lines and tables that stay."""

    def update(self, text: str) -> None:
        """Show how far the work is now."""
        ...

    def say(self, text: str) -> None:
        """Show one line that stays."""
        ...

    def grow(self, table: TextTable, text: str) -> None:
        """Show a table with one more row, or a line for the row."""
        ...


class PlainProgress:
    """Writes a line now and then, or to a terminal one line that is written anew each time."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._last_shown = time.monotonic()  # short work shows nothing
        self._pending = ""  # text of the last update that was not shown

    def say(self, text: str) -> None:
        """Show one line that stays."""
        self._pending = ""
        if self._stream:
            self._last_shown = time.monotonic()
            self._stream.write(text + "\n")
            self._stream.flush()

    def update(self, text: str) -> None:
        """Show how far the work is now."""
        self._pending = text
        if time.monotonic() - self._last_shown >= SECONDS_BETWEEN_LINES:
            self.say(text)

    def catch_up(self) -> None:
        """Show the text of the last update, if it was not shown."""
        if self._pending:
            self.say(self._pending)

    def grow(self, table: TextTable, text: str) -> None:  # noqa: ARG002
        """Show a line for the row."""
        self.say(text)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of child processes that have ended."""
    of_children = os.times()
    return time.process_time() + of_children.children_user + of_children.children_system


def progress_text(done: int, total: int | None, seconds: float) -> str:
    """Return a text with the number done, the rate, and the time left once that is known."""
    rate = done / seconds if seconds > 0 else 0.0
    speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    if total is None:
        return f"{done:,}, {speed}, {clock(seconds)}"
    time_left = time_left_text(done, total, seconds).replace(", ", ", at most ")
    return f"{done:,} of at most {total:,}, {speed}{time_left}"


def time_left_text(done: int, total: int, seconds: float) -> str:
    """Return the time that is left, after a comma; an empty text while little is done."""
    tells = done >= SHARE_THAT_TELLS * total or seconds >= SECONDS_THAT_TELL
    if not tells or not 0 < done <= total or seconds <= 0:
        return ""
    return f", {clock(seconds / done * (total - done))} left"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class StopRequest:
    """Notes Ctrl-C and termination in the main thread; the one numbered ``ends_at`` ends it."""

    def __init__(self, ends_at: int = 2, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self._remaining, self._signals = ends_at, signals
        self.requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._handlers = {signum: signal.signal(signum, self._note) for signum in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        self._remaining -= 1
        if self._remaining <= 0:
            raise KeyboardInterrupt
