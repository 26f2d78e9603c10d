"""Figures without a screen."""

from matplotlib.figure import Figure

DOTS_PER_INCH = 100


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, at 100 dots per inch."""
    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
