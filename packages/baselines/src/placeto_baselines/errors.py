"""The errors of this package, and what raises them in several places."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from placeto_graphs import PlacementResult


class BaselineError(ValueError):
    """A setting, problem or installation that a placer cannot work with.

    The message is one line that names what was given and what was expected.
    """


class StoppedSearchError(BaselineError):
    """A search whose evaluator failed in the middle; what it had found is not lost.

    Parameters
    ----------
    error
        Error of the evaluator.
    result
        Best placement until then.

    Attributes
    ----------
    result : `placeto_graphs.PlacementResult`
        Best placement until then.
    """

    def __init__(self, error: Exception, result: PlacementResult) -> None:
        message = " ".join(str(error).split()) or type(error).__name__
        super().__init__(f"evaluator: {message}, after {result.evaluations:,} placements")
        self.result = result


def check_at_least(name: str, value: float, minimum: float, unit: str = "") -> None:
    """Refuse a setting below its minimum; NaN is below every minimum."""
    if not value >= minimum:
        raise BaselineError(f"{name}: expected at least {minimum}{unit}, got {value}")


def import_extra(module: str, extra: str, libraries: Sequence[str | None]) -> Any:
    """Import a module that needs libraries of an extra, which a user installs when needed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in libraries:
            raise
        raise BaselineError(
            f"{error.name} is not installed: pip install 'placeto-baselines[{extra}]'"
        ) from None
