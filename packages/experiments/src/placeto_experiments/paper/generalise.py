"""``placeto experiment generalise``: placing graphs that the policy has not seen."""

from collections.abc import Callable

from placeto.texts import seconds_text, share_text
from placeto.trials.comparison import NOTHING
from placeto.trials.trials import Experiment, Page
from placeto_experiments.paper.figures import compared_distributions_figure
from placeto_experiments.paper.placers import (
    HILL_CLIMBING,
    LOCAL_SEARCH,
    MULTILEVEL,
    OPTIMIZED,
    PRETRAINED,
    PUBLISHED_ZERO_SHOT,
    RANDOM_SEARCH,
    RNN_OPTIMIZED,
    RNN_ZERO_SHOT,
    SAMPLED,
    SCOTCH,
    SINGLE,
    SWEEPS,
    SWEPT,
    TITLES,
    UPDATES_AS_PUBLISHED,
    ZERO_SHOT,
    as_published,
    optimized,
    rnn_optimized,
    rnn_zero_shot,
    searches,
    train_placeto,
    train_rnn,
    without_seed,
    zero_shot,
)
from placeto_experiments.paper.placing_tasks import LOWER_BOUND, RANDOM
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import family_problems
from placeto_experiments.paper.published import SOURCE
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import (
    WHAT_A_POLICY_LEAVES,
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
    SWEPT,
    OPTIMIZED,
    PUBLISHED_ZERO_SHOT,
    PRETRAINED,
    RNN_ZERO_SHOT,
    RNN_OPTIMIZED,
)
OTHERS = (RANDOM, RANDOM_SEARCH, SINGLE, SCOTCH, HILL_CLIMBING, LOCAL_SEARCH, MULTILEVEL)
DRAWN = (
    ZERO_SHOT,
    SWEPT,
    OPTIMIZED,
    PUBLISHED_ZERO_SHOT,
    PRETRAINED,
    RNN_ZERO_SHOT,
    RNN_OPTIMIZED,
    RANDOM,
    SINGLE,
    SCOTCH,
    LOCAL_SEARCH,
)
SEARCHES = (OPTIMIZED, HILL_CLIMBING, LOCAL_SEARCH, MULTILEVEL, RANDOM_SEARCH, RNN_OPTIMIZED)
TARGETS = (ZERO_SHOT, SAMPLED, SWEPT, OPTIMIZED)
FIGURE = "distributions.png"
PAPER = (
    f"In {SOURCE} zero-shot placements of Placeto are nearly as fast as optimized ones on all "
    "three families, and those of the RNN are hardly better than random ones."
)


