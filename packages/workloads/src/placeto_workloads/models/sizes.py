"""The sizes of a model: whole numbers that a person may change."""

import operator
from typing import Any

from placeto_workloads.errors import WorkloadError

LARGEST = 2**24


def whole_number(name: str, value: Any, minimum: int = 1) -> int:
    """Check one size and return it as an int.

    Parameters
    ----------
    name
        Its name in error messages.
    value
        An integer of any type; booleans are none.
    minimum
        The least that it may be; the most is 16,777,216.

    Raises
    ------
    WorkloadError
        When it is something else.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if not minimum <= number <= LARGEST or isinstance(value, bool):
        raise WorkloadError(
            f"{name}: expected an integer from {minimum} to {LARGEST}, got {value!r}"
        )
    return number
