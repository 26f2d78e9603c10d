"""Figures of Addanki et al. (2019) that no experiment draws.

A placement of an unrolled network, and sampled graphs of a family::

    placeto build nmt-4 --cluster 4xk80 -o problem.json.gz
    placeto place problem.json.gz --placer pretrained -o placement.json
    python lab/paper_figures.py unrolled problem.json.gz placement.json -o nmt-4-placement.png
    python lab/paper_figures.py family nmt -o nmt-graphs.png
"""

import argparse
import re

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from placeto import read_problem
from placeto_graphs import (
    Phase,
    PlacementProblem,
    load_placement_of_any_level,
    load_problem,
)
from placeto_tools.plots import colour, layered_positions, new_figure
from placeto_workloads import family

NO_OPS = -1  # in a cell of the unrolled network
SAMPLED_GRAPHS = 4
STEP = re.compile(r"(.+)\.step(\d+)$")  # the scope of an unrolled layer at a time step


def unrolled(
    problem: PlacementProblem, placement: NDArray[np.int32]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return where each layer of an unrolled network runs at each time step.

    Parameters
    ----------
    problem
        Problem of a network whose scopes end with ``.step0``, ``.step1``, and so on.
    placement : int32[G]
        Device of each group.

    Returns
    -------
    list of text
        Names of L layers.
    int64[L, T]
        Device with most of the seconds of the forward ops; `NO_OPS` if there are none.
    """
    graph, devices = problem.graph, problem.expand(placement)
    seconds: dict[tuple[str, int], NDArray[np.float64]] = {}
    for op in np.flatnonzero(graph.phases == Phase.FORWARD).tolist():
        scope = STEP.match(graph.scopes[op])
        if scope:
            cell = seconds.setdefault((scope[1], int(scope[2])), np.full(problem.num_devices, 0.0))
            cell[devices[op]] += problem.compute_time[op, devices[op]]
    if not seconds:
        raise SystemExit("problem: expected scopes that end with .step0, .step1, ..., got none")
    layers = list(dict.fromkeys(layer for layer, _ in seconds))
    steps = 1 + max(step for _, step in seconds)
    cells = np.full((len(layers), steps), NO_OPS)
    for (layer, step), of_devices in seconds.items():
        cells[layers.index(layer), step] = of_devices.argmax()
    return layers, cells


def unrolled_figure(problem: PlacementProblem, placement: NDArray[np.int32], title: str) -> Figure:
    """Draw the layers of an unrolled network by time step, with a colour for each device."""
    layers, cells = unrolled(problem, placement)
    figure = new_figure(2.5 + 0.22 * cells.shape[1], 1.5 + 0.3 * len(layers))
    axes = figure.add_subplot()
    rows, steps = np.nonzero(cells != NO_OPS)
    colours = [colour(device) for device in cells[rows, steps].tolist()]
    axes.scatter(steps, rows, c=colours, marker="s", s=110)
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlabel("time step")
    axes.set_title(title)
    names = problem.cluster.device_names
    handles = [Patch(color=colour(index), label=name) for index, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def family_figure(name: str) -> Figure:
    """Draw the groups of four graphs of a family, in layers; areas are compute times."""
    members = family(name).training
    problems = [
        read_problem(f"{name}:{member.name.rpartition('-')[2]}", "2xk80")
        for member in members[:: max(1, len(members) // SAMPLED_GRAPHS)][:SAMPLED_GRAPHS]
    ]
    figure = new_figure(12, 2.5 * len(problems))
    panels = figure.subplots(len(problems), squeeze=False)[:, 0]
    for axes, problem in zip(panels, problems, strict=True):
        groups = problem.group_graph
        positions = layered_positions(groups)
        axes.add_collection(
            LineCollection(list(positions[groups.edges]), colors="#BBBBBB", linewidths=0.4)
        )
        share = groups.compute_time.mean(axis=1) / groups.compute_time.mean(axis=1).max()
        axes.scatter(*positions.T, s=4 + 60 * share, color=colour(0), zorder=2)
        axes.set_title(
            f"{problem.num_groups} groups of {problem.graph.num_ops:,} ops", fontsize="small"
        )
        axes.set_axis_off()
    figure.suptitle(f"{len(problems)} graphs of the family {name}")
    return figure


def main() -> None:
    """Draw one of the figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    unrolled_command = commands.add_parser("unrolled", help=unrolled_figure.__doc__)
    unrolled_command.add_argument("problem", help="problem of `placeto build`")
    unrolled_command.add_argument("placement", help="placement of `placeto place`")
    unrolled_command.add_argument("--title", help="title of the picture")
    family_command = commands.add_parser("family", help=family_figure.__doc__)
    family_command.add_argument("family", help="family of graphs, such as nmt")
    for command in (unrolled_command, family_command):
        command.add_argument("-o", "--output", required=True, help="picture to write, .png")
    options = parser.parse_args()
    if options.command == "family":
        figure = family_figure(options.family)
    else:
        whole = load_problem(options.problem)
        problem, placement = load_placement_of_any_level(options.placement, whole)
        title = options.title or f"{options.problem}, {options.placement}"
        figure = unrolled_figure(problem, placement, title)
    figure.savefig(options.output)


if __name__ == "__main__":
    main()
