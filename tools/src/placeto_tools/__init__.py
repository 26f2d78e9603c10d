"""The ``placeto`` command, and `place`, which does in Python what it does in the shell.

The package holds everything a user does: making problem files, placing with any of the schemes,
training, evaluating, drawing and exporting. It is the only package that sees all the others.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeto_tools.placing.model_placement import ModelPlacement, place

__version__ = "0.2.0"

__all__ = ["ModelPlacement", "place"]


def __getattr__(name: str) -> Any:
    """Import what `place` needs when it is asked for: the command starts without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from placeto_tools.placing import model_placement  # noqa: PLC0415 (torch takes seconds to import)

    return getattr(model_placement, name)
