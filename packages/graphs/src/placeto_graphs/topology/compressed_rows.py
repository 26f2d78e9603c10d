"""Rows of different lengths in two flat arrays (CSR)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """Rows of different lengths, one after the other (compressed sparse rows).

    Attributes
    ----------
    offsets : int32[N + 1]
        Where each row starts in ``values``; the last entry is the length of ``values``.
    values : int32[K]
        The rows, one after the other.

    Examples
    --------
    >>> rows = compress_rows(3, keys=np.array([2, 0, 2]), values=np.array([7, 8, 9]))
    >>> rows[2]
    array([7, 9], dtype=int32)
    """

    offsets: NDArray[np.int32]
    values: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def compress_rows(
    num_rows: int, keys: NDArray[np.integer], values: NDArray[np.integer]
) -> CompressedRows:
    """Sort values into rows by their keys, keeping their order within a row.

    Parameters
    ----------
    num_rows
        The number N of rows.
    keys : int[K]
        The row of each value, each in ``range(num_rows)``.
    values : int[K]
        The values.
    """
    offsets = np.zeros(num_rows + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=num_rows), out=offsets[1:])
    in_rows = values[np.argsort(keys, kind="stable")].astype(np.int32)
    for array in (offsets, in_rows):
        array.flags.writeable = False
    return CompressedRows(offsets, in_rows)
