"""The one error of this package, and the check of an evaluator that raises it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SHOWN = 80


class PolicyError(ValueError):
    """An invalid policy, problem, evaluator, setting or checkpoint.

    The message is one line with the field or file, the expected value and the actual one.

    Examples
    --------
    >>> from placeto_policy import Settings
    >>> Settings(workers=0)
    Traceback (most recent call last):
    ...
    placeto_policy.errors.PolicyError: workers: expected an integer >= 1, got 0
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def short_repr(value: Any) -> str:
    """Return a value as text for an error message, on one line of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."


def check_field(batch: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a result of an evaluator, or raise an error if its shape is wrong."""
    array = getattr(batch, name, None)
    if not isinstance(array, np.ndarray) or array.shape != shape:
        got = getattr(array, "shape", short_repr(array))
        raise PolicyError(f"evaluator: expected {name} of shape {shape}, got {got}")
    return array
