"""Numbers of experiments as texts."""

import numpy as np

from placeto.texts import seconds_text

WHAT_A_POLICY_LEAVES = (
    "A policy that looks at placements on its way leaves the best of them, another one what its "
    "pass ends with."
)
NOTHING = "–"  # noqa: RUF001 (an en dash, as in printed tables)


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
    """Return seconds that something took, or nothing if it did not happen.

    Examples
    --------
    >>> duration_text(0.01234), duration_text(float("nan")) == NOTHING
    ('12.34 ms', True)
    """
    return NOTHING if np.isnan(seconds) else seconds_text(seconds)


def count_text(count: float) -> str:
    """Return how many, or nothing if it is not a number.

    Examples
    --------
    >>> count_text(12345.0)
    '12,345'
    """
    return NOTHING if np.isnan(count) else f"{count:,.0f}"
