"""Checked, read-only arrays and texts: what the fields of the schema are made of."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from placeto_graphs.errors import GraphError, shown

INT64_MAX = int(np.iinfo(np.int64).max)
MAX_SUM = 2**62  # far enough from the end of int64 that rounding cannot hide an overflow

_KIND_WORDS = {
    "b": "booleans",
    "f": "floating-point numbers",
    "c": "complex numbers",
    "U": "text",
    "S": "bytes",
    "O": "mixed objects",
    "M": "dates",
    "m": "durations",
    "V": "records",
}


def int_array(
    field: str,
    values: Any,
    dtype: DTypeLike,
    shape: tuple[int | None, ...],
    *,
    minimum: int = 0,
    maximum: int | None = None,
) -> NDArray[Any]:
    """Check an array of integers and return it read-only.

    Parameters
    ----------
    field
        Its name in error messages.
    values
        An array or nested sequence of integers of any width.
    dtype
        The dtype to return; every value must fit.
    shape
        The expected shape; None stands for any length.
    minimum, maximum
        The inclusive range of the values; without a maximum, that of the dtype.

    Raises
    ------
    GraphError
        On another kind of number, another shape, or a value out of range.
    """
    array = _as_array(field, values)
    if array.shape == (0,) and len(shape) == 2:
        array = array.reshape(0, shape[1] or 0)
    if array.size == 0:
        array = array.astype(dtype)
    elif array.dtype.kind not in "iu":
        raise GraphError(f"{field}: expected integers, got {_kind(array)}")
    _check_shape(field, array, shape)
    largest = int(np.iinfo(dtype).max) if maximum is None else maximum
    if array.size and (array.min() < minimum or array.max() > largest):
        index = _first_index((array < minimum) | (array > largest))
        raise GraphError(
            f"{field}{_subscript(index)}: expected an integer from {minimum} to {largest}, "
            f"got {array[index]}"
        )
    return _frozen(array, dtype, values)


def float_array(
    field: str, values: Any, shape: tuple[int | None, ...], *, infinity_is: str | None = None
) -> NDArray[np.float64]:
    """Check an array of numbers >= 0 and return it as read-only float64.

    Parameters
    ----------
    field
        Its name in error messages.
    values
        An array or nested sequence of numbers.
    shape
        The expected shape; None stands for any length.
    infinity_is
        What an infinite value means; without a meaning, infinity is refused.

    Raises
    ------
    GraphError
        On something other than numbers, another shape, or a value that is NaN, negative or
        (unless it has a meaning) infinite.
    """
    array = _as_array(field, values)
    if array.size == 0:
        array = array.astype(np.float64)
    elif array.dtype.kind not in "iuf":
        raise GraphError(f"{field}: expected numbers, got {_kind(array)}")
    _check_shape(field, array, shape)
    result: NDArray[np.float64] = _frozen(array, np.float64, values)
    largest = np.finfo(np.float64).max if infinity_is is None else np.inf
    if result.size and not (result.min() >= 0 and result.max() <= largest):  # also where NaN
        index = _first_index(~((result >= 0) & (result <= largest)))
        or_infinity = "" if infinity_is is None else f", or infinity ({infinity_is})"
        expected = f"a {'finite ' if not or_infinity else ''}number >= 0{or_infinity}"
        raise GraphError(f"{field}{_subscript(index)}: expected {expected}, got {result[index]}")
    return result


def number(field: str, value: Any) -> float:
    """Check one finite number >= 0 and return it as a float."""
    return float(float_array(field, value, ()))


def integer(field: str, value: Any, *, minimum: int = 0) -> int:
    """Check one integer that fits int64 and return it."""
    return int(int_array(field, value, np.int64, (), minimum=minimum))


def texts(
    field: str, values: Any, length: int | None = None, *, unique: bool = False, empty: bool = False
) -> tuple[str, ...]:
    """Check a sequence of texts and return it as a tuple.

    Parameters
    ----------
    field
        Its name in error messages.
    values
        The texts.
    length
        How many there must be.
    unique
        Whether each must differ from every other.
    empty
        Whether a text may be empty.

    Raises
    ------
    GraphError
        On another type or number, an empty or repeated text, or one that no UTF-8 file can hold.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise GraphError(f"{field}: expected a sequence of texts, got {shown(values)}")
    items = tuple(values)
    if length is not None and len(items) != length:
        raise GraphError(f"{field}: expected {length} texts, got {len(items)}")
    if set(map(type, items)) - {str}:
        items = tuple(_plain_text(f"{field}[{index}]", item) for index, item in enumerate(items))
    if not empty and "" in items:
        raise GraphError(f"{field}[{items.index('')}]: expected a text that is not empty, got ''")
    _check_encodable(field, items)
    if unique and len(set(items)) != len(items):
        raise GraphError(_first_repeat(field, items))
    return items


