"""Numbers of experiments as texts, and tables of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from placeto.texts import TextTable, seconds_text
from placeto.trials.comparison import NEVER, NOTHING

Row = TypeVar("Row")


def ratio_text(ratio: float) -> str:
    """Return a ratio of runtimes.

    Examples
    --------
    >>> ratio_text(1.04567)
    '1.046'
    """
    return f"{ratio:.3f}"


def percent_over(ratio: float) -> str:
    """Return the ratio of two runtimes as a percentage above or below 1.

    Examples
    --------
    >>> percent_over(1.0456), percent_over(0.98), percent_over(0.9999)
    ('+4.6 %', '-2.0 %', '+0.0 %')
    """
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # no negative zero


def duration_text(seconds: float) -> str:
    """Return a duration; infinity is never.

    Examples
    --------
    >>> duration_text(0.01234), duration_text(float("inf"))
    ('12.34 ms', 'never')
    """
    return NEVER if np.isinf(seconds) else seconds_text(seconds)


def count_text(count: float) -> str:
    """Return a number of evaluations or updates: a dash for NaN, never for infinity.

    Examples
    --------
    >>> count_text(12345.0), count_text(float("inf"))
    ('12,345', 'never')
    """
    if np.isinf(count):
        return NEVER
    return NOTHING if np.isnan(count) else f"{count:,.0f}"


def markdown_table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    """Return a table as Markdown, of functions from a row to a cell, by the heading of a column.

    Examples
    --------
    >>> print(markdown_table([1, 2], {"number": str, ">square": lambda number: f"{number**2}"}))
    | number | square |
    | --- | ---: |
    | 1 | 1 |
    | 2 | 4 |
    """
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return TextTable("", list(columns), cells).markdown()
