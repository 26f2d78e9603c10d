"""Moved to the package `placeto`; this module goes in 0.4."""

import warnings

from placeto import PlacedModule, place_module

__all__ = ["PlacedModule", "place_module"]

warnings.warn(
    "placeto_tools.placed_module is now placeto: from placeto import place_module",
    DeprecationWarning,
    stacklevel=2,
)
