"""A placement: the graph of groups in layers, with a colour for each device."""

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from placeto.texts import counted
from placeto_graphs import PlacementProblem
from placeto_tools.plots import colour, new_figure
from placeto_tools.plots.layers import layered_positions

SMALLEST_NODE, LARGEST_NODE = 15.0, 500.0  # areas in square points
THINNEST_EDGE, THICKEST_EDGE = 0.3, 4.0  # points


def placement_figure(
    problem: PlacementProblem, placement: NDArray[np.int32], title: str = ""
) -> Figure:
    """Draw the groups of a placement int32[G]: their devices, compute times and bytes.

    Colour is the device, area the compute time, edge width the bytes. Edges between devices are
    dark, as in the figures of Addanki et al. (2019).
    """
    groups = problem.group_graph
    positions = layered_positions(groups)
    width = 0.22 * (positions[:, 0].max() + 1) + 2
    height = 0.5 * (np.ptp(positions[:, 1]) + 1) + 1.5
    figure = new_figure(float(np.clip(width, 6, 30)), float(np.clip(height, 4, 16)))
    axes = figure.add_subplot()
    widths = THINNEST_EDGE + (THICKEST_EDGE - THINNEST_EDGE) * _shares(groups.edge_bytes)
    cut = placement[groups.edges[:, 0]] != placement[groups.edges[:, 1]]
    lines = LineCollection(
        list(positions[groups.edges]),
        linewidths=widths.tolist(),
        colors=np.where(cut, "#333333", "#BBBBBB").tolist(),
        zorder=1,
    )
    axes.add_collection(lines)
    seconds = groups.compute_time[np.arange(problem.num_groups), placement]
    axes.scatter(
        positions[:, 0],
        positions[:, 1],
        s=SMALLEST_NODE + (LARGEST_NODE - SMALLEST_NODE) * _shares(seconds),
        c=[colour(device) for device in placement.tolist()],
        edgecolors="white",
        linewidths=0.5,
        zorder=2,
    )
    counts = np.bincount(placement, minlength=problem.num_devices).tolist()
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour(d), label=f"{name}: {counts[d]}")
        for d, name in enumerate(problem.cluster.device_names)
    ]
    axes.legend(handles=handles, loc="upper left", fontsize="small")
    sizes = f"{counted(problem.num_groups, 'group')} on {counted(problem.num_devices, 'device')}"
    axes.set_title(title or sizes)
    axes.margins(0.03, 0.08)
    axes.set_axis_off()
    return figure


def _shares(values: NDArray[np.generic]) -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64)
    return numbers / (numbers.max(initial=0.0) or 1.0)
