"""Checked, read-only arrays and texts, and the records that hold them.

Every check takes the name of a field and its value, and returns what the field is to hold, or
raises a `GraphError` that names the field, the index and the value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from placeto_graphs.errors import GraphError, short_repr

INT64_MAX = int(np.iinfo(np.int64).max)
FLOAT64_MAX = float(np.finfo(np.float64).max)
MAX_SUM = 2**60  # of one field: int64 holds parameters, workspace and tensors of all ops together


class Record:
    """Base of the frozen dataclasses that hold arrays.

    Two records are equal when they are of one type and every field is equal, element by element.
    Copies and pickles pass through the constructor, so their arrays are read-only, too.
    """

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in self._names())

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in self._names()}
        for name, value in values.items():
            values[name] = dict(value) if isinstance(value, Mapping) else value
        return partial(type(self), **values), ()

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]

    def _check(
        self,
        name: str,
        check: Callable[..., Any],
        *details: Any,
        default: Any = None,
        **options: Any,
    ) -> None:
        """Replace a field by its checked form, or by a default where it was not given.

        Only for ``__post_init__``.
        """
        value = getattr(self, name)
        value = default if value is None else value
        object.__setattr__(self, name, check(name, value, *details, **options))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(
            _equal(first[key], second[key]) for key in first
        )
    return bool(first == second)


def int_array(
    field: str,
    values: Any,
    dtype: DTypeLike,
    shape: tuple[int | None, ...],
    *,
    minimum: int = 0,
    maximum: int | list[int] | None = None,  # or one for each column
) -> NDArray[Any]:
    """Check integers from a minimum to a maximum, or to that of the dtype; None is any length."""
    array = _as_array(field, values)
    if array.shape == (0,) and len(shape) == 2:
        array = array.reshape(0, shape[1] or 0)
    if array.size == 0:
        array = array.astype(dtype)
    elif array.dtype.kind in "fO" and _are_whole(values):
        array = np.array(values, dtype=object)  # NumPy makes floats of integers beyond its own
    elif array.dtype.kind not in "iu":
        raise GraphError(f"{field}: expected integers, got {array.dtype.type.__name__}")
    _check_shape(field, array, shape)
    largest = int(np.iinfo(dtype).max) if maximum is None else maximum
    wrong = (array < minimum) | (array > largest)
    if wrong.any():
        index, place = first_index(wrong)
        raise GraphError(
            f"{field}{place}: expected an integer from {minimum} to "
            f"{np.broadcast_to(largest, array.shape)[index]}, got {array[index]}"
        )
    return _frozen(array, dtype)


def byte_counts(field: str, values: Any, shape: tuple[int | None, ...]) -> NDArray[np.int64]:
    """Check integers >= 0 of such a sum that int64 can add up several fields exactly."""
    array = int_array(field, values, np.int64, shape)
    if array.size and array.sum(dtype=np.float64) > MAX_SUM:
        raise GraphError(f"{field}: expected a sum of at most {MAX_SUM} bytes, got more")
    return array


def float_array(
    field: str, values: Any, shape: tuple[int | None, ...], *, infinity_is: str | None = None
) -> NDArray[np.float64]:
    """Check numbers >= 0; infinity is among them only where it has a meaning."""
    array = _as_array(field, values)
    if array.size == 0 or (array.dtype.kind == "O" and _are_whole(values, maximum=FLOAT64_MAX)):
        array = array.astype(np.float64)
    elif array.dtype.kind not in "iuf":
        raise GraphError(f"{field}: expected numbers, got {array.dtype.type.__name__}")
    _check_shape(field, array, shape)
    result: NDArray[np.float64] = _frozen(array, np.float64)
    largest = FLOAT64_MAX if infinity_is is None else np.inf
    wrong = ~((result >= 0) & (result <= largest))  # also where NaN
    if wrong.any():
        index, place = first_index(wrong)
        expected = "a finite number >= 0"
        if infinity_is is not None:
            expected = f"a number >= 0, or infinity ({infinity_is})"
        raise GraphError(f"{field}{place}: expected {expected}, got {result[index]}")
    return result


def number(field: str, value: Any, *, infinity_is: str | None = None) -> float:
    """Check one number >= 0."""
    return float(float_array(field, value, (), infinity_is=infinity_is))


def above_0(field: str, value: Any, *, infinity_is: str | None = None) -> float:
    """Check one number > 0."""
    checked = number(field, value, infinity_is=infinity_is)
    if checked == 0:
        raise GraphError(f"{field}: expected more than 0, got {checked}")
    return checked


def integer(field: str, value: Any, *, minimum: int = 0) -> int:
    """Check one integer that fits int64."""
    return int(int_array(field, value, np.int64, (), minimum=minimum))


def texts(
    field: str, values: Any, length: int | None = None, *, unique: bool = False, empty: bool = False
) -> tuple[str, ...]:
    """Check texts that a UTF-8 file can hold; only where that is allowed, one may be empty."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise GraphError(f"{field}: expected a sequence of texts, got {short_repr(values)}")
    items = tuple(values)
    if length is not None and len(items) != length:
        raise GraphError(f"{field}: expected {length} texts, got {len(items)}")
    distinct = {*items} if {*map(type, items)} <= {str} else None
    if distinct is None or not "".join(distinct).isascii() or ("" in distinct and not empty):
        items = tuple(text(f"{field}[{i}]", item, empty=empty) for i, item in enumerate(items))
        distinct = {*items}
    if unique and len(distinct) != len(items):
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            if first.setdefault(item, index) != index:
                raise GraphError(
                    f"{field}[{index}]: {short_repr(item)} repeats {field}[{first[item]}]"
                )
    return items


