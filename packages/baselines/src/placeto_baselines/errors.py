"""The errors of this package, and what raises them in several places."""

from placeto_graphs import PlacementResult


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


class StoppedSearchError(BaselineError):
    """A search whose evaluator failed in the middle; what it had found is not lost.

    Attributes
    ----------
    result : `PlacementResult`
        The best placement until then.

    Examples
    --------
    >>> try:
    ...     found = MultilevelSearch(evaluations=200).place(problem, evaluator)
    ... except StoppedSearchError as error:
    ...     found = error.result
    """

    def __init__(self, error: Exception, result: PlacementResult) -> None:
        message = " ".join(str(error).split()) or type(error).__name__
        super().__init__(f"evaluator: {message}, after {result.evaluations:,} placements")
        self.result = result


def check_at_least(name: str, value: float, minimum: float, unit: str = "") -> None:
    """Refuse a setting below its minimum; NaN is below every minimum."""
    if not value >= minimum:
        raise BaselineError(f"{name}: expected at least {minimum}{unit}, got {value}")


def missing(library: str, extra: str) -> BaselineError:
    """Return the error of a library that is not installed: the command that installs it."""
    return BaselineError(f"{library} is not installed: pip install 'placeto-baselines[{extra}]'")
