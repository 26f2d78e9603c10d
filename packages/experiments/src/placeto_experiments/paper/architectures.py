"""``placeto experiment architectures``: the effect of each part of the graph embedding."""

from dataclasses import replace
from typing import Literal

from placeto.texts import TextTable, seconds_text
from placeto.trials.trials import Experiment, Page, Trial
from placeto_experiments.paper.figures import distributions_figure
from placeto_experiments.paper.placers import (
    PAPER_UPDATES,
    TRAINED,
    paper_settings,
    train_placeto,
    trained_on_graph,
    without_simulated_features,
    zero_shot,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import family_problems
from placeto_experiments.paper.published import AGGREGATOR_OVER_FULL, PARTITIONER_OVER_FULL, SOURCE
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import percent_over
from placeto_policy import Settings

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
IN_PAPER = "paper-"  # prefix of an embedding in the paper configuration
FIGURE = "distributions.png"


def architectures(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family.

    A policy with each of three embeddings is trained on graphs of the family. It places unseen ones
    greedily.
    """
    usual = without_simulated_features(plan.training_settings)
    variants: dict[str, Settings] = {}
    for embedding in TITLES:
        variants[embedding] = replace(usual, embedding=embedding)
        variants[IN_PAPER + embedding] = replace(paper_settings(plan), embedding=embedding)
    family = family_problems(family_name, plan)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for name, settings in variants.items():
            trials.append(
                train_placeto(name, family.training, settings, seed, validation=family.validation)
            )
            trials += [zero_shot(name, graph, seed, label=name) for graph in family.test]
        trials += [trained_on_graph(graph, plan, seed) for graph in family.test]
    names = [graph.name for graph in family.test]
    return Experiment(
        name="architectures",
        title=f"Graph embeddings on {family_name}",
        options={"family": family_name},
        problems=family.makers,
        trials=trials,
        page=lambda results: _page(Summary(results, names, plan.seeds), plan),
    )


def _page(summary: Summary, plan: Plan) -> Page:
    columns = [
        *("embedding", "configuration", ">runtime", ">relative to full embedding", ">paper"),
        ">relative to trained on the graph",
    ]
    configurations = (("", "default"), (IN_PAPER, "paper"))
    rows = [
        [
            title,
            configuration,
            summary.mean_cost(prefix + embedding).text(seconds_text),
            summary.mean_ratio(prefix + embedding, prefix + FULL).text(percent_over),
            percent_over(1 + PAPER[embedding]) if prefix else "",
            summary.mean_ratio(prefix + embedding, TRAINED).text(percent_over),
        ]
        for prefix, configuration in configurations
        for embedding, title in TITLES.items()
    ]
    trained = summary.mean_cost(TRAINED).text(seconds_text)
    rows.append(["Trained on the graph", "default", trained, "", "", ""])
    figure = distributions_figure(
        {
            f"{title}, {configuration} configuration": summary.all_costs(prefix + embedding)
            for prefix, configuration in configurations
            for embedding, title in TITLES.items()
        }
        | {"Trained on the graph": summary.all_costs(TRAINED)},
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Simulated runtimes of greedy zero-shot placements of {len(summary.graphs)} unseen "
        f"graphs. In {SOURCE} the partitioner is {100 * PARTITIONER_OVER_FULL:.0f} % slower than "
        f"the full embedding, and the aggregator {100 * AGGREGATOR_OVER_FULL:.0f} %.",
        TextTable("", columns, rows).markdown(),
        "Memory-penalised runtimes: means over the unseen graphs, with the least and the most of "
        "the seeds in brackets. Zero-shot policies were trained on other graphs, each at "
        f"{plan.scale.number('granularities')} granularities. They read no simulated features, "
        "which would hide the effect of the embedding. The policies that were trained on the graph "
        "read them.",
        f"The paper configuration has the paper's hyperparameters and {PAPER_UPDATES} times as "
        "many updates. It keeps the policy after the last of them.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
