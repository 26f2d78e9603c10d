"""``placeto experiment architectures``: what each part of the graph embedding is worth."""

from dataclasses import replace
from typing import Literal

from placeto_tools.experiments.experiment import Experiment
from placeto_tools.experiments.experiment import Page
from placeto_tools.experiments.experiment import Plan
from placeto_tools.experiments.paper import AGGREGATOR_OVER_FULL
from placeto_tools.experiments.paper import PARTITIONER_OVER_FULL
from placeto_tools.experiments.paper import SOURCE
from placeto_tools.experiments.schemes import OPTIMIZED
from placeto_tools.experiments.schemes import optimized
from placeto_tools.experiments.schemes import train_placeto
from placeto_tools.experiments.schemes import without_lookahead
from placeto_tools.experiments.schemes import zero_shot
from placeto_tools.experiments.sources import family_members
from placeto_tools.experiments.sources import makers_of_groupings
from placeto_tools.experiments.sources import makers_of_members
from placeto_tools.experiments.statistics import Summary
from placeto_tools.experiments.trials import Graph
from placeto_tools.experiments.trials import Results
from placeto_tools.experiments.trials import Trial
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
    training, test = family_members(family_name, plan)
    to_train_on = makers_of_groupings(training, plan)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for embedding in TITLES:
            settings = replace(without_lookahead(plan.settings), embedding=embedding)
            policy = train_placeto(embedding, tuple(map(Graph, to_train_on)), settings, plan, seed)
            trials.append(policy)
            trials += [zero_shot(policy, Graph(name), scheme=embedding) for name in test]
        trials += [optimized(Graph(name), plan, seed) for name in test]
    return Experiment(
        name="architectures",
        title=f"Graph embeddings on {family_name}",
        options={"family": family_name},
        problems={**to_train_on, **makers_of_members(test, plan)},
        trials=trials,
        page=lambda results: _page(results, test, plan),
    )


def _page(results: Results, test: list[str], plan: Plan) -> Page:
    summary = Summary(results, test, plan.seeds)
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
        f"{len(test)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Greedy zero-shot placements of {len(test)} unseen graphs. In {SOURCE} those of the "
        f"partitioner are {100 * PARTITIONER_OVER_FULL:.0f} % and those of the aggregator "
        f"{100 * AGGREGATOR_OVER_FULL:.0f} % slower than with the full embedding.",
        TextTable("", columns, rows).markdown(),
        "Means over the unseen graphs; in brackets the least and the most of the seeds. These "
        "policies do not look ahead, as the evaluator would then tell them much of what the "
        "embedding is to find out; the optimized ones do.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
