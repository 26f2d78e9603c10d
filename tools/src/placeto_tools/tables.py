"""Standard output: tables as rich draws them, and JSON."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from placeto.errors import printable
from placeto.outputs import json_text
from placeto.texts import TextTable

# The head of a column, the key of its values in rows of a report, and the text of a value.
Column = tuple[str, str, Callable[[Any], str]]
WIDE = 1000  # columns: what is no terminal gets no line broken


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
    for number, table in enumerate(tables):
        if number:
            click.echo()
        if table.title:
            click.echo(printable(table.title))
        console.print(rich_table(table))


def show_report(report: Any, *parts: TextTable | str, as_json: bool) -> None:
    """Print a report as JSON, or what it says in tables and lines."""
    if as_json:
        show_json(report)
        return
    show(*(part for part in parts if isinstance(part, TextTable)))
    for line in parts:
        if isinstance(line, str) and line:
            click.echo(line)


def show_json(report: Any) -> None:
    """Print a report as JSON on standard output."""
    click.echo(json_text(report))


def table_of(title: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> TextTable:
    """Return a table of rows of a report."""
    return TextTable(
        title,
        [head for head, _, _ in columns],
        [[text(row[key]) for _, key, text in columns] for row in rows],
    )


def number_text(count: int) -> str:
    """Return an integer with commas."""
    return f"{count:,}"


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
