"""What pages of experiments have in common: means over graphs, numbers as texts, and figures."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placeto.texts import TextTable, seconds_text, share_text
from placeto.trials.records import Outcome, Placed, evaluations_until
from placeto.trials.tables import NEVER, NOTHING
from placeto.trials.trials import Results
from placeto_experiments.paper.plan import PAPER_EVALUATIONS, PAPER_UPDATES
from placeto_experiments.paper.published import SOURCE
from placeto_tools.plots import colour, new_figure

RUNTIME = "memory-penalised runtime, seconds"
ENTROPY = "mean entropy of a step, nats"
# Greatest differences from the runtimes of a single GPU, as fractions, of a collapsed policy: of
# the mean over graphs, and on each. It may still move groups that take no time.
COLLAPSED_ON_AVERAGE, COLLAPSED_ON_EACH = 0.002, 0.02
ratio_text = "{:.3f}".format


def percent_over(ratio: float) -> str:
    """Return the ratio of two runtimes as a percentage above or below 1.

    Examples
    --------
    >>> percent_over(1.0456), percent_over(0.98), percent_over(0.9999)
    ('+4.6 %', '-2.0 %', '+0.0 %')
    """
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # no negative zero


def duration_text(seconds: float) -> str:
    """Return a duration; infinity is never."""
    return NEVER if np.isinf(seconds) else seconds_text(seconds)


def count_text(count: float) -> str:
    """Return a number of evaluations or updates: a dash for NaN, never for infinity.

    Examples
    --------
    >>> count_text(12345.0), count_text(float("inf"))
    ('12,345', 'never')
    """
    if np.isinf(count):
        return NEVER
    return NOTHING if np.isnan(count) else f"{count:,.0f}"


def paragraphs(name: str, **fields: Any) -> list[str]:
    """Return the paragraphs of one of the texts beside this module, but for empty ones."""
    text = (files(__package__) / "texts" / f"{name}.md").read_text("utf-8")
    lines = re.sub(r"(?<=\S)\n *(?=[^\s-])", " ", text)  # a paragraph, or an item, is a line
    filled = lines.format(
        source=SOURCE,
        paper_updates=PAPER_UPDATES,
        paper_evaluations=PAPER_EVALUATIONS,
        **fields,
    )
    return [paragraph for paragraph in filled.strip().split("\n\n") if paragraph]


def table(columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown; its headings are separated by bars, ``>`` means numbers."""
    return TextTable("", columns.split("|"), list(rows)).markdown()


def spread(values: Iterable[float], text_of: Callable[[float], str]) -> str:
    """Return the mean of a number for each seed, and the least and the most if they differ.

    Examples
    --------
    >>> spread([1.0, 3.0, 2.0], "{:.1f}".format)
    '2.0 (1.0 to 3.0)'
    """
    of_seeds = list(values)
    minimum, maximum = min(of_seeds), max(of_seeds)
    mean = text_of(float(np.mean(of_seeds)))
    return mean if minimum == maximum else f"{mean} ({text_of(minimum)} to {text_of(maximum)})"


@dataclass(frozen=True)
class Summary:
    """Results of placers on some graphs with some seeds."""

    results: Results
    graphs: Sequence[str]
    seeds: Sequence[int]

    def values(self, placer: str, seed: int, field: str = "cost") -> NDArray[np.float64]:
        """Return float64[G], a field of the outcome on each graph; infinity for None."""
        records = [self.results.record(Outcome, placer, graph, seed) for graph in self.graphs]
        field_values = [getattr(record, field) for record in records]
        return np.array([np.inf if value is None else value for value in field_values], np.float64)

    def all_values(self, placer: str, field: str = "cost") -> NDArray[np.float64]:
        """Return them on all graphs with all seeds."""
        return np.concatenate([self.values(placer, seed, field) for seed in self.seeds])

    def median(self, placer: str, field: str) -> float:
        """Return the median of a field of the outcome."""
        return float(np.median(self.all_values(placer, field)))

    def mean_cost(self, placer: str) -> list[float]:
        """Return the mean over the graphs of the memory-penalised runtime."""
        return [self.values(placer, seed).mean() for seed in self.seeds]

    def mean_ratio(self, placer: str, reference: str) -> list[float]:
        """Return the mean over the graphs of the ratio of two placers' runtimes."""
        return [
            (self.values(placer, seed) / self.values(reference, seed)).mean() for seed in self.seeds
        ]

    def collapsed(self, placer: str, single: "NDArray[np.float64] | None" = None) -> list[int]:
        """Return the seeds with which a policy places as a single GPU does.

        Parameters
        ----------
        placer
            Name of the placer of the policy.
        single : float64[G] or float64[1]
            Runtime of a single GPU on each graph, s; by default that of the placer ``single``.
        """
        seeds = []
        for seed in self.seeds:
            reference = self.values("single", seed) if single is None else single
            differences = self.values(placer, seed) / reference - 1
            if (
                np.abs(differences).mean() <= COLLAPSED_ON_AVERAGE
                and np.abs(differences).max() <= COLLAPSED_ON_EACH
            ):
                seeds.append(seed)
        return seeds

    def where_some_fit(self, placers: Sequence[str]) -> "Summary":
        """Return the summary of the graphs of which some placer found a placement that fits."""
        fits_of_runs = [
            self.values(placer, seed, "fits") for placer in placers for seed in self.seeds
        ]
        some_fit = np.any(fits_of_runs, axis=0)
        fitting_graphs = [graph for graph, fits in zip(self.graphs, some_fit, strict=True) if fits]
        return replace(self, graphs=fitting_graphs)

    def reached(self, search: str, target: str) -> tuple[float, float, float]:
        """Return when a search was as fast as another placer at its end.

        The result is the share of graphs and seeds on which it was, and the median evaluations and
        seconds until then. These are infinite if it never was, or does not fit the memory at its
        end. Seconds are taken as proportional to evaluations.
        """
        reached_at = []
        for graph in self.graphs:
            for seed in self.seeds:
                run = self.results.record(Placed, search, graph, seed)
                goal = replace(self, graphs=[graph]).values(target, seed).item()
                evaluations = evaluations_until(run, goal)
                reached_at.append((evaluations, evaluations / run.evaluations * run.seconds))
        evaluations, seconds = np.median(reached_at, axis=0).tolist()
        return float(np.isfinite(reached_at)[:, 0].mean()), evaluations, seconds


def reaching_tables(
    summary: Summary,
    searches: Sequence[str],
    targets: Sequence[str],
    titles: Mapping[str, str],
) -> str:
    """Return when searches were as fast as other placers at their ends, as three tables.

    A search has a row, and a target a column: the share of graphs and seeds on which it was, and
    the median evaluations and seconds until then.
    """
    reached = {
        (search, target): summary.reached(search, target)
        for search in searches
        for target in targets
        if search != target
    }
    texts = {"Share": share_text, "Evaluations": count_text, "CPU seconds": duration_text}
    sections = []
    for index, (title, text_of) in enumerate(texts.items()):
        rows = [
            [
                titles[search],
                *(
                    text_of(reached[search, target][index]) if search != target else ""
                    for target in targets
                ),
            ]
            for search in searches
        ]
        heads = "|>".join(["search", *(titles[target] for target in targets)])
        sections += [f"{title} until as fast as", table(heads, rows)]
    return "\n\n".join(sections)


def distributions_figure(
    runtimes: Mapping[str, NDArray[np.float64]], title: str, reference: str | None = None
) -> Figure:
    """Draw the cumulative distribution of the runtimes of each placer, in seconds.

    Beside it are the ratios to the runtimes of one placer on the same graphs, if there is one.
    """
    panels = {RUNTIME: runtimes}
    if reference is not None:
        ratios = {name: seconds / runtimes[reference] for name, seconds in runtimes.items()}
        panels[f"ratio to {reference}, on the same graph"] = ratios
    figure = new_figure(9 if reference is None else 13, 5.5)
    panels_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (label, values) in zip(panels_axes, panels.items(), strict=True):
        for index, (name, observed) in enumerate(values.items()):
            width, style = 2 if index < 2 else 1.3, "-" if index < 4 else "--"
            axes.ecdf(observed, label=name, color=colour(index), linewidth=width, linestyle=style)
        axes.set_xlabel(label)
        # Slow placers would squeeze the others into a corner.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="x", which="both", labelsize="small", rotation=45)
    panels_axes[0].set_ylabel("fraction of the placements")
    figure.legend(*panels_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(title)
    return figure


def collapse_remark(seeds_of_policies: Mapping[str, Sequence[int]]) -> str:
    """Return a paragraph that names policies which place as a single GPU does; nothing if none.

    Examples
    --------
    >>> collapse_remark({"RNN": [0, 2], "Placeto": []})
    '**Collapsed to a single GPU** (runtimes within 0.2 % of its own): RNN (seeds 0, 2).'
    """
    policies = [
        f"{title} ({'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))})"
        for title, seeds in seeds_of_policies.items()
        if seeds
    ]
    if not policies:
        return ""
    return (
        "**Collapsed to a single GPU** (runtimes within "
        f"{100 * COLLAPSED_ON_AVERAGE:g} % of its own): {', '.join(policies)}."
    )


def updates_curve(values: Sequence[float]) -> NDArray[np.float64]:
    """Return float64[K, 2], rows of the number of an update and its value."""
    return np.array(list(enumerate(values, start=1)), np.float64)


def bands_figure(
    curves: Mapping[str, Sequence[NDArray[np.float64]]],
    across: str,
    title: str,
    ordinate: str = RUNTIME,
) -> Figure:
    """Draw the mean over seeds of each curve, in a band from the least to the most.

    Curves are by name, float64[K, 2] for each seed: rows of a place and a value. ``across`` and
    ``ordinate`` are the labels of places and values. Seeds may have other places. In between,
    curves are straight.
    """
    figure = new_figure(9, 5.5)
    axes = figure.add_subplot()
    for index, (name, seed_curves) in enumerate(curves.items()):
        places = np.unique(np.concatenate([curve[:, 0] for curve in seed_curves]))
        values = np.stack([np.interp(places, curve[:, 0], curve[:, 1]) for curve in seed_curves])
        minimum, maximum, line_colour = values.min(axis=0), values.max(axis=0), colour(index)
        axes.plot(places, values.mean(axis=0), color=line_colour, label=name)
        axes.fill_between(places, minimum, maximum, color=line_colour, alpha=0.2, linewidth=0)
    axes.set_xlabel(across)
    axes.set_ylabel(ordinate)
    axes.set_title(title)
    axes.legend(fontsize="small")
    return figure
