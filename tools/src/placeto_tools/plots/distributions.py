"""Distributions of runtimes, as figures of generalisation show them."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools.plots.png import colour
from placeto_tools.plots.png import new_figure


def distributions_figure(runtimes: Mapping[str, NDArray[np.float64]], title: str = "") -> Figure:
    """Draw the cumulative distribution of the runtimes of each scheme.

    Parameters
    ----------
    runtimes
        By scheme, seconds on all graphs.
    title
        What stands above it.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for number, (name, seconds) in enumerate(runtimes.items()):
        axes.ecdf(
            seconds,
            label=name,
            color=colour(number),
            linewidth=2 if number < 2 else 1.3,
            linestyle="-" if number < 4 else "--",
        )
    axes.set_xlabel("runtime of one step, seconds")
    axes.set_ylabel("part of the graphs")
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure
