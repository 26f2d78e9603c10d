"""``placeto experiment generalise``: placements of graphs that a policy was not trained on."""

from pathlib import Path

from placeto.texts import seconds_text, share_text
from placeto.trials.tables import NOTHING
from placeto.trials.trials import Experiment, Page, Trial
from placeto_experiments.paper.pages import (
    ENTROPY,
    Summary,
    bands_figure,
    collapse_remark,
    count_text,
    distributions_figure,
    duration_text,
    paragraphs,
    percent_over,
    ratio_text,
    reaching_tables,
    spread,
    table,
    updates_curve,
)
from placeto_experiments.paper.placers import (
    IN_PAPER,
    PAIRS,
    PLACETO,
    REFINEMENT_ROUNDS,
    TITLES,
    place,
    training,
)
from placeto_experiments.paper.plan import Plan, family_problems, folder_problems
from placeto_graphs import SECONDS_PER_BYTE

ZERO_SHOT = ("placeto-zero-shot", "placeto-zero-shot-sampled", "placeto-zero-shot-refined")
TABLE_LABELS = (  # in the table of runtimes; all but the last one are placers
    *(*ZERO_SHOT, "placeto-trained", "paper-zero-shot", "paper-trained", "pretrained"),
    *("rnn-zero-shot", "rnn-trained", "random", "random-search", "single", "scotch"),
    *("hill-climbing", "local-search", "multilevel", "lower-bound"),
)
POLICY_TITLES = {"placeto": PLACETO, "paper": IN_PAPER, "rnn": "RNN"}
NOT_IN_FIGURE = (ZERO_SHOT[1], "random-search", "hill-climbing", "multilevel", "lower-bound")
FIGURE_TITLES = {label: TITLES[label] for label in TABLE_LABELS if label not in NOT_IN_FIGURE}
SEARCHES = (
    *("placeto-trained", "hill-climbing", "local-search", "multilevel", "random-search"),
    "rnn-trained",
)
FIGURE, ENTROPIES = "distributions.png", "entropy.png"


def generalise(family_name: str, plan: Plan, folder: Path | None = None) -> Experiment:
    """Return the experiment on a family, or on the graphs of a folder.

    There is one policy for all graphs, and one for each.
    """
    family = folder_problems(folder, plan) if folder else family_problems(family_name, plan)
    trained, validation = family.training, family.validation
    trials: list[Trial] = []
    for seed in plan.seeds:
        trials += [
            training("placeto", trained, plan.training_settings, seed, validation),
            training("paper", family.whole, plan.paper_settings, seed),
            training("rnn", family.whole, plan.rnn_settings, seed),
        ]
    trials += place(TABLE_LABELS, family.test, plan)
    # How much a policy has learned of the graphs of its training.
    zero_shot = [label for label, _ in PAIRS.values()]
    trials += place([*zero_shot, "local-search"], family.whole, plan)
    names = [graph.name for graph in family.test]
    training_names = [graph.name for graph in family.whole]
    return Experiment(
        name="generalise",
        title=f"Generalisation over {family_name}",
        options={"family": family_name},
        problems=family.makers,
        trials=trials,
        page=lambda results: _page(
            Summary(results, names, plan.seeds), Summary(results, training_names, plan.seeds), plan
        ),
    )


