"""``placeto experiment features``: what schedules and transfers tell a policy."""

from dataclasses import replace

from placeto_tools.experiments.experiment import Experiment
from placeto_tools.experiments.experiment import Page
from placeto_tools.experiments.experiment import Plan
from placeto_tools.experiments.statistics import Summary
from placeto_tools.experiments.statistics import spread
from placeto_tools.experiments.variants import variants_on_family
from placeto_tools.experiments.wording import duration_text
from placeto_tools.experiments.wording import percent_over
from placeto_tools.plots.distributions import distributions_figure
from placeto_tools.tables import TextTable
from placeto_tools.tables import seconds_text

NOTHING = "nothing-more"
SCHEDULE = "schedule"
EDGES = "edges"
TITLES = {
    NOTHING: "nothing more",
    SCHEDULE: "simulated start times and peak memory, as node features",
    EDGES: "transfers, as edge features",
}
FIGURE = "distributions.png"


def features(family_name: str, plan: Plan) -> Experiment:
    """Return the experiment on a family: zero-shot with each option beside none."""
    nothing = replace(plan.settings, node_features="costs-and-times", edge_features="none")
    variants = {
        NOTHING: nothing,
        SCHEDULE: replace(nothing, node_features="costs-times-and-schedule"),
        EDGES: replace(nothing, edge_features="transfers"),
    }
    return variants_on_family(
        family_name,
        plan,
        variants,
        name="features",
        title=f"Features on {family_name}",
        page=lambda summary: _page(summary, plan),
    )


def _page(summary: Summary, plan: Plan) -> Page:
    columns = ["the policy also sees", ">runtime", ">over nothing more", ">training"]
    rows = [
        [
            title,
            summary.mean_cost(scheme).text(seconds_text),
            summary.mean_ratio(scheme, NOTHING).text(percent_over),
            spread(
                summary.results.record(f"{scheme}-{seed}", "", seed)["seconds"]
                for seed in plan.seeds
            ).text(duration_text),
        ]
        for scheme, title in TITLES.items()
    ]
    figure = distributions_figure(
        {title: summary.all_costs(scheme) for scheme, title in TITLES.items()},
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Greedy zero-shot placements of {len(summary.graphs)} unseen graphs, with policies that "
        "see costs and times of nodes, or one thing more; all else is as in the settings below.",
        TextTable("", columns, rows).markdown(),
        "Means over the unseen graphs; in brackets the least and the most of the seeds.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
