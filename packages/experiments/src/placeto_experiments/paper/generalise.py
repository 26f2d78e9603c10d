"""``placeto experiment generalise``: placements of graphs that a policy was not trained on."""

from collections.abc import Callable

from placeto.texts import seconds_text, share_text
from placeto.trials.comparison import NOTHING
from placeto.trials.trials import Experiment, Page
from placeto_experiments.paper.figures import compared_distributions_figure
from placeto_experiments.paper.placers import (
    HILL_CLIMBING,
    LOCAL_SEARCH,
    MULTILEVEL,
    PAPER_UPDATES,
    PAPER_ZERO_SHOT,
    PRETRAINED,
    RANDOM_SEARCH,
    REFINED,
    REFINEMENT_ROUNDS,
    RNN_TRAINED,
    RNN_ZERO_SHOT,
    SAMPLED,
    SCOTCH,
    SINGLE,
    TITLES,
    TRAINED,
    ZERO_SHOT,
    paper_settings,
    rnn_trained_on_graph,
    rnn_zero_shot,
    searches,
    train_placeto,
    train_rnn,
    trained_on_graph,
    without_seed,
    zero_shot,
)
from placeto_experiments.paper.placing_tasks import LOWER_BOUND, RANDOM
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import family_problems
from placeto_experiments.paper.published import SOURCE
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import (
    count_text,
    duration_text,
    markdown_table,
    percent_over,
    ratio_text,
)
from placeto_graphs import SECONDS_PER_BYTE

LEARNED = (
    ZERO_SHOT,
    SAMPLED,
    REFINED,
    TRAINED,
    PAPER_ZERO_SHOT,
    PRETRAINED,
    RNN_ZERO_SHOT,
    RNN_TRAINED,
)
OTHERS = (RANDOM, RANDOM_SEARCH, SINGLE, SCOTCH, HILL_CLIMBING, LOCAL_SEARCH, MULTILEVEL)
DRAWN = (
    ZERO_SHOT,
    REFINED,
    TRAINED,
    PAPER_ZERO_SHOT,
    PRETRAINED,
    RNN_ZERO_SHOT,
    RNN_TRAINED,
    RANDOM,
    SINGLE,
    SCOTCH,
    LOCAL_SEARCH,
)
SEARCHES = (TRAINED, HILL_CLIMBING, LOCAL_SEARCH, MULTILEVEL, RANDOM_SEARCH, RNN_TRAINED)
TARGETS = (ZERO_SHOT, SAMPLED, REFINED, TRAINED)
FIGURE = "distributions.png"
PAPER = (
    f"In {SOURCE} zero-shot placements of Placeto are nearly as fast as those of policies trained "
    "on the graph, on all three families. Those of the RNN are barely better than random ones."
)


