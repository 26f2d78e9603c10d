"""Distributions of runtimes, as figures of generalisation show them."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools.plots.colours import colour
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
    _draw(axes, runtimes)
    axes.set_ylabel("part of the graphs")
    axes.set_xlabel("memory-penalised runtime, seconds")
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure


def compared_distributions_figure(
    runtimes: Mapping[str, NDArray[np.float64]], reference: str, title: str = ""
) -> Figure:
    """Draw the same, and beside it runtimes over those of one scheme on the same graphs.

    Parameters
    ----------
    runtimes
        By scheme, seconds on all graphs, in the same order.
    reference
        The scheme that others are divided by.
    title
        What stands above both.
    """
    figure = new_figure(13, 5.5)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, runtimes)
    _draw(right, {name: seconds / runtimes[reference] for name, seconds in runtimes.items()})
    left.set_ylabel("part of the graphs")
    left.set_xlabel("memory-penalised runtime, seconds")
    right.set_xlabel(f"runtime over that of {reference}, on the same graph")
    for axes in (left, right):
        # Slow schemes would squeeze the others into a corner.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="x", which="both", labelsize="small", rotation=45)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle(title)
    return figure


def _draw(axes: Axes, values: Mapping[str, NDArray[np.float64]]) -> None:
    for number, (name, numbers) in enumerate(values.items()):
        axes.ecdf(
            numbers,
            label=name,
            color=colour(number),
            linewidth=2 if number < 2 else 1.3,
            linestyle="-" if number < 4 else "--",
        )
