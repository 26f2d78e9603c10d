"""The ``placeto`` command: options, tables, progress and pictures. Begin to read in ``main.py``."""

import warnings
from typing import Any

__version__ = "0.3.0"

_MOVED = ("ModelPlacement", "place")


def __getattr__(name: str) -> Any:
    """Return what moved to the package `placeto`, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import placeto  # noqa: PLC0415 (only for what moved there)

    message = f"placeto_tools.{name} is now placeto.{name}, and goes in 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(placeto, name)