def text(field: str, value: Any) -> str:
    """Check one text that is not empty and return it."""
    plain = _plain_text(field, value)
    if not plain:
        raise GraphError(f"{field}: expected a text that is not empty, got ''")
    _check_encodable(field, (plain,))
    return plain


def check_sum(field: str, array: NDArray[np.int64]) -> None:
    """Refuse bytes whose sum int64 cannot hold, so that every later sum is exact."""
    if array.size and array.sum(dtype=np.float64) > MAX_SUM:
        raise GraphError(f"{field}: expected a sum of at most {MAX_SUM} bytes, got more")


def check_pairs_differ(field: str, pairs: NDArray[np.int32], what: str) -> None:
    """Refuse rows of int32[N, 2] that stand there twice; ``what`` says what a row is."""
    keys = (pairs[:, 0].astype(np.int64) << 32) + pairs[:, 1]
    order = np.argsort(keys, kind="stable")
    repeats = keys[order[1:]] == keys[order[:-1]]
    if repeats.any():
        row = int(order[1:][repeats].min())
        first = int(np.argmax(keys == keys[row]))
        raise GraphError(
            f"{field}[{row}]: expected each {what} once, got {pairs[row].tolist()} again "
            f"after {field}[{first}]"
        )


def _plain_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise GraphError(f"{field}: expected a text, got {shown(value)}")
    return str(value)  # of a subclass, such as NumPy's, only the text


def _as_array(field: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise GraphError(f"{field}: expected an array of one shape, got {shown(values)}") from None


def _check_shape(field: str, array: NDArray[Any], shape: tuple[int | None, ...]) -> None:
    matches = len(array.shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        comma = "," if len(shape) == 1 else ""
        raise GraphError(f"{field}: expected shape ({wanted}{comma}), got {array.shape}")


def _frozen(array: NDArray[Any], dtype: DTypeLike, given: Any) -> NDArray[Any]:
    nobody_can_write = array is given and not array.flags.writeable and array.base is None
    just_made = isinstance(given, list | tuple | int | float)
    result = np.array(
        array, dtype=dtype, order="C", copy=None if nobody_can_write or just_made else True
    )
    result.flags.writeable = False
    return result


def _kind(array: NDArray[Any]) -> str:
    return f"{_KIND_WORDS.get(array.dtype.kind, 'something else')} ({array.dtype})"


def _first_index(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _subscript(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _first_repeat(field: str, items: tuple[str, ...]) -> str:
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        if item in first:
            return f"{field}[{index}]: {shown(item)} repeats {field}[{first[item]}]"
        first[item] = index
    raise AssertionError("no repeat")


def _check_encodable(field: str, items: tuple[str, ...]) -> None:
    try:
        "".join(items).encode()
    except UnicodeEncodeError:
        for index, item in enumerate(items):
            if any("\ud800" <= character <= "\udfff" for character in item):
                raise GraphError(
                    f"{field}[{index}]: expected text that UTF-8 can hold, got {shown(item)}"
                ) from None
