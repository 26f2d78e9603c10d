"""Policies of several kinds, each trained on a family, on the same unseen graphs of it."""

from collections.abc import Callable, Mapping
from typing import Any

from placeto.trials.experiment import Experiment, Page
from placeto.trials.trials import Graph, Trial
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import (
    family_members,
    makers_of_groupings,
    makers_of_members,
    members_to_choose_by,
)
from placeto_experiments.paper.schemes import train_placeto, zero_shot
from placeto_experiments.paper.statistics import Summary
from placeto_policy import Settings


def variants_on_family(
    family_name: str,
    plan: Plan,
    variants: Mapping[str, Settings],
    *,
    name: str,
    title: str,
    page: Callable[[Summary], Page],
    beside: Callable[[Graph, Plan, int], Trial] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return an experiment that trains a policy of each kind, and places unseen graphs greedily.

    Parameters
    ----------
    family_name
        The family.
    plan
        Seeds and numbers.
    variants
        The settings of each kind, by the name of the scheme that its placements have.
    name, title
        Of the experiment.
    page
        Writes its page.
    beside
        Another trial on each unseen graph with each seed, to compare with.
    options
        What else the user asked for, for the description.
    """
    training, test = family_members(family_name, plan)
    to_train_on = makers_of_groupings(training, plan)
    to_choose_by = members_to_choose_by(family_name, plan)
    trials: list[Trial] = []
    for seed in plan.seeds:
        for scheme, settings in variants.items():
            policy = train_placeto(
                scheme,
                tuple(map(Graph, to_train_on)),
                settings,
                seed,
                validation=tuple(map(Graph, to_choose_by)),
            )
            trials.append(policy)
            trials += [zero_shot(policy, Graph(graph), scheme=scheme) for graph in test]
        if beside:
            trials += [beside(Graph(graph), plan, seed) for graph in test]
    return Experiment(
        name=name,
        title=title,
        options={"family": family_name, **(options or {})},
        problems={**to_train_on, **to_choose_by, **makers_of_members(test, plan)},
        trials=trials,
        page=lambda results: page(Summary(results, test, plan.seeds)),
    )
