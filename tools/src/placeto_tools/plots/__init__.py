"""Drawings, as PNG files, and the colours of devices and curves."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What matplotlib says of a home that it cannot write to, or of fonts, is nothing to act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
# Colours that people with colour blindness tell apart (Okabe and Ito 2008).
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000"),
    "#999999",
)


def colour(index: int) -> str:
    """Return the colour of one of several things; after nine they repeat."""
    return COLOURS[index % len(COLOURS)]


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, at 100 dots per inch, without a screen."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (pages use the colours alone)

    return Figure(figsize=(width, height), dpi=100, layout="constrained")
