"""Display of long work: a moving line on a terminal, or lines now and then."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from placeto.errors import printable
from placeto.progress import PlainProgress, Progress
from placeto.texts import TextTable
from placeto_tools.tables import rich_table

SECONDS_UNTIL_FIRST_LINE = 2.0


class LiveProgress:
    """Shows on a terminal how far the work is."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._above: list[RenderableType] = []

    def say(self, text: str) -> None:
        """Show one line that stays."""
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, text: str) -> None:
        """Show how far the work is now."""
        line = Text(text, no_wrap=True, overflow="ellipsis")
        self._live.update(Group(*self._above, line))

    def grow(self, table: TextTable, text: str) -> None:  # noqa: ARG002
        """Show a table with one more row above the moving line."""
        self._above = [Text(printable(table.title)), rich_table(table), ""]
        self.update("")


@contextmanager
def showing_progress(reads: str = "", *, quiet: bool = False) -> Iterator[Progress]:
    """Show progress on standard error while something runs, unless that is to be quiet.

    Where that is no terminal, a first line says after a while what takes so long. A source that
    the work ``reads`` first is named from the beginning.
    """
    text = f"{reads}: reading or capturing its graph ..." if reads else ""
    if not quiet and sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=5, transient=True) as live:
            shown = LiveProgress(live)
            if text:
                shown.update(text)
            yield shown
        return
    plain = PlainProgress(None if quiet else sys.stderr)
    plain.update(text)  # before the timer, which would miss it
    timer = threading.Timer(SECONDS_UNTIL_FIRST_LINE, plain.catch_up)
    timer.daemon = True
    timer.start()
    try:
        yield plain
    finally:
        timer.cancel()
