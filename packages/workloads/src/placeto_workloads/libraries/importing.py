"""Libraries that are not always there, and names that a user may have misspelt."""

import difflib
import importlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from placeto_workloads.errors import WorkloadError

NUM_SUGGESTIONS = 5


def import_library(name: str, extra: str) -> ModuleType:
    """Import a library of models.

    Parameters
    ----------
    name
        Of its module.
    extra
        The extra of this package that brings it.

    Raises
    ------
    WorkloadError
        When it is not there, or cannot be imported.

    Examples
    --------
    >>> import_library("a_library_of_models", "timm")
    Traceback (most recent call last):
    ...
    placeto_workloads.errors.WorkloadError: a_library_of_models: expected it to be installed: \
pip install 'placeto-workloads[timm]'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise WorkloadError(_broken(name, error)) from error
        raise WorkloadError(
            f"{name}: expected it to be installed: pip install 'placeto-workloads[{extra}]'"
        ) from error
    except Exception as error:  # a library for another build of PyTorch fails in any way
        raise WorkloadError(_broken(name, error)) from error


def nearest(name: str, known: Collection[str]) -> str:
    """Return a text that names those of some names that are most like one.

    Examples
    --------
    >>> nearest("lama", ["bert", "gpt2", "llama"])
    'llama'
    >>> nearest("xyz", ["bert", "gpt2", "llama"])
    'bert, gpt2, llama'
    """
    found = difflib.get_close_matches(name, known, NUM_SUGGESTIONS)
    return ", ".join(found or sorted(known)[:NUM_SUGGESTIONS])


@contextmanager
def offline() -> Iterator[None]:
    """Let the hub of models answer nothing, whatever a configuration asks it for."""
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")
    except ModuleNotFoundError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def one_line(error: BaseException) -> str:
    """Return the type of an error and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _broken(name: str, error: BaseException) -> str:
    return f"{name}: expected a library that can be imported, got {one_line(error)}"
