"""``placeto experiment simulator-curves``: learning on the simulator."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placeto_tools.errors import InputError
from placeto_tools.experiments.measured import read_measured_curve
from placeto_tools.experiments.paper import SOURCE
from placeto_tools.experiments.placing_tasks import LOWER_BOUND
from placeto_tools.experiments.plan import Experiment, Page, Plan
from placeto_tools.experiments.problem_makers import name_of, source_maker
from placeto_tools.experiments.records import Placed
from placeto_tools.experiments.schemes import (
    OPTIMIZED,
    PLACEMENTS_AS_PUBLISHED,
    PUBLISHED_OPTIMIZED,
    RNN_OPTIMIZED,
    SINGLE,
    TITLES,
    optimized,
    published_optimized,
    rnn_optimized,
    without_seed,
)
from placeto_tools.experiments.statistics import Summary
from placeto_tools.experiments.trials import Graph, Results, Trial
from placeto_tools.experiments.wording import count_text, duration_text
from placeto_tools.plots.curves import Curve, curves_figure
from placeto_tools.tables import TextTable, seconds_text, share_text

HARDWARE = "Measured on hardware"
SCHEMES = (OPTIMIZED, PUBLISHED_OPTIMIZED, RNN_OPTIMIZED)


def simulator_curves(
    sources: Sequence[str], plan: Plan, measured: Path | None = None
) -> Experiment:
    """Return the experiment: Placeto and the RNN learn to place each graph.

    A curve that was measured on hardware is drawn beside those of the one graph there is then.
    """
    hardware = None if measured is None else read_measured_curve(measured)
    if hardware is not None and len(sources) > 1:
        raise InputError(f"--measured: expected one source beside it, got {len(sources)}")
    names = [name_of(source) for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: expected sources of different names, got two of this one")
    trials: list[Trial] = []
    for name in names:
        trials += without_seed(Graph(name))
        for seed in plan.seeds:
            trials.append(optimized(Graph(name), plan, seed))
            trials.append(published_optimized(Graph(name), plan, seed))
            trials.append(rnn_optimized(Graph(name), plan.rnn_settings, seed))
    return Experiment(
        name="simulator-curves",
        title="Learning on the simulator",
        options={"sources": list(sources)},
        problems={
            name: source_maker(source, plan) for name, source in zip(names, sources, strict=True)
        },
        trials=trials,
        page=lambda results: _page(results, names, plan, hardware),
    )


def _page(results: Results, names: Sequence[str], plan: Plan, hardware: Curve | None) -> Page:
    parts = [
        f"{SOURCE} show such curves on their simulator and on hardware, where they run closely "
        "together. These are on the simulator. As published: the paper's hyperparameters, and "
        f"{PLACEMENTS_AS_PUBLISHED} times as many placements. Runtimes are memory-penalised, and "
        "means over the seeds, in brackets the least and the most; curves are medians in a band "
        "from the least to the most, placements and seconds medians.",
        "No placement was run on hardware; `--measured FILE` adds a curve of such runs."
        if hardware is None
        else f"{HARDWARE}: from the file that was given with `--measured`.",
    ]
    figures = {}
    for name in names:
        summary = Summary(results, [name], plan.seeds)
        picture = f"{name}.png"
        curves = {
            TITLES[scheme]: [
                np.array(results.record(Placed, scheme, name, seed).curve, np.float64)
                for seed in plan.seeds
            ]
            for scheme in SCHEMES
        }
        figures[picture] = curves_figure(
            curves if hardware is None else {**curves, HARDWARE: [hardware]},
            {TITLES[scheme]: summary.costs(scheme, 0).item() for scheme in (SINGLE, LOWER_BOUND)},
            name,
        )
        parts += [f"## {name}", _table(summary).markdown(), f"![Learning curves]({picture})"]
    return Page(parts, figures)


def _table(summary: Summary) -> TextTable:
    rows = [
        [
            TITLES[scheme],
            summary.mean_cost(scheme).text(seconds_text),
            share_text(summary.out_of_memory(scheme)),
            count_text(summary.median_evaluations(scheme)),
            duration_text(summary.median_seconds(scheme)),
        ]
        for scheme in (*SCHEMES, SINGLE, LOWER_BOUND)
    ]
    return TextTable("", ["scheme", ">runtime", ">out of memory", ">placements", ">seconds"], rows)
