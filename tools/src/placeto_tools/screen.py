"""What a terminal shows: tables as rich draws them, JSON, and how far long work is."""

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from placeto.errors import printable
from placeto.outputs import json_text
from placeto.progress import PlainProgress, Progress
from placeto.texts import TextTable, bytes_text, flops_text, seconds_text, share_text

WIDE = 1000  # columns: what is no terminal gets no line broken
SECONDS_UNTIL_FIRST_LINE = 2.0


def show(*tables: TextTable) -> None:
    """Print tables on standard output."""
    terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if terminal else WIDE,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=None if terminal else False,
    )
    for index, table in enumerate(tables):
        if index:
            click.echo()
        if table.title:
            click.echo(printable(table.title))
        console.print(rich_table(table))
        for remark in table.remarks:
            click.echo(printable(remark))


def show_report(report: Any, *contents: TextTable | str, as_json: bool) -> None:
    """Print a report as JSON, or what it says in tables and lines."""
    if as_json:
        show_json(report)
        return
    show(*(table for table in contents if isinstance(table, TextTable)))
    for line in contents:
        if isinstance(line, str) and line:
            click.echo(line)


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """Give a list that has the texts of warnings afterwards, when they are shown as usual."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        yield messages
    for warning in caught:
        messages.append(str(warning.message))
        warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)


def show_json(report: Any) -> None:
    """Print a report as JSON on standard output."""
    click.echo(json_text(report))


def table_of(title: str, rows: Iterable[Mapping[str, Any]], columns: str) -> TextTable:
    """Return a table of rows of a report, with columns such as ``device | >in use: busy``.

    A column has a head and, if that is another one, the key of its values.
    """
    pairs = [cell.strip().rpartition(": ") for cell in columns.split("|")]
    heads = [head if colon else key for head, colon, key in pairs]
    keys = [key.removeprefix(">") for _, _, key in pairs]
    return TextTable(title, heads, [[_text(key, row[key]) for key in keys] for row in rows])


def _text(key: str, value: Any) -> str:
    """Return the text of a value of a report, whose unit its key says."""
    if isinstance(value, str):
        return value
    if "bytes" in key or "memory" in key:
        return bytes_text(value)
    if key.endswith(("busy", "spread")):
        return share_text(value)
    if key == "flops":
        return flops_text(value)
    return f"{value:,}" if isinstance(value, Integral) else seconds_text(value)


def rich_table(table: TextTable) -> Table:
    """Return a table as rich draws it."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in table.columns:
        result.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left"
        )
    for row in table.rows:
        result.add_row(*(printable(cell) for cell in row))
    return result


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
    """Show progress on standard error; first that a source is read, if the work ``reads`` one."""
    text = f"{reads}: reading or capturing its graph ..." if reads else ""
    if not quiet and sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=5, transient=True) as live:
            progress = LiveProgress(live)
            if text:
                progress.update(text)
            yield progress
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
