"""Learning curves: the best runtime so far by number of evaluations."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto.placing.evaluators import STEP
from placeto.trials.comparison import typical
from placeto.trials.trials import Problem
from placeto_tools.plots import colour, new_figure

LEVELS = ("single", "expert", "scotch")  # drawn beside the curves of the searches
Curve = NDArray[np.float64]  # [K, 2], evaluations and the best runtime so far


def curves_figure(
    curves: Mapping[str, Sequence[Curve]],
    levels: Mapping[str, float],
    title: str = "",
    label: str = "",
) -> Figure:
    """Draw learning curves: of several seeds the median, in a band from the least to the most.

    Curves are by placer, one for each seed; levels are runtimes without a search, drawn as lines.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for number, (name, of_seeds) in enumerate(curves.items()):
        if not of_seeds:  # no run of it came to a runtime
            continue
        places, best = _on_common_places(of_seeds)
        median, drawn = np.median(best, axis=0), colour(number)
        axes.step(places, median, where="post", color=drawn, label=name, linewidth=1.5)
        axes.plot(places[-1:], median[-1:], ".", color=drawn)
        if len(of_seeds) > 1:
            least, most = best.min(axis=0), best.max(axis=0)
            axes.fill_between(places, least, most, step="post", color=drawn, alpha=0.2, linewidth=0)
    for number, (name, runtime) in enumerate(levels.items()):
        axes.axhline(
            runtime, color=colour(len(curves) + number), linestyle=":", linewidth=1.2, label=name
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


def _on_common_places(
    curves: Sequence[Curve],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
