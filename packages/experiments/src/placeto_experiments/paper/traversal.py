"""``placeto experiment traversal``: the effect of the order in which groups are visited."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.texts import seconds_text, share_text
from placeto.trials.trials import Experiment, Graph, Page, Results
from placeto_experiments.paper.pages import (
    Summary,
    collapse_remark,
    count_text,
    distributions_figure,
    paragraphs,
    percent_over,
    spread,
    table,
)
from placeto_experiments.paper.placers import PAIRS, TITLES, place, training
from placeto_experiments.paper.plan import (
    Plan,
    name_of,
    source_maker,
)
from placeto_experiments.paper.published import TRAVERSAL_PLACETO, TRAVERSAL_RNN

FIGURE = "distributions.png"
PAPER = {"paper": TRAVERSAL_PLACETO, "rnn": TRAVERSAL_RNN}


def traversal(source: str, plan: Plan) -> Experiment:
    """Return the experiment on one graph: policies place it in orders they were not trained on.

    Orders are sampled uniformly from all permutations, topological or not.
    """
    name = name_of(source)
    usual_order = Graph(name)
    training_orders = tuple(Graph(name, order) for order in range(plan.training_graphs))
    unseen = [Graph(name, plan.training_graphs + order) for order in range(plan.test_graphs)]
    # As many evaluations of the one order as of all orders of the other RNN.
    evaluations = plan.training_graphs * plan.rnn_settings.evaluations
    alone = replace(plan, rnn_settings=replace(plan.rnn_settings, evaluations=evaluations))
    trials = [
        training(policy, training_orders, settings, seed)
        for seed in plan.seeds
        for policy, settings in (
            ("placeto", plan.training_settings),
            ("paper", plan.paper_settings),
            ("rnn", plan.rnn_settings),
        )
    ]
    in_unseen, in_usual = zip(*PAIRS.values(), strict=True)
    trials += [*place(in_unseen, unseen, plan), *place(in_usual, [usual_order], alone)]
    trials += place(["single"], [usual_order], plan)
    return Experiment(
        name="traversal",
        title=f"Orders of traversal of {source}",
        options={"source": source},
        problems={name: source_maker(source, plan)},
        trials=trials,
        page=lambda results: _page(results, usual_order, unseen, plan),
    )


def _page(results: Results, graph: Graph, unseen: list[Graph], plan: Plan) -> Page:
    summary = Summary(results, [order.label for order in unseen], plan.seeds)
    usual = Summary(results, [graph.label], plan.seeds)
    figure = distributions_figure(
        {TITLES[label]: summary.all_values(label) for label, _ in PAIRS.values()},
        f"{len(unseen)} unseen orders of {graph.name}",
    )

    def ratios(label: str, reference: str) -> list[NDArray[np.float64]]:
        """Return the ratios on all orders, for each seed."""
        return [summary.values(label, seed) / usual.values(reference, seed) for seed in plan.seeds]

    def row(policy: str) -> list[str]:
        label, itself = PAIRS[policy]
        to_placeto, to_itself = ratios(label, "placeto-trained"), ratios(label, itself)
        return [
            TITLES[label],
            spread(summary.mean_cost(label), seconds_text),
            spread((ratio.mean() for ratio in to_placeto), percent_over),
            spread((ratio.mean() for ratio in to_itself), percent_over),
            spread((ratio.std() / ratio.mean() for ratio in to_placeto), share_text),
            spread((ratio.max() for ratio in to_placeto), percent_over),
            f"about +{100 * PAPER[policy]:.0f} %" if policy in PAPER else "",
        ]

    runtimes = table(
        "placer|>runtime|>relative to Placeto trained|>relative to itself trained"
        "|>standard deviation over orders|>worst order|>paper",
        map(row, PAIRS),
    )
    page_paragraphs = paragraphs(
        "traversal",
        plan=plan,
        trained=spread(usual.mean_cost("placeto-trained"), seconds_text),
        placeto=100 * TRAVERSAL_PLACETO,
        rnn=100 * TRAVERSAL_RNN,
        runtimes=runtimes,
        collapsed=collapse_remark(
            {
                TITLES[label]: summary.collapsed(label, usual.values("single", plan.seeds[0]))
                for label, _ in PAIRS.values()
            }
        ),
        evaluations=_evaluations_table(usual),
    )
    return Page(page_paragraphs, {FIGURE: figure})


def _evaluations_table(usual: Summary) -> str:
    def row(policy: str) -> list[str]:
        label, itself = PAIRS[policy]
        records = [usual.results.trained(f"{policy}-{seed}") for seed in usual.seeds]
        on_all = float(np.median([record.evaluations for record in records]))
        return [TITLES[label], count_text(on_all), count_text(usual.median(itself, "evaluations"))]

    return table("placer|>on all orders|>in the usual order", map(row, PAIRS))
