"""Learning curves as numbers: made short for records, and read again."""

from collections.abc import Sequence
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.trials.records import Curve, finite

MOST_POINTS = 200
NEAR_BEST = 0.01  # fraction of the best runtime within which a search has found it
Row = TypeVar("Row")


def evenly_thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most 200 rows, evenly spread, the first and the last among them.

    Examples
    --------
    >>> evenly_thinned(range(1000))[:3], len(evenly_thinned(range(1000)))
    ([0, 5, 10], 200)
    """
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).round().astype(int)
    return [rows[index] for index in chosen.tolist()]


def short_curve(curve: NDArray[np.float64]) -> Curve:
    """Return the points of a curve at which the best changed, and the last one; at most 200.

    Examples
    --------
    >>> short_curve(np.array([[1, np.inf], [2, 3.0], [3, 2.0], [4, 2.0], [5, 2.0]]))
    [(1, None), (2, 3.0), (3, 2.0), (5, 2.0)]
    """
    if not len(curve):
        return []
    changes = np.flatnonzero(curve[1:, 1] != curve[:-1, 1]) + 1
    chosen = evenly_thinned(np.union1d(changes, [0, len(curve) - 1]).tolist())
    return [(int(count), finite(best)) for count, best in curve[chosen].tolist()]


def best_after(curve: Curve, evaluations: float) -> float:
    """Return the best runtime of a search after so many evaluations, infinity if none.

    Examples
    --------
    >>> best_after([(1, 3.0), (3, 2.0), (5, 2.0)], 4)
    2.0
    >>> best_after([(3, 2.0)], 1)
    inf
    """
    known = [best for count, best in curve if count <= evaluations]
    return inf if not known or known[-1] is None else known[-1]


def evaluations_until(curve: Curve | NDArray[np.float64], runtime: float) -> float:
    """Return the evaluations until a search was as fast, infinity if it never was.

    It has to stay as fast. A curve rises if the best so far did not fit the memory, and a slower
    placement that fits replaces it.

    Examples
    --------
    >>> evaluations_until([(1, 3.0), (3, 2.0), (5, 2.0)], 2.5)
    3.0
    >>> evaluations_until([(1, 2.0), (3, 4.0), (5, 2.4)], 2.5)
    5.0
    """
    found = inf
    for evaluations, best in reversed(curve):
        if best is None or not best <= runtime:  # nor is it as fast as what is not known
            break
        found = float(evaluations)
    return found


def evaluations_to_best(curve: NDArray[np.float64]) -> int:
    """Return the evaluations until a search was within 1 % of its best.

    Examples
    --------
    >>> evaluations_to_best(np.array([[1, 3.0], [10, 2.0], [50, 1.005], [90, 1.0]]))
    50
    """
    if not len(curve):
        return 0
    last = curve[-1, 1]
    with np.errstate(invalid="ignore"):  # infinity is near infinity
        far = np.abs(curve[:, 1] - last) > NEAR_BEST * last
    row = int(np.flatnonzero(far).max(initial=-1)) + 1
    return int(curve[min(row, len(curve) - 1), 0])
