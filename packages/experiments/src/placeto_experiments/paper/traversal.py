"""``placeto experiment traversal``: the effect of the order in which groups are visited."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.texts import seconds_text, share_text
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial
from placeto_experiments.paper.figures import distributions_figure
from placeto_experiments.paper.placers import (
    PAPER_EVALUATIONS,
    PAPER_TRAINED,
    PAPER_UPDATES,
    PAPER_ZERO_SHOT,
    RNN_TRAINED,
    RNN_ZERO_SHOT,
    TITLES,
    TRAINED,
    ZERO_SHOT,
    paper_settings,
    paper_trained_on_graph,
    rnn_trained_on_graph,
    rnn_zero_shot,
    train_placeto,
    train_rnn,
    trained_on_graph,
    zero_shot,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import name_of, source_maker
from placeto_experiments.paper.published import SOURCE, TRAVERSAL_PLACETO, TRAVERSAL_RNN
from placeto_experiments.paper.statistics import Spread, Summary, spread
from placeto_experiments.paper.wording import count_text, markdown_table, percent_over

FIGURE = "distributions.png"
PAIRS = (
    (ZERO_SHOT, TRAINED),
    (PAPER_ZERO_SHOT, PAPER_TRAINED),
    (RNN_ZERO_SHOT, RNN_TRAINED),
)
POLICIES = ("placeto", "paper", "rnn")  # in the order of the pairs
PAPER = {PAPER_ZERO_SHOT: TRAVERSAL_PLACETO, RNN_ZERO_SHOT: TRAVERSAL_RNN}


def traversal(source: str, plan: Plan) -> Experiment:
    """Return the experiment on one graph: policies place it in orders they were not trained on.

    Orders are sampled uniformly from all permutations, topological or not.
    """
    name = name_of(source)
    count = plan.scale.number("graphs")
    known = tuple(Graph(name, order) for order in range(count))
    unseen = [Graph(name, count + order) for order in range(plan.scale.number("test_graphs"))]
    # As many evaluations of the one order as of all orders of the other RNN.
    alone = replace(plan.rnn_settings, evaluations=count * plan.rnn_settings.evaluations)
    trials: list[Trial] = []
    for seed in plan.seeds:
        policy = train_placeto("placeto", known, plan.training_settings, seed)
        rnn = train_rnn(known, plan, seed)
        paper = train_placeto("paper", known, paper_settings(plan), seed)
        trials += [policy, paper, rnn]
        for graph in unseen:
            trials += [
                zero_shot("placeto", graph, seed),
                zero_shot("paper", graph, seed, label=PAPER_ZERO_SHOT),
                rnn_zero_shot(graph, seed),
            ]
        trials.append(trained_on_graph(Graph(name), plan, seed))
        trials.append(paper_trained_on_graph(Graph(name), plan, seed))
        trials.append(rnn_trained_on_graph(Graph(name), alone, seed))
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

    ratios = {placer: over(placer, TRAINED) for placer, _ in PAIRS}
    table = markdown_table(
        PAIRS,
        {
            "placer": lambda pair: TITLES[pair[0]],
            ">runtime": lambda pair: summary.mean_cost(pair[0]).text(seconds_text),
            ">relative to Placeto trained": lambda pair: _mean(ratios[pair[0]]).text(percent_over),
            ">relative to itself trained": lambda pair: _mean(over(*pair)).text(percent_over),
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
        f"Simulated runtimes. Policies were trained on {plan.scale.number('graphs')} random orders "
        f"of visiting the groups, and place the same graph in {len(unseen)} others. Placeto "
        "trained on the graph alone, in the usual order, reaches "
        f"{usual.mean_cost(TRAINED).text(seconds_text)}.",
        f"In {SOURCE}, Placeto stays within {100 * TRAVERSAL_PLACETO:.0f} % of the placement of a "
        f"policy trained on the graph, and the RNN is {100 * TRAVERSAL_RNN:.0f} % worse.",
        table,
        "Memory-penalised runtimes: means over the orders, with the least and the most of the "
        "seeds in brackets. *Placeto trained*: the default configuration in the usual order. "
        "*Itself trained*: the same configuration, or the RNN, in the usual order. *Worst order* "
        "is relative to Placeto trained.",
        "Orders are sampled uniformly from all permutations. Placeto visits the groups in this "
        "order; the RNN reads and places them in it. The default policy that is kept is the one "
        "with the best placement in the usual order.",
        f"The paper configuration has the paper's hyperparameters, {PAPER_UPDATES} times as many "
        f"updates, and {PAPER_EVALUATIONS} times as many evaluations if it is trained in the usual "
        "order.",
        _evaluations_table(usual),
        "Evaluations of the training on all orders, and of the training in the usual order; "
        "medians over the seeds.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})


def _evaluations_table(usual: Summary) -> str:
    def trained(name: str) -> float:
        records = [usual.results.trained(f"{name}-{seed}") for seed in usual.seeds]
        return float(np.median([record.evaluations for record in records]))

    return markdown_table(
        zip(PAIRS, POLICIES, strict=True),
        {
            "placer": lambda row: TITLES[row[0][0]],
            ">on all orders": lambda row: count_text(trained(row[1])),
            ">in the usual order": lambda row: count_text(usual.median_evaluations(row[0][1])),
        },
    )


def _mean(ratios: list[NDArray[np.float64]]) -> Spread:
    return spread(ratio.mean() for ratio in ratios)
