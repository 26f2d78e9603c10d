"""Numbers of experiments as texts, and tables of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from placeto.texts import TextTable, seconds_text
from placeto.trials.comparison import NEVER, NOTHING

Row = TypeVar("Row")

WHAT_A_POLICY_LEAVES = (
    "A policy that looks at placements on its way leaves the best of them, another one what its "
    "pass ends with."
)


def ratio_text(ratio: float) -> str:
    """Return a ratio of runtimes.

    Examples
    --------
    >>> ratio_text(1.04567)
    '1.046'
    """
    return f"{ratio:.3f}"


def percent_over(ratio: float) -> str:
    """Return by how much a runtime is above another one.

    Examples
    --------
    >>> percent_over(1.0456), percent_over(0.98), percent_over(0.9999)
    ('+4.6 %', '-2.0 %', '+0.0 %')
    """
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # no negative zero


def duration_text(seconds: float) -> str:
    """Return seconds that something took, infinity if it never happened.

    Examples
    --------
    >>> duration_text(0.01234), duration_text(float("inf"))
    ('12.34 ms', 'never')
    """
    return NEVER if np.isinf(seconds) else seconds_text(seconds)


def count_text(count: float) -> str:
    """Return how many, nothing if it is not known; infinitely many are never.

    Examples
    --------
    >>> count_text(12345.0), count_text(float("inf"))
    ('12,345', 'never')
    """
    if np.isinf(count):
        return NEVER
    return NOTHING if np.isnan(count) else f"{count:,.0f}"


def markdown_table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    """Return a table as Markdown: what each column says of each row, by its heading.

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
