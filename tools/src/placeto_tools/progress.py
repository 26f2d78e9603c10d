"""What a person sees while something takes long: a moving line, or lines now and then."""

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

SECONDS_BETWEEN_LINES = 10.0  # where the output is no terminal


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
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES:
            self._write(text)

    def clear(self) -> None:
        """Take the moving line away."""
        if self._live:
            self._live.update(Text(""))

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

    Examples
    --------
    >>> how_far(500, 2000, seconds=10.0)
    '500 of at most 2,000, 50/s, at most 0:30 left'
    """
    rate = done / seconds if seconds > 0 else 0.0
    speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    if total is None:
        return f"{done:,}, {speed}, {clock(seconds)}"
    left = clock((total - done) / rate) if rate and done <= total else "?"
    return f"{done:,} of at most {total:,}, {speed}, at most {left} left"


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
