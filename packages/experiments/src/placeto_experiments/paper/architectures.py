"""``placeto experiment architectures``: what each part of the graph embedding is worth."""

from dataclasses import replace
from typing import Literal

from placeto.texts import TextTable, seconds_text
from placeto.trials.trials import Experiment, Page, Trial
from placeto_experiments.paper.figures import distributions_figure
from placeto_experiments.paper.placers import (
    OPTIMIZED,
    UPDATES_AS_PUBLISHED,
    as_published,
    optimized,
    train_placeto,
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
PUBLISHED = "published-"  # stands before the embedding
FIGURE = "distributions.png"


def architectures(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family: zero-shot with three embeddings.

    A policy of each kind is trained on the family, and places unseen graphs of it greedily.
    """
    ours = without_simulated_features(plan.training_settings)
    variants: dict[str, Settings] = {}
    for embedding in TITLES:
        variants[embedding] = replace(ours, embedding=embedding)
        variants[PUBLISHED + embedding] = replace(as_published(plan), embedding=embedding)
    family = family_problems(family_name, plan)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for placer, settings in variants.items():
            trials.append(
                train_placeto(placer, family.training, settings, seed, validation=family.validation)
            )
            trials += [zero_shot(placer, graph, seed, label=placer) for graph in family.test]
        trials += [optimized(graph, plan, seed) for graph in family.test]
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
        "zero-shot with",
        "method",
        ">runtime",
        ">over the full embedding",
        ">paper",
        ">over optimized",
    ]
    rows = [
        [
            title,
            method,
            summary.mean_cost(whose + embedding).text(seconds_text),
            summary.mean_ratio(whose + embedding, whose + FULL).text(percent_over),
            percent_over(1 + PAPER[embedding]) if whose else "",
            summary.mean_ratio(whose + embedding, OPTIMIZED).text(percent_over),
        ]
        for whose, method in (("", "default"), (PUBLISHED, "paper configuration"))
        for embedding, title in TITLES.items()
    ]
    optimum = summary.mean_cost(OPTIMIZED).text(seconds_text)
    rows.append(["Placeto optimized", "default", optimum, "", "", ""])
    figure = distributions_figure(
        {
            f"{title}{method}": summary.all_costs(whose + embedding)
            for whose, method in (("", ""), (PUBLISHED, ", paper configuration"))
            for embedding, title in TITLES.items()
        }
        | {"Placeto optimized": summary.all_costs(OPTIMIZED)},
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Greedy zero-shot placements of {len(summary.graphs)} unseen graphs. In {SOURCE} those of "
        f"the partitioner are {100 * PARTITIONER_OVER_FULL:.0f} % and those of the aggregator "
        f"{100 * AGGREGATOR_OVER_FULL:.0f} % slower than with the full embedding.",
        TextTable("", columns, rows).markdown(),
        "Memory-penalised runtimes, means over the unseen graphs; in brackets the least and the "
        "most of the seeds. All policies but the optimized ones were trained on each graph in "
        f"{plan.scale.number('groupings')} granularities. They read nothing that is simulated, as "
        "the embedding is to find that out; the optimized ones do. The paper configuration has the "
        f"paper's hyperparameters, {UPDATES_AS_PUBLISHED} times as many updates, and the policy "
        "after the last of them.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
