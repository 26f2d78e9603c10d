"""The one error of this package."""

from typing import Any

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


def shown(value: Any) -> str:
    """Return a value as text for an error message, on one line of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."