def text(field: str, value: Any, *, empty: bool = False) -> str:
    """Check one text that a UTF-8 file can hold."""
    if not isinstance(value, str):
        raise GraphError(f"{field}: expected a text, got {short_repr(value)}")
    if not (value or empty):
        raise GraphError(f"{field}: expected a text that is not empty, got ''")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise GraphError(
            f"{field}: expected text that UTF-8 can hold, got {short_repr(value)}"
        ) from None
    return str(value)  # of a subclass, such as NumPy's, only the text


def check_rows_differ(field: str, rows: NDArray[np.int32], noun: str) -> None:
    """Refuse numbers int32[N], or pairs int32[N, 2], that stand there twice.

    ``noun`` names one of them in the error.
    """
    keys = rows if rows.ndim == 1 else (rows[:, 0].astype(np.int64) << 32) + rows[:, 1]
    if np.all(keys[1:] > keys[:-1]):
        return
    order = np.argsort(keys, kind="stable")
    repeats = keys[order[1:]] == keys[order[:-1]]
    if repeats.any():
        row = int(order[1:][repeats].min())
        first = int(np.argmax(keys == keys[row]))
        raise GraphError(
            f"{field}[{row}]: expected each {noun} once, got {rows[row].tolist()} again "
            f"after {field}[{first}]"
        )


def sorted_rows(field: str, rows: NDArray[np.int32], noun: str) -> NDArray[np.int32]:
    """Return numbers, or pairs, in ascending order; refuse those that stand there twice."""
    check_rows_differ(field, rows, noun)
    result: NDArray[np.int32] = rows[np.lexsort(np.atleast_2d(rows.T)[::-1])]
    result.flags.writeable = False
    return result


def sums_by_key(
    keys: NDArray[np.integer[Any]], values: NDArray[np.int64], length: int
) -> NDArray[np.int64]:
    """Return int64[length], the exact sum of the values of each key.

    Parameters
    ----------
    keys : int[K]
        Key of each value, from 0 to below ``length``.
    values : int64[K]
        Numbers to add up.
    length
        Number of keys.

    Examples
    --------
    >>> sums_by_key(np.array([2, 0, 2]), np.array([7, 8, 9]), 3)
    array([ 8,  0, 16])
    """
    result = np.zeros(length, np.int64)
    np.add.at(result, keys, values)
    return result


def _as_array(field: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise GraphError(
            f"{field}: expected an array of one shape, got {short_repr(values)}"
        ) from None


def _are_whole(values: Any, maximum: float = np.inf) -> bool:
    flat = np.array(values, dtype=object).flat
    return all(type(value) is int and abs(value) <= maximum for value in flat)


def _check_shape(field: str, array: NDArray[Any], shape: tuple[int | None, ...]) -> None:
    any_or_same = [
        length if expected is None else expected
        for expected, length in zip(shape, array.shape, strict=False)
    ]
    if len(array.shape) != len(shape) or array.shape != tuple(any_or_same):
        expected_shape = ", ".join("any" if size is None else str(size) for size in shape)
        comma = "," if len(shape) == 1 else ""
        raise GraphError(f"{field}: expected shape ({expected_shape}{comma}), got {array.shape}")


def _frozen(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array over bytes, which nothing can change; one that is over bytes is kept.

    The flag of other arrays protects nothing: earlier views of them may write.
    """
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    if isinstance(memory, bytes) and array.dtype == dtype and array.flags.c_contiguous:
        return array
    values = array.astype(dtype, copy=False)
    return np.ndarray(values.shape, dtype, buffer=values.tobytes())


def first_index(mask: NDArray[np.bool_]) -> tuple[tuple[int, ...], str]:
    """Return the first index that is True, and how it stands behind the name of a field."""
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
    return index, f"[{', '.join(map(str, index))}]" if index else ""
