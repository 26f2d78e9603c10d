"""Placers that several experiments have in common, and the trials of placers and policies."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from placeto.trials.placing_tasks import Place, PlaceByName
from placeto.trials.trials import Graph, Trial, placing, training_name
from placeto_baselines import RnnSettings
from placeto_experiments.paper.plan import PAPER_EVALUATIONS, Plan
from placeto_experiments.paper.tasks import (
    Bound,
    PlaceAtRandom,
    PlaceByHillClimbing,
    PlaceRnnZeroShot,
    PlaceZeroShot,
    TrainPlaceto,
    TrainRnn,
)
from placeto_policy import Settings

REFINEMENT_ROUNDS = 2
HILL_CLIMBING_BUDGET = 5000


class Placer(NamedTuple):
    """A placer of experiments."""

    title: str  # in tables
    task: type[Place]
    policy: str = ""  # policy that it needs, see `training`
    fields: Callable[[Plan], Mapping[str, Any]] = lambda _plan: {}  # others of the task
    has_seed: bool = True  # whether another seed changes its results


def _named(title: str, name: str, **others: Any) -> Placer:
    """Return a placer of the command without a budget."""
    return Placer(title, PlaceByName, fields=lambda _plan: {"name": name}, **others)


def _searching(title: str, name: str) -> Placer:
    """Return a placer of the command with as many evaluations as Placeto."""
    return Placer(
        title, PlaceByName, fields=lambda plan: {"name": name, "budget": plan.evaluations}
    )


PLACETO, IN_PAPER = "Placeto (default configuration)", "Placeto (paper configuration)"
PLACERS: Mapping[str, Placer] = {
    "placeto-zero-shot": Placer(f"{PLACETO}, zero-shot", PlaceZeroShot, "placeto"),
    "placeto-zero-shot-sampled": Placer(
        f"{PLACETO}, zero-shot, best of several rollouts",
        PlaceZeroShot,
        "placeto",
        lambda plan: {"rollouts": plan.rollouts},
    ),
    "placeto-zero-shot-refined": Placer(
        f"{PLACETO}, zero-shot, refined",
        PlaceZeroShot,
        "placeto",
        lambda _plan: {"refinement_rounds": REFINEMENT_ROUNDS},
    ),
    "paper-zero-shot": Placer(f"{IN_PAPER}, zero-shot", PlaceZeroShot, "paper"),
    "pretrained": _named("Placeto, pretrained", "pretrained"),
    "placeto-trained": Placer(
        f"{PLACETO}, trained on the graph",
        PlaceByName,
        fields=lambda plan: {
            "name": "placeto",
            "budget": plan.evaluations,
            "settings": plan.settings,
        },
    ),
    "paper-trained": Placer(
        f"{IN_PAPER}, trained on the graph",
        PlaceByName,
        fields=lambda plan: {
            "name": "placeto",
            "budget": PAPER_EVALUATIONS * plan.evaluations,
            "settings": plan.paper_settings,
        },
    ),
    "rnn-zero-shot": Placer("RNN, zero-shot", PlaceRnnZeroShot, "rnn"),
    "rnn-trained": Placer(
        "RNN, trained on the graph",
        PlaceByName,
        fields=lambda plan: {
            "name": "rnn",
            "budget": plan.rnn_settings.evaluations,
            "settings": plan.rnn_settings,
        },
    ),
    "random": Placer("Random placement", PlaceAtRandom),
    "random-search": _searching("Random search", "random"),
    "single": _named("Single GPU", "single", has_seed=False),
    "scotch": _named("Scotch", "scotch"),
    "hill-climbing": Placer(
        "Hill climbing",
        PlaceByHillClimbing,
        fields=lambda plan: {"budget": min(plan.evaluations, HILL_CLIMBING_BUDGET)},
    ),
    "local-search": _searching("Local search", "local-search"),
    "multilevel": _searching("Multilevel search", "multilevel"),
    "lower-bound": Placer("Lower bound", Bound, has_seed=False),
}
TITLES = {label: placer.title for label, placer in PLACERS.items()}


def place(labels: Iterable[str], graphs: Iterable[Graph], plan: Plan) -> list[Trial]:
    """Return the trials of some of `PLACERS` on graphs, with all seeds."""
    return [
        trial(placer.task, label, graph, seed, placer.policy, **placer.fields(plan))
        for label, placer in ((label, PLACERS[label]) for label in labels)
        for graph in graphs
        for seed in (plan.seeds if placer.has_seed else [None])
    ]


def trial(
    task: type[Place],
    label: str,
    graph: Graph,
    seed: int | None,
    policy: str = "",
    **fields: Any,
) -> Trial:
    """Return a trial on a graph, which may need the policy of `training`."""
    needs = []
    if policy:
        fields["policy"] = f"{policy}-{seed}"
        needs = [training_name(fields["policy"])]
    return placing(task(label=label, graph=graph, seed=seed, **fields), label, graph, seed, *needs)


def training(
    name: str,
    graphs: tuple[Graph, ...],
    settings: Settings | RnnSettings,
    seed: int,
    validation: tuple[Graph, ...] = (),
) -> Trial:
    """Return the training of a policy, or an RNN, on several graphs."""
    policy = f"{name}-{seed}"
    if isinstance(settings, RnnSettings):
        return Trial(training_name(policy), TrainRnn(policy, graphs, settings, seed))
    task = TrainPlaceto(policy, graphs, settings, seed, validation)
    return Trial(training_name(policy), task)
