"""The one error of this package, and how errors are said in one line."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

MAX_REPR = 80
MAX_MESSAGE = 1000


class GraphError(ValueError):
    """A graph, cluster, grouping, problem or file that is not what it must be.

    Classes raise it when a field is not as they describe it. The message is one line that names the
    file (where there is one), the field, the index and the value, and what was expected.

    Examples
    --------
    >>> from placeto_graphs import Device
    >>> Device(name="gpu:0", kind="k80", memory_bytes=0, op_overhead=0.0, transfer_overhead=0.0)
    Traceback (most recent call last):
    ...
    placeto_graphs.errors.GraphError: memory_bytes: expected an integer from 1 to ..., got 0
    """

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put the name of a file or of an outer field in front of the errors raised inside."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"{place}{error}") from None


def short_repr(value: Any) -> str:
    """Return a value as it stands in an error message: on one line, and not too long."""
    text = repr(value)
    if len(text) > MAX_REPR:
        text = f"{text[: MAX_REPR - 4]} ..."
    return text


def check_one_of(field: str, value: Any, names: Collection[str]) -> None:
    """Refuse what is not among the known words."""
    if value not in names:
        raise GraphError(f"{field}: {not_among(value, names)}")


def not_among(value: Any, names: Collection[str]) -> str:
    """Return the error of an unknown name: the names to choose from, the nearest first."""
    nearest = get_close_matches(str(value), names, n=1)
    further_names = ", ".join(name for name in names if name not in nearest)
    first = "" if nearest else "one of "
    choice = ", or another of ".join(filter(None, [*nearest, further_names]))
    return f"expected {first}{choice}, got {short_repr(value)}"


def error_line(error: BaseException) -> str:
    """Return the type of an error and its message, on one line.

    Parameters
    ----------
    error
        Any error.

    Examples
    --------
    >>> from placeto_graphs import error_line
    >>> error_line(ValueError("two  words")), error_line(MemoryError())
    ('ValueError: two words', 'MemoryError')
    """
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _one_line(message: str) -> str:
    """Escape what would break the line: names from a file may hold anything."""
    escaped = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in message
    )
    return escaped if len(escaped) <= MAX_MESSAGE else f"{escaped[: MAX_MESSAGE - 4]} ..."
