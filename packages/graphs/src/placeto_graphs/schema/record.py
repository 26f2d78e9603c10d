"""What all types of the schema share: comparison by value, safe copies, read-only mappings."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np


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
        return _rebuilt, (type(self), {k: _plain(value) for k, value in values.items()})

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]


def set_field(record: Record, name: str, value: Any) -> None:
    """Put the checked form of a field in its place; only for ``__post_init__``."""
    object.__setattr__(record, name, value)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, MappingProxyType) else value


def _rebuilt(record_type: type[Record], values: dict[str, Any]) -> Record:
    return record_type(**values)
