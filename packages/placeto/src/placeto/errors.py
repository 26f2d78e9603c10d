"""Errors: wrong input, work that failed or was stopped; and the line that says so."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

RUN_FAILED = 1
WRONG_INPUT = 2
DOES_NOT_FIT = 3  # of a placement that was found and written
STOPPED = 130  # as shells count what Ctrl-C ends


class InputError(ValueError):
    """Something that the user gave cannot be used: exit code 2."""


class RunError(RuntimeError):
    """Work that began and failed: exit code 1."""


class StoppedRunError(RunError):
    """Work that began and was stopped by Ctrl-C: exit code 130."""


@contextmanager
def writing(path: Any) -> Iterator[None]:
    """Turn an error of the system about a file to write into a `RunError` that names it."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from error


def check_once(names: Iterable[str], option: str = "") -> None:
    """Raise an `InputError` if an option gives a name twice."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise InputError(f"{option}{name}: expected it once, got it again")


def exit_code(error: BaseException) -> int:
    """Return 2 for a package's `ValueError` or an unusable file, 130 after Ctrl-C, else 1."""
    if isinstance(error, StoppedRunError | KeyboardInterrupt):
        return STOPPED
    from_a_package = isinstance(error, ValueError) and _is_of_a_package(error)
    return WRONG_INPUT if from_a_package or _names_a_file(error) else RUN_FAILED


def one_line(error: BaseException) -> str:
    """Return what went wrong as one line of printable characters."""
    if _is_of_a_package(error):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text = "stopped"
    elif isinstance(error, OSError) and _names_a_file(error):
        text = f"{error.filename}: {error.strerror}"
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Escape characters that control a terminal: names from a file may hold them."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def _names_a_file(error: BaseException) -> bool:
    return isinstance(error, OSError) and isinstance(error.filename, str)


def _is_of_a_package(error: BaseException) -> bool:
    return re.match(r"placeto(_\w+)?\.", type(error).__module__) is not None


def check_seconds(seconds: float | None) -> None:
    """Refuse seconds that are not finite and above 0; None is no limit."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"seconds: expected a finite number above 0, got {seconds}")


def check_count(name: str, count: int | None) -> None:
    """Refuse a count below 1."""
    if count is not None and count < 1:
        raise InputError(f"{name}: expected at least 1, got {count}")
