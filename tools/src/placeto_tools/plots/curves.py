"""Learning curves: the best runtime against the placements sampled."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto_tools.plots.colours import colour
from placeto_tools.plots.png import new_figure

Curve = NDArray[np.float64]  # [K, 2], placements sampled and the best runtime so far


def curves_figure(
    curves: Mapping[str, Sequence[Curve]], levels: Mapping[str, float], title: str = ""
) -> Figure:
    """Draw learning curves; those of several seeds of one scheme have one colour.

    Parameters
    ----------
    curves
        By scheme, those of its seeds.
    levels
        Runtimes without a search, as horizontal lines.
    title
        What stands above it.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for number, (name, of_seeds) in enumerate(curves.items()):
        for seed, curve in enumerate(of_seeds):
            axes.step(
                np.maximum(curve[:, 0], 1),
                curve[:, 1],
                where="post",
                color=colour(number),
                label=name if seed == 0 else None,
                linewidth=1.5,
            )
            axes.plot(np.maximum(curve[-1:, 0], 1), curve[-1:, 1], ".", color=colour(number))
    for number, (name, runtime) in enumerate(levels.items()):
        axes.axhline(
            runtime, color=colour(len(curves) + number), linestyle=":", linewidth=1.2, label=name
        )
    axes.set_xscale("log")
    axes.set_xlabel("placements sampled")
    axes.set_ylabel("best runtime, seconds")
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure
