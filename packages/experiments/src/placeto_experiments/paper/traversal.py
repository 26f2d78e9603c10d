"""``placeto experiment traversal``: whether it matters in which order groups are visited."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.texts import seconds_text, share_text
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial
from placeto_experiments.paper.figures import distributions_figure
from placeto_experiments.paper.placers import (
    OPTIMIZED,
    PLACEMENTS_AS_PUBLISHED,
    PUBLISHED_OPTIMIZED,
    PUBLISHED_ZERO_SHOT,
    RNN_OPTIMIZED,
    RNN_ZERO_SHOT,
    TITLES,
    UPDATES_AS_PUBLISHED,
    ZERO_SHOT,
    as_published,
    optimized,
    published_optimized,
    rnn_optimized,
    rnn_zero_shot,
    train_placeto,
    train_rnn,
    zero_shot,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import name_of, source_maker
from placeto_experiments.paper.published import SOURCE, TRAVERSAL_PLACETO, TRAVERSAL_RNN
from placeto_experiments.paper.statistics import Spread, Summary, spread
from placeto_experiments.paper.wording import count_text, markdown_table, percent_over

FIGURE = "distributions.png"
PAIRS = (
    (ZERO_SHOT, OPTIMIZED),
    (PUBLISHED_ZERO_SHOT, PUBLISHED_OPTIMIZED),
    (RNN_ZERO_SHOT, RNN_OPTIMIZED),
)
POLICIES = ("placeto", "published", "rnn")  # in the order of the pairs
PAPER = {PUBLISHED_ZERO_SHOT: TRAVERSAL_PLACETO, RNN_ZERO_SHOT: TRAVERSAL_RNN}


def traversal(source: str, plan: Plan) -> Experiment:
    """Return the experiment on one graph: policies meet orders that they have not been trained on.

    Orders are drawn from all there are, topological or not.
    """
    name = name_of(source)
    count = plan.scale.number("graphs")
    known = tuple(Graph(name, order) for order in range(count))
    unseen = [Graph(name, count + order) for order in range(plan.scale.number("test_graphs"))]
    # As many placements for the one order as for all that the other RNN is trained on.
    alone = replace(plan.rnn_settings, evaluations=count * plan.rnn_settings.evaluations)
    trials: list[Trial] = []
    for seed in plan.seeds:
        policy = train_placeto("placeto", known, plan.training_settings, seed)
        rnn = train_rnn(known, plan, seed)
        published = train_placeto("published", known, as_published(plan), seed)
        trials += [policy, published, rnn]
        for graph in unseen:
            trials += [
                zero_shot("placeto", graph, seed),
                zero_shot("published", graph, seed, label=PUBLISHED_ZERO_SHOT),
                rnn_zero_shot(graph, seed),
            ]
        trials.append(optimized(Graph(name), plan, seed))
        trials.append(published_optimized(Graph(name), plan, seed))
        trials.append(rnn_optimized(Graph(name), alone, seed))
    return Experiment(
        name="traversal",
        title=f"Orders of traversal of {source}",
        options={"source": source},
        problems={name: source_maker(source, plan)},
        trials=trials,
        page=lambda results: _page(results, Graph(name), unseen, plan),
    )


def _page(results: Results, graph: Graph, unseen: list[Graph], plan: Plan) -> Page:
    summary = Summary(results, [one.label for one in unseen], plan.seeds)
    usual = Summary(results, [graph.label], plan.seeds)
    figure = distributions_figure(
        {TITLES[placer]: summary.all_costs(placer) for placer, _ in PAIRS},
        f"{len(unseen)} unseen orders of {graph.name}",
    )

    def over(placer: str, reference: str) -> list[NDArray[np.float64]]:
        """Return the ratios of each seed on all orders."""
        return [summary.costs(placer, seed) / usual.costs(reference, seed) for seed in plan.seeds]

    ratios = {placer: over(placer, OPTIMIZED) for placer, _ in PAIRS}
    table = markdown_table(
        PAIRS,
        {
            "placer": lambda pair: TITLES[pair[0]],
            ">runtime": lambda pair: summary.mean_cost(pair[0]).text(seconds_text),
            ">over Placeto optimized": lambda pair: _mean(ratios[pair[0]]).text(percent_over),
            ">over its own optimized": lambda pair: _mean(over(*pair)).text(percent_over),
            ">standard deviation over orders": lambda pair: spread(
                ratio.std() / ratio.mean() for ratio in ratios[pair[0]]
            ).text(share_text),
            ">worst order": lambda pair: spread(ratio.max() for ratio in ratios[pair[0]]).text(
                percent_over
            ),
            ">paper": lambda pair: (
                f"about +{100 * PAPER[pair[0]]:.0f} %" if pair[0] in PAPER else ""
            ),
        },
    )
    parts = [
        f"Policies were trained on {plan.scale.number('graphs')} random orders in which the groups "
        f"are visited, and place the same graph in {len(unseen)} others. Placeto optimized, in the "
        f"usual order: {usual.mean_cost(OPTIMIZED).text(seconds_text)}.",
        f"In {SOURCE}, Placeto stays within {100 * TRAVERSAL_PLACETO:.0f} % of the optimized "
        f"placement, and the RNN is {100 * TRAVERSAL_RNN:.0f} % worse.",
        table,
        "Memory-penalised runtimes, means over the orders; in brackets the least and the most of "
        "the seeds. The worst order, too, is over Placeto optimized. Orders are drawn "
        "from all there are: Placeto visits the groups in them, the RNN reads and places them. "
        f"Paper configuration: the paper's hyperparameters, {UPDATES_AS_PUBLISHED} times as many "
        f"updates, and {PLACEMENTS_AS_PUBLISHED} times as many placements of its optimized form. "
        "Which default policy placed best is decided in the usual order.",
        _placements_table(usual),
        "Placements that were evaluated to train on all orders, and of the usual one alone for the "
        "optimized form; medians over the seeds.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})


def _placements_table(usual: Summary) -> str:
    def trained(name: str) -> float:
        records = [usual.results.trained(f"{name}-{seed}") for seed in usual.seeds]
        return float(np.median([record.evaluations for record in records]))

    return markdown_table(
        zip(PAIRS, POLICIES, strict=True),
        {
            "placer": lambda row: TITLES[row[0][0]],
            ">on all orders": lambda row: count_text(trained(row[1])),
            ">optimized": lambda row: count_text(usual.median_evaluations(row[0][1])),
        },
    )


def _mean(ratios: list[NDArray[np.float64]]) -> Spread:
    return spread(ratio.mean() for ratio in ratios)
