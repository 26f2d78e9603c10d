"""Figures without a screen, and their files."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from placeto_graphs import write_atomically
from placeto_tools.errors import writing

DOTS_PER_INCH = 100
# Colours that people with colour blindness tell apart (Okabe and Ito 2008).
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000"),
    "#999999",
)


def colour(index: int) -> str:
    """Return the colour of one of several things; after nine they repeat."""
    return COLOURS[index % len(COLOURS)]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, at 100 dots per inch."""
    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, at once or not at all; equal figures give equal files."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    with writing(path):
        write_atomically(path, buffer.getvalue())
