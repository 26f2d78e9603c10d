"""Curves with a band: how a training goes over several seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools.plots.colours import colour
from placeto_tools.plots.png import new_figure


def bands_figure(
    curves: Mapping[str, Sequence[NDArray[np.float64]]], across: str, title: str = ""
) -> Figure:
    """Draw the mean over seeds of each curve, in a band from the least to the most.

    Parameters
    ----------
    curves
        By name, float64[K, 2] for each seed: rows of where and how many seconds. Seeds may stand
        at other places; in between, curves are straight.
    across
        What the places are.
    title
        What stands above it.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for number, (name, of_seeds) in enumerate(curves.items()):
        places = np.unique(np.concatenate([curve[:, 0] for curve in of_seeds]))
        values = np.stack([np.interp(places, curve[:, 0], curve[:, 1]) for curve in of_seeds])
        axes.plot(places, values.mean(axis=0), color=colour(number), label=name)
        axes.fill_between(
            places,
            values.min(axis=0),
            values.max(axis=0),
            color=colour(number),
            alpha=0.2,
            linewidth=0,
        )
    axes.set_xlabel(across)
    axes.set_ylabel("memory-penalised runtime, seconds")
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure
