"""Columns of files: arrays and texts, each made as soon as it is read, before the next one is."""

from typing import Any

import msgspec
import numpy as np


class Integers(np.ndarray[Any, Any]):
    """A column of integers; of Python's own if one does not fit int64."""


class Pairs(Integers):
    """A column of pairs of integers."""


class Numbers(np.ndarray[Any, Any]):
    """A column of numbers."""


class NumbersOrNull(Numbers):
    """A column of numbers, and NaN where the file has null."""


class Texts(list[str]):
    """A column of texts, of which equal ones are one object."""


LISTS: dict[Any, Any] = {
    Integers: list[int],
    Pairs: list[tuple[int, int]],
    Numbers: list[float],
    NumbersOrNull: list[float | None],
    Texts: list[str],
}


def column(kind: type[Any], values: Any) -> Any:
    """Return a column of a kind; an error names what is no item of it."""
    try:
        items = msgspec.convert(values, LISTS[kind])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # to which msgspec adds where the column is
    if kind is Texts:
        shared = {item: item for item in items}
        return Texts(map(shared.__getitem__, items))
    try:
        array = np.array(items, np.float64 if issubclass(kind, Numbers) else np.int64)
    except OverflowError:
        array = np.array(items, object)
    return array.view(kind)
