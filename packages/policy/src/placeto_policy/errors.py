"""The one error of this package."""

from typing import Any

MAX_SHOWN = 80


class PolicyError(ValueError):
    """A policy, problem, evaluator, setting or checkpoint that is not what it must be.

    The message is one line that names the field or file, what was expected and what came.

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
    """Return a value as it stands in an error message: on one line, and not too long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."