def _page(summary: Summary, on_training: Summary, plan: Plan) -> Page:
    figure = distributions_figure(
        {title: summary.all_values(label) for label, title in FIGURE_TITLES.items()},
        f"{len(summary.graphs)} unseen graphs",
        reference=TITLES["placeto-trained"],
    )
    rnn_to_random = summary.mean_ratio("rnn-zero-shot", "random")
    page_paragraphs = paragraphs(
        "generalise",
        relative=_relative_to_trained(summary, plan),
        carried=_carried_table(summary, on_training),
        rnn_to_random=spread(rnn_to_random, percent_over),
        of_those_that_fit=_of_those_that_fit(summary, plan),
        runtimes=_placer_table(summary),
        collapsed=collapse_remark(
            {TITLES[label]: summary.collapsed(label) for label, _ in PAIRS.values()}
        ),
        rounds=REFINEMENT_ROUNDS,
        plan=plan,
        reaching=reaching_tables(summary, SEARCHES, (*ZERO_SHOT, "placeto-trained"), TITLES),
        training=_training_table(summary),
    )
    entropies = {
        POLICY_TITLES[name]: [
            updates_curve(summary.results.trained(f"{name}-{seed}").entropies)
            for seed in summary.seeds
        ]
        for name in ("placeto", "paper")
    }
    return Page(
        page_paragraphs,
        {FIGURE: figure, ENTROPIES: bands_figure(entropies, "updates", "Entropy", ENTROPY)},
    )


def _carried_table(summary: Summary, on_training: Summary) -> str:
    """Return how policies place unseen graphs, and those of their training."""

    def row(policy: str) -> list[str]:
        zero_shot, trained = PAIRS[policy]
        return [
            TITLES[zero_shot],
            spread(summary.mean_ratio(zero_shot, trained), percent_over),
            spread(on_training.mean_ratio(zero_shot, "local-search"), ratio_text),
            spread(summary.mean_ratio(zero_shot, "local-search"), ratio_text),
            spread(summary.mean_ratio(trained, "local-search"), ratio_text),
        ]

    return table(
        "policy|>relative to itself trained on the graph|>ratio to local search, graphs of its "
        "training|>unseen graphs|>unseen graphs, trained on the graph",
        map(row, PAIRS),
    )


def _relative_to_trained(summary: Summary, plan: Plan) -> str:
    ratios = [summary.mean_ratio(label, "placeto-trained") for label in ZERO_SHOT]
    greedy, sampled, refined = [spread(ratios_of_seeds, percent_over) for ratios_of_seeds in ratios]

    return (
        f"**{greedy}** with a greedy rollout, {sampled} with the best of "
        f"{plan.rollouts + 1} rollouts, {refined} with {REFINEMENT_ROUNDS} rounds of "
        "coordinate descent after the greedy one"
    )


def _of_those_that_fit(summary: Summary, plan: Plan) -> str:
    """Return the ratio on the graphs that fit the memory; nothing if all do."""
    fitting = summary.where_some_fit(TABLE_LABELS[:-1])
    left_out = len(summary.graphs) - len(fitting.graphs)
    if not left_out or not fitting.graphs:
        return ""
    return (
        f"No placer found a placement of {left_out} of the {len(summary.graphs)} graphs that fits "
        f"the memory. Each GB beyond it counts {1e9 * SECONDS_PER_BYTE:g} s. Zero-shot relative to "
        f"trained on the graph, on the others: {_relative_to_trained(fitting, plan)}."
    )


def _placer_table(summary: Summary) -> str:
    def row(label: str) -> list[str]:
        fits = summary.all_values(label, "fits").mean()
        return [
            TITLES[label],
            spread(summary.mean_cost(label), seconds_text),
            *(
                spread(summary.mean_ratio(label, reference), ratio_text)
                for reference in ("placeto-trained", "local-search", "lower-bound")
            ),
            NOTHING if label == "random" else share_text(1 - fits),
            count_text(summary.median(label, "evaluations")),
            duration_text(summary.median(label, "seconds")),
        ]

    return table(
        "placer|>runtime|>ratio to trained on the graph|>ratio to local search"
        "|>ratio to lower bound|>out of memory|>evaluations|>CPU seconds",
        map(row, TABLE_LABELS),
    )


def _training_table(summary: Summary) -> str:
    trained = [
        (seed, title, summary.results.trained(f"{name}-{seed}"))
        for seed in summary.seeds
        for name, title in POLICY_TITLES.items()
    ]
    return table(
        "policy|>seed|>evaluations|>seconds",
        [
            [title, f"{seed}", count_text(record.evaluations), f"{record.seconds:,.0f} s"]
            for seed, title, record in trained
        ],
    )
