"""Libraries that only some placers need, and that a user installs when needed."""

from placeto_baselines.errors import BaselineError


def missing(library: str, extra: str) -> BaselineError:
    """Return the error of a library that is not installed: the command that installs it."""
    return BaselineError(f"{library} is not installed: pip install 'placeto-baselines[{extra}]'")
