"""``placeto experiment simulator-curves``: learning on the simulator."""

from collections.abc import Sequence

import numpy as np

from placeto.errors import InputError
from placeto.texts import seconds_text, share_text
from placeto.trials.experiment import Experiment, Page
from placeto.trials.records import Placed
from placeto.trials.trials import Graph, Results, Trial
from placeto_experiments.paper.placing_tasks import LOWER_BOUND
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import name_of, source_maker
from placeto_experiments.paper.published import SOURCE
from placeto_experiments.paper.schemes import (
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
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import count_text, duration_text, markdown_table
from placeto_tools.plots.curves import curves_figure

SCHEMES = (OPTIMIZED, PUBLISHED_OPTIMIZED, RNN_OPTIMIZED)


def simulator_curves(sources: Sequence[str], plan: Plan) -> Experiment:
    """Return the experiment: Placeto and the RNN learn to place each graph."""
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
        page=lambda results: _page(results, names, plan),
    )


def _page(results: Results, names: Sequence[str], plan: Plan) -> Page:
    parts = [
        f"{SOURCE} show such curves on their simulator and on hardware, where they run closely "
        "together. These are on the simulator. As published: the paper's hyperparameters, and "
        f"{PLACEMENTS_AS_PUBLISHED} times as many placements. Runtimes are memory-penalised, and "
        "means over the seeds, in brackets the least and the most; curves are medians in a band "
        "from the least to the most, placements and seconds medians.",
        "No placement was run on hardware.",
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
            curves,
            {TITLES[scheme]: summary.costs(scheme, 0).item() for scheme in (SINGLE, LOWER_BOUND)},
            name,
        )
        parts += [f"## {name}", _table(summary), f"![Learning curves]({picture})"]
    return Page(parts, figures)


def _table(summary: Summary) -> str:
    return markdown_table(
        (*SCHEMES, SINGLE, LOWER_BOUND),
        {
            "scheme": TITLES.__getitem__,
            ">runtime": lambda scheme: summary.mean_cost(scheme).text(seconds_text),
            ">out of memory": lambda scheme: share_text(summary.out_of_memory(scheme)),
            ">placements": lambda scheme: count_text(summary.median_evaluations(scheme)),
            ">seconds": lambda scheme: duration_text(summary.median_seconds(scheme)),
        },
    )
