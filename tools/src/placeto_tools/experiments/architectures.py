"""``placeto experiment architectures``: what each part of the graph embedding is worth."""

from dataclasses import replace
from typing import Literal

from placeto_policy import Settings
from placeto_tools.experiments.paper import AGGREGATOR_OVER_FULL
from placeto_tools.experiments.paper import PARTITIONER_OVER_FULL
from placeto_tools.experiments.paper import SOURCE
from placeto_tools.experiments.plan import Experiment
from placeto_tools.experiments.plan import Page
from placeto_tools.experiments.plan import Plan
from placeto_tools.experiments.schemes import OPTIMIZED
from placeto_tools.experiments.schemes import optimized
from placeto_tools.experiments.schemes import without_simulated_features
from placeto_tools.experiments.statistics import Summary
from placeto_tools.experiments.variants import variants_on_family
from placeto_tools.experiments.wording import percent_over
from placeto_tools.plots.distributions import distributions_figure
from placeto_tools.tables import TextTable
from placeto_tools.tables import seconds_text

Embedding = Literal["message-passing", "simple-partitioner", "simple-aggregator"]
FULL: Embedding = "message-passing"
PARTITIONER: Embedding = "simple-partitioner"
AGGREGATOR: Embedding = "simple-aggregator"
TITLES = {
    FULL: "Full embedding",
    PARTITIONER: "Simple partitioner",
    AGGREGATOR: "Simple aggregator",
}
PAPER = {FULL: 0.0, PARTITIONER: PARTITIONER_OVER_FULL, AGGREGATOR: AGGREGATOR_OVER_FULL}
FIGURE = "distributions.png"


def architectures(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family: zero-shot with three embeddings."""
    variants: dict[str, Settings] = {
        embedding: replace(without_simulated_features(plan.training_settings), embedding=embedding)
        for embedding in TITLES
    }
    return variants_on_family(
        family_name,
        plan,
        variants,
        name="architectures",
        title=f"Graph embeddings on {family_name}",
        page=lambda summary: _page(summary, plan),
        beside=optimized,
    )


def _page(summary: Summary, plan: Plan) -> Page:
    columns = [
        "zero-shot with",
        ">runtime",
        ">over the full embedding",
        ">paper",
        ">over optimized",
    ]
    rows = [
        [
            title,
            summary.mean_cost(embedding).text(seconds_text),
            summary.mean_ratio(embedding, FULL).text(percent_over),
            percent_over(1 + PAPER[embedding]),
            summary.mean_ratio(embedding, OPTIMIZED).text(percent_over),
        ]
        for embedding, title in TITLES.items()
    ]
    rows.append(["Placeto optimized", summary.mean_cost(OPTIMIZED).text(seconds_text), "", "", ""])
    figure = distributions_figure(
        {title: summary.all_costs(embedding) for embedding, title in TITLES.items()}
        | {"Placeto optimized": summary.all_costs(OPTIMIZED)},
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Greedy zero-shot placements of {len(summary.graphs)} unseen graphs. In {SOURCE} those of "
        f"the partitioner are {100 * PARTITIONER_OVER_FULL:.0f} % and those of the aggregator "
        f"{100 * AGGREGATOR_OVER_FULL:.0f} % slower than with the full embedding.",
        TextTable("", columns, rows).markdown(),
        "Means over the unseen graphs; in brackets the least and the most of the seeds. These "
        "policies see nothing that is simulated, which would tell them much of what the "
        "embedding is to find out; the optimized ones do.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