def generalise(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family: one policy for all graphs, and one for each."""
    family = family_problems(family_name, plan)
    trials = [trial for graph in family.test for trial in without_seed(graph)]
    for seed in plan.seeds:
        settings, graphs = plan.training_settings, family.training
        trials += [
            train_placeto("placeto", graphs, settings, seed, validation=family.validation),
            train_placeto("paper", graphs, paper_settings(plan), seed),
            train_rnn(family.whole, plan, seed),
        ]
        for graph in family.test:
            trials += [
                zero_shot("placeto", graph, seed),
                zero_shot("placeto", graph, seed, label=SAMPLED, rollouts=plan.scale.rollouts),
                zero_shot(
                    "placeto", graph, seed, label=REFINED, refinement_rounds=REFINEMENT_ROUNDS
                ),
                zero_shot("paper", graph, seed, label=PAPER_ZERO_SHOT),
                rnn_zero_shot(graph, seed),
            ]
        for graph in family.test:
            trials += [
                trained_on_graph(graph, plan, seed),
                rnn_trained_on_graph(graph, plan.rnn_settings, seed),
                *searches(graph, plan, seed),
            ]
    names = [graph.name for graph in family.test]
    return Experiment(
        name="generalise",
        title=f"Generalisation over {family_name}",
        options={"family": family_name},
        problems=family.makers,
        trials=trials,
        page=lambda results: _page(Summary(results, names, plan.seeds), plan),
    )


def _page(summary: Summary, plan: Plan) -> Page:
    figure = compared_distributions_figure(
        {TITLES[placer]: summary.all_costs(placer) for placer in DRAWN},
        TITLES[TRAINED],
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    of_rnn, of_random = (
        summary.mean_ratio(RNN_ZERO_SHOT, other).text(percent_over)
        for other in (RNN_TRAINED, RANDOM)
    )
    parts = [
        "Simulated runtimes of unseen graphs. *Zero-shot*: the policy was trained on other graphs "
        "of the family. *Trained on the graph*: a policy of its own for each graph.",
        "Zero-shot relative to trained on the graph, mean over the graphs: "
        f"{_relative_to_trained(summary, plan)}. RNN, zero-shot: {of_rnn} relative to the RNN "
        f"trained on the graph, {of_random} relative to a random placement.",
        *_of_those_that_fit(summary, plan),
        PAPER,
        f"![Distributions of runtimes]({FIGURE})",
        "## Runtimes",
        _placer_table(summary),
        "Runtimes are memory-penalised: means over the unseen graphs, with the least and the most "
        "of the seeds in brackets. Ratios are means over the graphs of the ratio on each. "
        "*Evaluations* and *CPU seconds* are medians of placing one graph on one core, "
        "without the training beforehand.",
        "If a policy evaluates placements in a rollout, it returns the best of them; otherwise it "
        f"returns the last one. *Refined*: the greedy rollout, then {REFINEMENT_ROUNDS} rounds of "
        "coordinate descent, which move each group to its cheapest device without the policy. Hill "
        "climbing does that from random placements until no move helps. *Random placement* is the "
        "mean of 100.",
        _granularities_text(plan.scale.number("granularities")),
        "## When a search is as fast as a policy",
        _reaching_table(summary),
        "*Share*: of graphs and seeds on which the search was as fast as the policy. *Evaluations* "
        "and *seconds* until it was are medians of all runs; never, if half of them never were. "
        "Seconds are taken as proportional to evaluations.",
        "## Searches with as many evaluations as a policy",
        _as_many_table(summary),
        "Ratios to local search at its end, of searches that are stopped after as many evaluations "
        "as the policy of the row. They are means over the unseen graphs. *Hill climbing slower*: "
        "share of graphs and seeds on which it is slower than the policy then.",
        "## Training beforehand",
        _training_table(summary),
    ]
    return Page(parts, {FIGURE: figure})


def _relative_to_trained(summary: Summary, plan: Plan) -> str:
    greedy, sampled, refined = (
        summary.mean_ratio(placer, TRAINED).text(percent_over)
        for placer in (ZERO_SHOT, SAMPLED, REFINED)
    )
    return (
        f"**{greedy}** with a greedy rollout, {sampled} with the best of "
        f"{plan.scale.rollouts + 1} rollouts, {refined} with {REFINEMENT_ROUNDS} rounds of "
        "coordinate descent after the greedy one"
    )


def _of_those_that_fit(summary: Summary, plan: Plan) -> list[str]:
    """Return the ratio on the graphs that fit the memory; nothing if all do."""
    fitting = summary.where_some_fit((*LEARNED, *OTHERS))
    left_out = len(summary.graphs) - len(fitting.graphs)
    if not left_out or not fitting.graphs:
        return []
    return [
        f"No placer found a placement of {left_out} of the {len(summary.graphs)} graphs that fits "
        f"the memory. Each GB beyond it counts {1e9 * SECONDS_PER_BYTE:g} s. Zero-shot relative to "
        f"trained on the graph, on the others: {_relative_to_trained(fitting, plan)}."
    ]


def _granularities_text(granularities: int) -> str:
    if granularities == 1:
        trained = "Zero-shot policies were trained on each graph at one granularity."
    else:
        trained = (
            f"Zero-shot policies of Placeto were trained on each graph at {granularities} "
            "granularities, with more and with fewer groups. The RNN was trained at one."
        )
    return (
        f"{trained} The paper configuration has the paper's hyperparameters and {PAPER_UPDATES} "
        "times as many updates. It keeps the policy after the last of them."
    )


def _placer_table(summary: Summary) -> str:
    def ratio_to(other: str) -> Callable[[str], str]:
        return lambda placer: summary.mean_ratio(placer, other).text(ratio_text)

    def out_of_memory(placer: str) -> str:
        return NOTHING if placer == RANDOM else share_text(summary.out_of_memory(placer))

    return markdown_table(
        (*LEARNED, *OTHERS, LOWER_BOUND),
        {
            "placer": TITLES.__getitem__,
            ">runtime": lambda placer: summary.mean_cost(placer).text(seconds_text),
            ">ratio to trained on the graph": ratio_to(TRAINED),
            ">ratio to local search": ratio_to(LOCAL_SEARCH),
            ">ratio to lower bound": ratio_to(LOWER_BOUND),
            ">out of memory": out_of_memory,
            ">evaluations": lambda placer: count_text(summary.median_evaluations(placer)),
            ">CPU seconds": lambda placer: duration_text(summary.median_seconds(placer)),
        },
    )


def _reaching_table(summary: Summary) -> str:
    reached = {
        (search, target): summary.reached(search, target)
        for search in SEARCHES
        for target in TARGETS
    }
    return markdown_table(
        reached,
        {
            "search": lambda pair: TITLES[pair[0]],
            "as fast as": lambda pair: TITLES[pair[1]],
            ">share": lambda pair: share_text(reached[pair][0]),
            ">evaluations": lambda pair: count_text(reached[pair][1]),
            ">seconds": lambda pair: duration_text(reached[pair][2]),
        },
    )


def _as_many_table(summary: Summary) -> str:
    def then(search: str) -> Callable[[str], str]:
        return lambda placer: summary.mean_ratio_after(search, placer, LOCAL_SEARCH).text(
            ratio_text
        )

    return markdown_table(
        (ZERO_SHOT, SAMPLED, REFINED),
        {
            "policy": TITLES.__getitem__,
            ">evaluations": lambda placer: count_text(summary.median_evaluations(placer)),
            ">ratio to local search": lambda placer: summary.mean_ratio(placer, LOCAL_SEARCH).text(
                ratio_text
            ),
            ">hill climbing": then(HILL_CLIMBING),
            ">local search": then(LOCAL_SEARCH),
            ">random search": then(RANDOM_SEARCH),
            ">hill climbing slower": lambda placer: share_text(
                summary.ahead(placer, HILL_CLIMBING)
            ),
        },
    )


def _training_table(summary: Summary) -> str:
    titles = {
        "placeto": "Placeto (default configuration)",
        "paper": "Placeto (paper configuration)",
        "rnn": "RNN",
    }
    records = {
        (seed, name): summary.results.trained(f"{name}-{seed}")
        for seed in summary.seeds
        for name in titles
    }
    return markdown_table(
        records,
        {
            "policy": lambda key: titles[key[1]],
            ">seed": lambda key: str(key[0]),
            ">evaluations": lambda key: count_text(records[key].evaluations),
            ">seconds": lambda key: f"{records[key].seconds:,.0f} s",
        },
    )
