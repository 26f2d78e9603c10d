"""``placeto experiment architectures``: the effect of each part of the graph embedding."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placeto.texts import seconds_text
from placeto.trials.trials import Experiment, Page, Trial
from placeto_experiments.paper.pages import (
    Summary,
    collapse_remark,
    distributions_figure,
    paragraphs,
    percent_over,
    spread,
    table,
)
from placeto_experiments.paper.placers import place, training, trial
from placeto_experiments.paper.plan import (
    Plan,
    family_problems,
    without_simulated_features,
)
from placeto_experiments.paper.published import AGGREGATOR_OVER_FULL, PARTITIONER_OVER_FULL
from placeto_experiments.paper.tasks import PlaceZeroShot

# Titles, and runtimes in the paper relative to the first.
EMBEDDINGS: Mapping[Any, tuple[str, float]] = {
    "message-passing": ("Full embedding", 0.0),
    "simple-partitioner": ("Simple partitioner", PARTITIONER_OVER_FULL),
    "simple-aggregator": ("Simple aggregator", AGGREGATOR_OVER_FULL),
}
# Prefixes of the names of policies, and their configurations
CONFIGURATIONS = {"": "default", "paper-": "paper"}
FIGURE = "distributions.png"


def architectures(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family.

    A policy with each of three embeddings is trained on graphs of the family. It places unseen ones
    greedily.
    """
    default_settings = without_simulated_features(plan.training_settings)
    family = family_problems(family_name, plan)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for prefix, settings, graphs in (
            ("", default_settings, family.training),
            ("paper-", plan.paper_settings, family.whole),
        ):
            for embedding in EMBEDDINGS:
                name = prefix + embedding
                embedding_settings = replace(settings, embedding=embedding)
                trials.append(training(name, graphs, embedding_settings, seed, family.validation))

                trials += [
                    trial(PlaceZeroShot, name, graph, seed, policy=name) for graph in family.test
                ]
    trials += place(["placeto-trained", "single"], family.test, plan)
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
    def over(placer: str, reference: str) -> str:
        return spread(summary.mean_ratio(placer, reference), percent_over)

    policies = [
        (prefix, prefix + embedding, title, paper)
        for prefix in CONFIGURATIONS
        for embedding, (title, paper) in EMBEDDINGS.items()
    ]
    rows = [
        [
            title,
            CONFIGURATIONS[prefix],
            spread(summary.mean_cost(policy), seconds_text),
            over(policy, f"{prefix}message-passing"),
            percent_over(1 + paper) if prefix else "",
            over(policy, "placeto-trained"),
        ]
        for prefix, policy, title, paper in policies
    ]
    trained = spread(summary.mean_cost("placeto-trained"), seconds_text)
    rows.append(["Trained on the graph", "default", trained, "", "", ""])
    policy_of_title = {
        f"{title}, {CONFIGURATIONS[prefix]} configuration": policy
        for prefix, policy, title, _ in policies
    }
    drawn = {**policy_of_title, "Trained on the graph": "placeto-trained"}
    figure = distributions_figure(
        {title: summary.all_values(policy) for title, policy in drawn.items()},
        f"{len(summary.graphs)} unseen graphs",
    )
    runtimes = table(
        "embedding|configuration|>runtime|>relative to full embedding|>paper"
        "|>relative to trained on the graph",
        rows,
    )
    page_paragraphs = paragraphs(
        "architectures",
        plan=plan,
        count=len(summary.graphs),
        partitioner=100 * PARTITIONER_OVER_FULL,
        aggregator=100 * AGGREGATOR_OVER_FULL,
        runtimes=runtimes,
        collapsed=collapse_remark(
            {title: summary.collapsed(policy) for title, policy in policy_of_title.items()}
        ),
    )
    return Page(page_paragraphs, {FIGURE: figure})
