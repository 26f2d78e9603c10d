"""Figures of a step: its placement in layers, its timeline with memory; and learning curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from placeto.placing.evaluators import STEP
from placeto.trials.records import Problem
from placeto.trials.tables import typical
from placeto_graphs import Cluster, Phase, PlacementProblem
from placeto_simulator import Timeline
from placeto_tools.plots import colour, layered_positions, new_figure

SMALLEST_NODE, LARGEST_NODE = 15.0, 500.0  # areas in square points
THINNEST_EDGE, THICKEST_EDGE = 0.3, 4.0  # points
BAR = 0.8  # of the height of a row
GIGABYTE = 1e9
BESIDE: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1), "fontsize": "small"}  # of a legend
LEVELS = ("single", "expert", "scotch")  # drawn beside the curves of the searches
Curve = NDArray[np.float64]  # [K, 2], evaluations and the best runtime so far


def placement_figure(problem: PlacementProblem, placement: NDArray[np.int32], title: str) -> Figure:
    """Draw the groups of a placement int32[G], as Addanki et al. (2019) do, in a row a device."""
    groups = problem.group_graph
    layers, heights = layered_positions(groups).T
    rows, centres = _device_rows(layers, heights, placement, problem.num_devices)
    positions = np.stack([layers, rows], axis=1)
    width, height = 0.22 * (layers.max() + 1) + 2, 0.5 * (np.ptp(rows) + 1) + 1.5
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
    names = problem.cluster.device_names
    axes.set_yticks(
        centres, [f"{name}: {count}" for name, count in zip(names, counts, strict=True)]
    )
    axes.set_title(title)
    axes.margins(0.03, 0.08)
    axes.invert_yaxis()
    axes.set_frame_on(False)
    axes.tick_params(left=False)
    axes.xaxis.set_visible(False)
    return figure


def _device_rows(
    layers: NDArray[np.float64],
    heights: NDArray[np.float64],
    placement: NDArray[np.int32],
    num_devices: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64[G], rows of groups by device and height, and float64[D], their centres."""
    places = (layers * num_devices + placement).astype(np.int64)
    order = np.lexsort((heights, places))
    _, first, sizes = np.unique(places[order], return_index=True, return_counts=True)
    offsets = np.empty(len(order))
    offsets[order] = np.arange(len(order)) - np.repeat(first + (sizes - 1) / 2, sizes)
    reach = np.full(num_devices, 0.5)
    np.maximum.at(reach, placement, np.abs(offsets) + 0.5)
    centres = 2 * np.cumsum(reach) - reach + np.arange(num_devices)
    return centres[placement] + offsets, centres


def _shares(values: NDArray[np.generic]) -> NDArray[np.float64]:
    amounts = np.asarray(values, np.float64)
    return amounts / (amounts.max(initial=0.0) or 1.0)


def timeline_figure(timeline: Timeline, title: str) -> Figure:
    """Draw a Gantt chart of devices and links, and the memory of each device below."""
    cluster = timeline.problem.cluster
    rows = cluster.num_devices + cluster.num_links
    figure = new_figure(14, 3.5 + 0.35 * rows)
    chart, memory = figure.subplots(2, 1, sharex=True, height_ratios=[max(rows, 3), 4])
    _draw_bars(chart, timeline)
    _draw_memory(memory, timeline)
    chart.set_title(title)
    return figure


def _draw_bars(axes: Axes, timeline: Timeline) -> None:
    phases = timeline.problem.graph.phases
    names, device_rows, link_rows = chart_rows(timeline.problem.cluster)
    op_rows = device_rows[timeline.op_device]
    bars = [
        (timeline.op_start[chosen], timeline.op_end[chosen], op_rows[chosen])
        for chosen in (phases == phase for phase in Phase)
    ]
    sent_over = link_rows[timeline.transfer_link]
    bars.append((timeline.transfer_start, timeline.transfer_sent, sent_over))
    for index, (start, end, row) in enumerate(bars):
        low, high = row - BAR / 2, row + BAR / 2
        corners = np.stack([start, low, start, high, end, high, end, low], axis=1)
        boxes = list(corners.reshape(-1, 4, 2))
        axes.add_collection(PolyCollection(boxes, facecolors=colour(index), edgecolors="none"))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, max(timeline.runtime, 1e-9))
    kinds = [*(phase.name.lower() for phase in Phase), "transfer"]
    axes.legend(
        handles=[Patch(color=colour(index), label=kind) for index, kind in enumerate(kinds)],
        **BESIDE,
    )


