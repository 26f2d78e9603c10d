"""The picture of the README: a placement, its simulated step, and learning curves.

    placeto compare inception-v3 --gpus 2 --placers single,expert,rnn,placeto -o results
    python lab/front_picture.py results -o docs/front.png

The comparison takes about 90 CPU seconds.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from placeto.outputs import read_json
from placeto.trials.records import Problem
from placeto.trials.tables import RESULTS, ComparisonReport
from placeto_graphs import PlacementProblem, load_problem
from placeto_simulator import Simulator, Timeline
from placeto_tools.plots import colour, layered_positions, new_figure

PLACER = "placeto"  # whose placement is drawn
CURVES = {"placeto": "Placeto", "rnn": "RNN"}
LINE = "#B7BDC4"  # thin lines
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": LINE,
}
DOTS_PER_INCH = 150


def draw_graph(axes: Axes, problem: PlacementProblem, placement: NDArray[np.int32]) -> None:
    """Draw groups in layers, in the colours of their devices; areas are compute times."""
    groups = problem.group_graph
    positions = layered_positions(groups)
    edges = LineCollection(list(positions[groups.edges]), colors=LINE, linewidths=0.6, zorder=1)
    axes.add_collection(edges)
    seconds = groups.compute_time[np.arange(problem.num_groups), placement]
    colours = [colour(device) for device in placement.tolist()]
    across, down = positions.T
    areas = 12 + 160 * seconds / seconds.max()
    axes.scatter(across, down, s=areas, c=colours, lw=0, zorder=2)
    names = problem.cluster.device_names
    handles = [Patch(color=colour(index), label=name) for index, name in enumerate(names)]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(names),
        frameon=False,
        handlelength=1,
    )
    axes.set_title("Placement: the device of each group of ops", loc="left")
    axes.margins(0.01, 0.06)
    axes.set_axis_off()


def draw_timeline(axes: Axes, timeline: Timeline) -> None:
    """Draw when each device runs an op, and when its bus carries a tensor."""
    count = timeline.problem.num_devices
    bars = [
        (timeline.op_start, timeline.op_end, timeline.op_device, 0.0, 0.4),
        (timeline.transfer_start, timeline.transfer_sent, timeline.transfer_link, count, 0.25),
    ]
    for start, end, device, first_row, height in bars:
        low, high = first_row + device - height, first_row + device + height
        corners = np.stack([start, low, start, high, end, high, end, low], axis=1)
        colours = [colour(index) for index in device.tolist()]
        axes.add_collection(PolyCollection(list(corners.reshape(-1, 4, 2)), facecolors=colours))
    names = timeline.problem.cluster.device_names
    axes.set_yticks(range(2 * count), [*names, *(f"bus of {name}" for name in names)])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(2 * count - 0.5, -0.6)
    axes.set_xlim(0, timeline.runtime)
    axes.set_xlabel("seconds")
    axes.set_title(f"Training step, simulated: {timeline.runtime:.3f} s", loc="left")


def draw_curves(axes: Axes, problem: Problem) -> None:
    """Draw the best step so far of policies that learn, and levels of what does not."""
    runtimes = {name: problem.find(name).runs[0].runtime for name in ("single", "expert")}
    levels = {
        "single GPU": runtimes["single"],
        "expert": runtimes["expert"],
        "lower bound": problem.lower_bound,
    }
    for index, (name, title) in enumerate(CURVES.items()):
        curve = np.array(problem.find(name).runs[0].curve, np.float64)
        axes.step(*curve.T, where="post", color=colour(2 + index), linewidth=1.8)
        text: dict[str, Any] = {
            "color": colour(2 + index),
            "weight": "bold",
            "ha": "right",
            "va": "top",
        }
        axes.annotate(title, curve[-1], (0, -4), textcoords="offset points", **text)
    for title, runtime in levels.items():
        if runtime is None:
            continue
        axes.axhline(runtime, color=LINE, linestyle="--", linewidth=1, zorder=0)
        place = (0.02, runtime), (0, 3), ("axes fraction", "data"), "offset points"
        axes.annotate(title, *place)
    axes.set_xscale("log")
    axes.set_xlim(left=100)
    axes.set_xlabel("evaluations")
    axes.set_title("Best step so far, seconds", loc="left")


def front_picture(problem: PlacementProblem, report: Problem) -> Figure:
    """Return the picture of a comparison."""
    placement = np.array(report.find(PLACER).runs[0].placement, np.int32)
    figure = new_figure(9, 5)
    panels = figure.subplot_mosaic(
        [["graph", "graph"], ["step", "curves"]], height_ratios=[4, 3], width_ratios=[3, 2]
    )
    draw_graph(panels["graph"], problem, placement)
    draw_timeline(panels["step"], Simulator(problem, num_threads=1).timeline(placement))
    draw_curves(panels["curves"], report)
    for name in ("step", "curves"):
        panels[name].spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="folder of `placeto compare`")
    parser.add_argument("-o", "--output", required=True, help="picture to write")
    options = parser.parse_args()
    comparison = read_json(options.results / RESULTS, ComparisonReport, "`placeto compare`")
    (report,) = comparison.problems
    problem = load_problem(options.results / "problems" / f"{report.stem}.json.gz")
    with rc_context(STYLE):
        front_picture(problem, report).savefig(options.output, dpi=DOTS_PER_INCH)


if __name__ == "__main__":
    main()
