"""Libraries that are not always there."""

import importlib
from types import ModuleType

from placeto_capture.errors import CaptureError


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
    CaptureError
        When it is not there, or cannot be imported.

    Examples
    --------
    >>> import_library("a_library_of_models", "onnx")
    Traceback (most recent call last):
    ...
    placeto_capture.errors.CaptureError: a_library_of_models: expected it to be installed: \
pip install 'placeto-capture[onnx]'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise CaptureError(_broken(name, error)) from error
        raise CaptureError(
            f"{name}: expected it to be installed: pip install 'placeto-capture[{extra}]'"
        ) from error
    except Exception as error:  # a library for another build of PyTorch fails in any way
        raise CaptureError(_broken(name, error)) from error


def one_line(error: BaseException) -> str:
    """Return the type of an error and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _broken(name: str, error: BaseException) -> str:
    return f"{name}: expected a library that can be imported, got {one_line(error)}"