def chart_rows(cluster: Cluster) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return labels of rows, each device's row, and each link's: after its only sender, or last."""
    count = cluster.num_devices
    senders = [np.unique(pairs[:, 0]) for pairs in cluster.link_pairs]
    owners = [int(sources[0]) if len(sources) == 1 else count for sources in senders]
    order = np.lexsort(([0] * count + [1] * len(owners), [*range(count), *owners]))
    labels = [*cluster.device_names, *cluster.link_names]
    rows = np.argsort(order)
    return [labels[item] for item in order], rows[:count], rows[count:]


def _draw_memory(axes: Axes, timeline: Timeline) -> None:
    devices = timeline.problem.cluster.devices
    for index, device in enumerate(devices):
        times, num_bytes = timeline.memory(index)
        axes.step(times, num_bytes / GIGABYTE, where="post", color=colour(index), label=device.name)
        axes.axhline(
            device.memory_bytes / GIGABYTE, color=colour(index), linestyle="--", linewidth=0.8
        )
    peak = float(timeline.peak_memory.max()) / GIGABYTE
    limits = [device.memory_bytes / GIGABYTE for device in devices]
    near = [limit for limit in limits if limit < 4 * peak]  # others would flatten the curves
    axes.set_ylim(0, 1.1 * max([peak, *near], default=1.0) or 1.0)
    axes.set_ylabel("memory, GB")
    axes.set_xlabel("seconds")
    axes.legend(**BESIDE)


def curves_figure(
    curves: Mapping[str, Sequence[Curve]],
    levels: Mapping[str, float],
    title: str = "",
    label: str = "",
) -> Figure:
    """Draw learning curves: of several seeds the median, in a band; and levels without a search."""
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for index, (name, of_seeds) in enumerate(curves.items()):
        if not of_seeds:  # no run of it came to a runtime
            continue
        places, best = _on_common_places(of_seeds)
        median, drawn = np.median(best, axis=0), colour(index)
        axes.step(places, median, where="post", color=drawn, label=name, linewidth=1.5)
        axes.plot(places[-1:], median[-1:], ".", color=drawn)
        if len(of_seeds) > 1:
            lowest, highest = best.min(axis=0), best.max(axis=0)
            axes.fill_between(
                places, lowest, highest, step="post", color=drawn, alpha=0.2, linewidth=0
            )
    for index, (name, runtime) in enumerate(levels.items()):
        axes.axhline(
            runtime, color=colour(len(curves) + index), linestyle=":", linewidth=1.2, label=name
        )
    axes.set_xscale("log")
    if axes.dataLim.y0 > 0:  # else the first values would flatten the rest
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:.4g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
    axes.set_xlabel("evaluations")
    axes.set_ylabel(label or "best memory-penalised runtime, seconds")
    axes.set_title(title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    return figure


def _on_common_places(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64[K] placements at which all curves are known, and float64[seeds, K] of them."""
    places = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    places = places[places >= max(curve[0, 0] for curve in curves)]
    rows = [curve[np.searchsorted(curve[:, 0], places, side="right") - 1, 1] for curve in curves]
    return np.maximum(places, 1), np.stack(rows)


def comparison_figure(report: Problem) -> Figure:
    """Return the learning curves of the searches on one problem, and the levels of others."""
    curves: dict[str, list[Curve]] = {}
    levels = {"lower bound": report.lower_bound} if report.lower_bound else {}
    for placer in report.placers:
        of_seeds = [_known(run.curve) for run in placer.runs]
        runtime = typical(placer, "runtime")
        if placer.searches:
            curves[placer.title] = [curve for curve in of_seeds if len(curve)]
        elif placer.name in LEVELS and np.isfinite(runtime):
            levels[placer.title] = runtime
    label = "" if report.objective == STEP.objective else f"best {report.objective}, {report.unit}"
    return curves_figure(curves, levels, f"{report.source} on {report.cluster}", label)


def _known(rows: Sequence[tuple[float, float | None]]) -> np.ndarray[tuple[int, int]]:
    return np.array([row for row in rows if row[1] is not None], np.float64).reshape(-1, 2)
