"""Standard output: tables as rich draws them, and JSON."""

import sys
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from placeto.errors import printable
from placeto.json_files import json_text
from placeto.texts import TextTable

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


def show_json(report: Any) -> None:
    """Print a report as JSON on standard output."""
    click.echo(json_text(report))


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
