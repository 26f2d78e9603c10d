"""Figures without a screen, and their files."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from placeto_graphs import write_atomically
from placeto_tools.errors import writing

DOTS_PER_INCH = 100


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, at 100 dots per inch."""
    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, at once or not at all; equal figures give equal files."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    with writing(path):
        write_atomically(path, buffer.getvalue())
