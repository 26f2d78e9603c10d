"""A learning curve that somebody measured on hardware."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_tools.errors import InputError, reading

COLUMNS = ["evaluations", "runtime"]


def read_measured_curve(path: Path) -> NDArray[np.float64]:
    """Return float64[K, 2], rows of (placements sampled, best runtime so far in seconds).

    Parameters
    ----------
    path
        A CSV file with the columns ``evaluations`` and ``runtime``.

    Raises
    ------
    InputError
        When it cannot be read, or holds something else than numbers above 0.

    Examples
    --------
    >>> _ = Path("measured.csv").write_text("evaluations,runtime\\n8,1.75\\n16,1.5\\n")
    >>> read_measured_curve(Path("measured.csv"))
    array([[ 8.  ,  1.75],
           [16.  ,  1.5 ]])
    """
    with reading(path):
        try:
            head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
            curve = np.array(rows, np.float64).reshape(-1, len(COLUMNS))
        except ValueError as error:
            raise InputError(f"{path}: expected rows of two numbers: {error}") from None
    if [name.strip() for name in head] != COLUMNS:
        raise InputError(f"{path}: expected the columns {','.join(COLUMNS)}, got {','.join(head)}")
    if not len(curve) or not np.isfinite(curve).all() or (curve <= 0).any():
        raise InputError(f"{path}: expected rows of finite numbers above 0")
    return curve
