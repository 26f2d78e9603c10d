"""The one error of this package."""


class BaselineError(ValueError):
    """A setting, problem or installation that a placer cannot work with.

    The message is one line that names what was given and what was expected.

    Examples
    --------
    >>> from placeto_baselines import LocalSearch
    >>> LocalSearch(budget=0)
    Traceback (most recent call last):
    ...
    placeto_baselines.errors.BaselineError: budget: expected at least 1 evaluation, got 0
    """


def check_at_least(name: str, value: float, minimum: float, unit: str = "") -> None:
    """Refuse a setting below its minimum; NaN is below every minimum."""
    if not value >= minimum:
        raise BaselineError(f"{name}: expected at least {minimum}{unit}, got {value}")
