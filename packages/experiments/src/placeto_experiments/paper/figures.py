"""Figures of experiments: distributions of runtimes, and curves in a band over several seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools.plots import colour, new_figure

RUNTIME = "memory-penalised runtime, seconds"


def distributions_figure(runtimes: Mapping[str, NDArray[np.float64]], title: str = "") -> Figure:
    """Draw the cumulative distribution of the runtimes of each placer, in seconds."""
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    _draw(axes, runtimes)
    axes.set_ylabel("fraction of the graphs")
    axes.set_xlabel(RUNTIME)
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure


def compared_distributions_figure(
    runtimes: Mapping[str, NDArray[np.float64]], reference: str, title: str = ""
) -> Figure:
    """Draw the same, and the ratios to the runtimes of one placer on the same graphs.

    The runtimes of all placers are of graphs in the same order.
    """
    figure = new_figure(13, 5.5)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, runtimes)
    _draw(right, {name: seconds / runtimes[reference] for name, seconds in runtimes.items()})
    left.set_ylabel("fraction of the graphs")
    left.set_xlabel(RUNTIME)
    right.set_xlabel(f"ratio to {reference}, on the same graph")
    for axes in (left, right):
        # Slow placers would squeeze the others into a corner.
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


def bands_figure(
    curves: Mapping[str, Sequence[NDArray[np.float64]]], across: str, title: str = ""
) -> Figure:
    """Draw the mean over seeds of each curve, in a band from the least to the most.

    Curves are by name, float64[K, 2] for each seed: rows of a place and seconds; ``across`` is the
    label of places. Seeds may have other places. In between, curves are straight.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for number, (name, of_seeds) in enumerate(curves.items()):
        places = np.unique(np.concatenate([curve[:, 0] for curve in of_seeds]))
        values = np.stack([np.interp(places, curve[:, 0], curve[:, 1]) for curve in of_seeds])
        least, most, drawn = values.min(axis=0), values.max(axis=0), colour(number)
        axes.plot(places, values.mean(axis=0), color=drawn, label=name)
        axes.fill_between(places, least, most, color=drawn, alpha=0.2, linewidth=0)
    axes.set_xlabel(across)
    axes.set_ylabel(RUNTIME)
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure
