"""``placeto experiment hyperparameters``: what some hyperparameters are worth, each alone."""

from collections.abc import Sequence

from placeto_tools.experiments.plan import Experiment, Page, Plan
from placeto_tools.experiments.records import Trained
from placeto_tools.experiments.statistics import Summary, spread
from placeto_tools.experiments.variants import variants_on_family
from placeto_tools.experiments.wording import WHAT_A_POLICY_LEAVES, duration_text, percent_over
from placeto_tools.plots.distributions import compared_distributions_figure
from placeto_tools.tables import TextTable, seconds_text
from placeto_tools.training.settings import changed_fields

UNCHANGED = "unchanged"
FIGURE = "distributions.png"

Change = Sequence[tuple[str, str]]


def hyperparameters(family_name: str, changes: Sequence[Change], plan: Plan) -> Experiment:
    """Return the experiment on a family: zero-shot with each change beside none.

    Parameters
    ----------
    family_name
        The family.
    changes
        Names and values of hyperparameters that are changed together.
    plan
        Seeds and numbers, and all other hyperparameters.

    Raises
    ------
    InputError
        When a hyperparameter is unknown, or a value no number where one is needed.
    """
    unchanged = plan.training_settings
    variants = {UNCHANGED: unchanged}
    for change in changes:
        variants[change_text(change)] = changed_fields(unchanged, change, {}, option="--vary")
    return variants_on_family(
        family_name,
        plan,
        variants,
        name="hyperparameters",
        title=f"Hyperparameters on {family_name}",
        page=lambda summary: _page(summary, list(variants), plan),
        options={"vary": list(variants)[1:]},
    )


def change_text(change: Change) -> str:
    """Return a change as it is given.

    Examples
    --------
    >>> change_text([("message_rounds", "4"), ("messages", "plain")])
    'message_rounds=4,messages=plain'
    """
    return ",".join(f"{name}={value}" for name, value in change)


def _page(summary: Summary, variants: list[str], plan: Plan) -> Page:
    columns = ["hyperparameters", ">runtime", ">over unchanged", ">placing", ">training"]
    rows = [
        [
            variant,
            summary.mean_cost(variant).text(seconds_text),
            summary.mean_ratio(variant, UNCHANGED).text(percent_over),
            duration_text(summary.median_seconds(variant)),
            spread(
                summary.results.record(Trained, f"{variant}-{seed}", "", seed).seconds
                for seed in plan.seeds
            ).text(duration_text),
        ]
        for variant in variants
    ]
    figure = compared_distributions_figure(
        {variant: summary.all_costs(variant) for variant in variants},
        UNCHANGED,
        f"{len(summary.graphs)} unseen graphs, {plan.num_gpus} GPUs",
    )
    parts = [
        f"Greedy zero-shot placements of {len(summary.graphs)} unseen graphs, with policies that "
        "were trained alike but for what is named; all else is as in the settings below.",
        TextTable("", columns, rows).markdown(),
        "Memory-penalised runtimes, means over the unseen graphs; in brackets the least and the "
        f"most of the seeds. {WHAT_A_POLICY_LEAVES} Placing is the median time on one core for one "
        "graph.",
        f"![Distributions of runtimes]({FIGURE})",
    ]
    return Page(parts, {FIGURE: figure})
