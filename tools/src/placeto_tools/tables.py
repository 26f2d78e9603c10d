"""Standard output: tables as rich draws them, and JSON."""

import sys
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from placeto.errors import printable
from placeto.outputs import json_text
from placeto.texts import TextTable, bytes_text, flops_text, seconds_text, share_text

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
