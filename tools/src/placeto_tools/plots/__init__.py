"""Drawings, as files: colours of devices and curves, and positions of groups in layers."""

import logging
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import GroupGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What matplotlib says of a home that it cannot write to, or of fonts, is nothing to act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
# Colours that people with colour blindness tell apart (Okabe and Ito 2008).
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000"),
    "#999999",
)
SWEEPS = 8  # that order the groups of each layer


def colour(index: int) -> str:
    """Return the colour of one of several things; after nine they repeat."""
    return COLOURS[index % len(COLOURS)]


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, at 100 dots per inch, without a screen."""
    from matplotlib import rcParams  # noqa: PLC0415 (pages use the colours alone)
    from matplotlib.figure import Figure  # noqa: PLC0415

    rcParams["svg.hashsalt"] = "placeto"  # so that equal figures have equal identifiers
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def layered_positions(graph: GroupGraph) -> NDArray[np.float64]:
    """Return float64[G, 2]: the layer of each group (Sugiyama et al. 1981), and its height there.

    The layer of a group is the number of edges on the longest path to it. A group without inputs,
    such as a weight, is one layer before its first reader. In each layer, groups are ordered by the
    mean height of their neighbours, so that fewer edges cross. A few passes go forwards and
    backwards. Heights are centred on 0.
    """
    import networkx as nx  # noqa: PLC0415 (it takes a while)

    groups = nx.DiGraph(graph.edges.tolist())
    groups.add_nodes_from(range(graph.num_groups))
    layer = np.zeros(graph.num_groups, np.int64)
    generations = [*nx.topological_generations(groups)]
    for index, members in enumerate(generations):
        layer[members] = index
    for group in generations[0] if generations else []:
        layer[group] = min((layer[reader] for reader in groups[group]), default=1) - 1
    neighbours = [[*nx.all_neighbors(groups, group)] for group in range(graph.num_groups)]
    layers = [np.flatnonzero(layer == index).tolist() for index in range(layer.max() + 1)]
    height = np.zeros(graph.num_groups)
    for members in layers:
        _spread(members, height)
    for sweep in range(SWEEPS):
        for members in layers if sweep % 2 == 0 else layers[::-1]:
            mean_heights = {g: height[neighbours[g] or [g]].mean() for g in members}
            _spread(sorted(members, key=lambda group: mean_heights[group]), height)
    return np.stack([layer.astype(np.float64), height], axis=1)


def _spread(members: list[int], height: NDArray[np.float64]) -> None:
    height[members] = np.arange(len(members)) - (len(members) - 1) / 2