def generalise(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family: one policy for all its graphs against one for each."""
    family = family_problems(family_name, plan)
    trials = [trial for graph in family.test for trial in without_seed(graph)]
    for seed in plan.seeds:
        settings, graphs = plan.training_settings, family.training
        trials += [
            train_placeto("placeto", graphs, settings, seed, validation=family.validation),
            train_placeto("published", graphs, as_published(plan), seed),
            train_rnn(family.whole, plan, seed),
        ]
        for graph in family.test:
            trials += [
                zero_shot("placeto", graph, seed),
                zero_shot("placeto", graph, seed, label=SAMPLED, samples=plan.scale.samples),
                zero_shot("placeto", graph, seed, label=SWEPT, sweeps=SWEEPS),
                zero_shot("published", graph, seed, label=PUBLISHED_ZERO_SHOT),
                rnn_zero_shot(graph, seed),
            ]
        for graph in family.test:
            trials += [
                optimized(graph, plan, seed),
                rnn_optimized(graph, plan.rnn_settings, seed),
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
        TITLES[OPTIMIZED],
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Zero-shot over optimized, mean over the unseen graphs: {_over_optimized(summary, plan)}. "
        f"RNN: {summary.mean_ratio(RNN_ZERO_SHOT, RNN_OPTIMIZED).text(percent_over)} over its own "
        f"optimized form, {summary.mean_ratio(RNN_ZERO_SHOT, RANDOM).text(percent_over)} over one "
        "random placement.",
        *_of_those_that_fit(summary, plan),
        PAPER,
        f"![Distributions of runtimes]({FIGURE})",
        "## Runtimes",
        _placer_table(summary),
        "Runtimes are memory-penalised, and means over the unseen graphs; in brackets the least "
        "and the most of the seeds. Ratios are means over the graphs of the ratio on each. Placing "
        "is the median wall time for one graph, on one core of a busy machine, with everything "
        f"that is computed of it, but without training beforehand. {WHAT_A_POLICY_LEAVES} The "
        "random placement is the mean of 100, of which none counts as out of memory. A round of "
        "coordinate descent moves each group to where it costs least, without the policy; hill "
        "climbing does the same from random placements until nothing helps. "
        + _groupings_text(plan.scale.number("groupings")),
        "## When searches come as far",
        _reaching_table(summary),
        "On which part of the graphs and seeds, and after how many placements and seconds (medians "
        "of all; never, if half of them never were) the best placement so far was as fast as that "
        "of the placer. Seconds are taken to run evenly with placements.",
        "## Searches with as many placements",
        _as_many_table(summary),
        "What searches had found after as many placements as the policy looked at, over local "
        "search at its end; means over the unseen graphs, and on which part of the graphs and "
        "seeds hill climbing was slower than the policy then.",
        "## Training beforehand",
        _training_table(summary),
    ]
    return Page(parts, {FIGURE: figure})


def _over_optimized(summary: Summary, plan: Plan) -> str:
    greedy, sampled, swept = (
        summary.mean_ratio(placer, OPTIMIZED).text(percent_over)
        for placer in (ZERO_SHOT, SAMPLED, SWEPT)
    )
    return (
        f"**{greedy}** greedy, {sampled} as the best of {plan.scale.samples + 1} rollouts, {swept} "
        f"with {SWEEPS} rounds of coordinate descent after the greedy one"
    )


def _of_those_that_fit(summary: Summary, plan: Plan) -> list[str]:
    """Return what the ratio is where the memory suffices; nothing if it does for all graphs."""
    fitting = summary.where_some_fit((*LEARNED, *OTHERS))
    left_out = len(summary.graphs) - len(fitting.graphs)
    if not left_out or not fitting.graphs:
        return []
    return [
        f"No placer found a placement of {left_out} of the {len(summary.graphs)} graphs that fits "
        f"the memory; each GB beyond it counts {1e9 * SECONDS_PER_BYTE:g} s. Zero-shot "
        f"over optimized on the others: {_over_optimized(fitting, plan)}."
    ]


def _groupings_text(groupings: int) -> str:
    if groupings == 1:
        trained = "Policies were trained on each graph at one granularity"
    else:
        trained = (
            f"Policies of Placeto were trained on each graph at {groupings} granularities, with "
            "more and with fewer groups, the RNN at one"
        )
    return (
        f"{trained}. Placeto (paper configuration) always has the paper's hyperparameters, "
        f"{UPDATES_AS_PUBLISHED} times as many updates, and the policy after the last of them."
    )


def _placer_table(summary: Summary) -> str:
    def over(other: str) -> Callable[[str], str]:
        return lambda placer: summary.mean_ratio(placer, other).text(ratio_text)

    def out_of_memory(placer: str) -> str:
        return NOTHING if placer == RANDOM else share_text(summary.out_of_memory(placer))

    return markdown_table(
        (*LEARNED, *OTHERS, LOWER_BOUND),
        {
            "placer": TITLES.__getitem__,
            ">runtime": lambda placer: summary.mean_cost(placer).text(seconds_text),
            ">over optimized": over(OPTIMIZED),
            ">over local search": over(LOCAL_SEARCH),
            ">over lower bound": over(LOWER_BOUND),
            ">out of memory": out_of_memory,
            ">placements": lambda placer: count_text(summary.median_evaluations(placer)),
            ">placing": lambda placer: duration_text(summary.median_seconds(placer)),
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
            ">came there": lambda pair: share_text(reached[pair][0]),
            ">placements": lambda pair: count_text(reached[pair][1]),
            ">seconds": lambda pair: duration_text(reached[pair][2]),
        },
    )


def _as_many_table(summary: Summary) -> str:
    def then(search: str) -> Callable[[str], str]:
        return lambda placer: summary.mean_ratio_after(search, placer, LOCAL_SEARCH).text(
            ratio_text
        )

    return markdown_table(
        (ZERO_SHOT, SAMPLED, SWEPT),
        {
            "placer": TITLES.__getitem__,
            ">placements": lambda placer: count_text(summary.median_evaluations(placer)),
            ">over local search": lambda placer: summary.mean_ratio(placer, LOCAL_SEARCH).text(
                ratio_text
            ),
            ">hill climbing then": then(HILL_CLIMBING),
            ">local search then": then(LOCAL_SEARCH),
            ">best random one then": then(RANDOM_SEARCH),
            ">hill climbing slower": lambda placer: share_text(
                summary.ahead(placer, HILL_CLIMBING)
            ),
        },
    )


def _training_table(summary: Summary) -> str:
    titles = {"placeto": "Placeto", "published": "Placeto (paper configuration)", "rnn": "RNN"}
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
            ">placements": lambda key: count_text(records[key].evaluations),
            ">seconds": lambda key: f"{records[key].seconds:,.0f} s",
        },
    )
