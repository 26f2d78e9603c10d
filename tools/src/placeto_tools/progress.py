"""What a person sees while something takes long: a moving line, or lines now and then."""

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from placeto_tools.errors import printable
from placeto_tools.tables import TextTable, rich_table

SECONDS_BETWEEN_LINES = 10.0  # where the output is no terminal
# How long others take says something when so much is done, or so long has passed.
SHARE_THAT_TELLS, SECONDS_THAT_TELL = 0.05, 10.0


class Shows(Protocol):
    """What can show how far the work is."""

    def update(self, text: str) -> None:
        """Show it."""
        ...


class Progress:
    """Shows on standard error how far the work is.

    Parameters
    ----------
    live
        A line of a terminal that is written anew each time; None for lines now and then.
    stream
        Where lines go otherwise.
    """

    def __init__(self, live: Live | None, stream: TextIO) -> None:
        self._live = live
        self._stream = stream
        self._above: list[RenderableType] = []
        self._shown = time.monotonic()  # a short command shows nothing

    def say(self, text: str) -> None:
        """Show one line that stays."""
        if self._live:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._write(text)

    def update(self, text: str) -> None:
        """Show how far the work is now."""
        if self._live:
            line = Text(text, no_wrap=True, overflow="ellipsis")
            self._live.update(Group(*self._above, line))
        elif time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES:
            self._write(text)

    def grow(self, table: TextTable, text: str) -> None:
        """Show a table with one more row above the moving line, or a line for the row."""
        if self._live:
            self._above = [Text(printable(table.title)), rich_table(table), ""]
            self.update("")
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        self._shown = time.monotonic()
        self._stream.write(text + "\n")
        self._stream.flush()


@contextmanager
def showing_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Show progress on standard error while something runs, unless that is to be quiet."""
    if quiet or not sys.stderr.isatty():
        yield Progress(None, io.StringIO() if quiet else sys.stderr)
        return
    with Live(console=Console(stderr=True), refresh_per_second=5, transient=True) as live:
        yield Progress(live, sys.stderr)


def how_far(done: int, total: int | None, seconds: float) -> str:
    """Return how many of at most how many are done, how fast, and how long the others take.

    How long is left out where little is done yet.

    Examples
    --------
    >>> how_far(500, 2000, seconds=10.0), how_far(1, 2000, seconds=0.5)
    ('500 of at most 2,000, 50/s, at most 0:30 left', '1 of at most 2,000, 2/s')
    """
    rate = done / seconds if seconds > 0 else 0.0
    speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    if total is None:
        return f"{done:,}, {speed}, {clock(seconds)}"
    left = left_text(done, total, seconds).replace(", ", ", at most ")
    return f"{done:,} of at most {total:,}, {speed}{left}"


def left_text(done: int, total: int, seconds: float) -> str:
    """Return how long the others take, after a comma; nothing where little is done yet.

    Examples
    --------
    >>> left_text(5, 100, seconds=2.0), left_text(1, 100, seconds=10.0), left_text(1, 100, 2.0)
    (', 0:38 left', ', 16:30 left', '')
    """
    tells = done >= SHARE_THAT_TELLS * total or seconds >= SECONDS_THAT_TELL
    if not tells or not 0 < done <= total or seconds <= 0:
        return ""
    return f", {clock(seconds / done * (total - done))} left"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours.

    Examples
    --------
    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
