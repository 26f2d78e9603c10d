"""Placers that several experiments have in common, and the trials of placers and policies."""

from collections.abc import Iterable, Mapping
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from placeto.trials.placing_tasks import Place, PlaceByName
from placeto.trials.trials import Graph, Trial, placing_trial, training_name
from placeto_baselines import Limits, RnnSettings
from placeto_experiments.paper.plan import Plan
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


class Placer(NamedTuple):
    """A placer of experiments."""

    title: str  # in tables
    task: type[Place]
    fields: Mapping[str, Any] = {}  # others of the task
    of_plan: Mapping[str, str] = {}  # more fields, which are attributes of the plan
    policy: str = ""  # policy that it needs, see `training`
    has_seed: bool = True  # whether another seed changes its results


def _named(title: str, name: str, **fields: Any) -> Placer:
    """Return a placer of the command."""
    return Placer(title, PlaceByName, {"name": name}, **fields)


BUDGET = {"max_evaluations": "evaluations"}
PLACETO, IN_PAPER = "Placeto (default configuration)", "Placeto (paper configuration)"
PLACERS: Mapping[str, Placer] = {
    "placeto-zero-shot": Placer(f"{PLACETO}, zero-shot", PlaceZeroShot, policy="placeto"),
    "placeto-zero-shot-sampled": Placer(
        f"{PLACETO}, zero-shot, best of several rollouts",
        PlaceZeroShot,
        of_plan={"rollouts": "rollouts"},
        policy="placeto",
    ),
    "placeto-zero-shot-refined": Placer(
        f"{PLACETO}, zero-shot, refined",
        PlaceZeroShot,
        {"refinement_rounds": REFINEMENT_ROUNDS},
        policy="placeto",
    ),
    "paper-zero-shot": Placer(f"{IN_PAPER}, zero-shot", PlaceZeroShot, policy="paper"),
    "pretrained": _named("Placeto, pretrained", "pretrained"),
    "placeto-trained": _named(
        f"{PLACETO}, trained on the graph", "placeto", of_plan={**BUDGET, "settings": "settings"}
    ),
    "paper-trained": _named(
        f"{IN_PAPER}, trained on the graph",
        "placeto",
        of_plan={"max_evaluations": "paper_evaluations", "settings": "paper_settings"},
    ),
    "rnn-zero-shot": Placer("RNN, zero-shot", PlaceRnnZeroShot, policy="rnn"),
    "rnn-trained": _named(
        "RNN, trained on the graph",
        "rnn",
        of_plan={"max_evaluations": "rnn_settings.evaluations", "settings": "rnn_settings"},
    ),
    "random": Placer("Random placement", PlaceAtRandom),
    "random-search": _named("Random search", "random", of_plan=BUDGET),
    "single": _named("Single GPU", "single", has_seed=False),
    "scotch": _named("Scotch", "scotch"),
    "hill-climbing": Placer("Hill climbing", PlaceByHillClimbing, of_plan=BUDGET),
    "local-search": _named("Local search", "local-search", of_plan=BUDGET),
    "multilevel": _named("Portfolio search", "multilevel", of_plan=BUDGET),
    "lower-bound": Placer("Lower bound", Bound, has_seed=False),
}
TITLES = {label: placer.title for label, placer in PLACERS.items()}
# Zero-shot and trained on the graph, by the name of the policy
PAIRS = {
    "placeto": ("placeto-zero-shot", "placeto-trained"),
    "paper": ("paper-zero-shot", "paper-trained"),
    "rnn": ("rnn-zero-shot", "rnn-trained"),
}


def place(labels: Iterable[str], graphs: Iterable[Graph], plan: Plan) -> list[Trial]:
    """Return the trials of some of `PLACERS` on graphs, with all seeds."""
    trials = []
    for label, graph in product(labels, graphs):
        placer = PLACERS[label]
        plan_fields = {field: attrgetter(name)(plan) for field, name in placer.of_plan.items()}
        fields = {**placer.fields, **plan_fields}
        if "max_evaluations" in fields:
            fields["limits"] = Limits(fields.pop("max_evaluations"), strict=False)
        trials += [
            trial(placer.task, label, graph, seed, placer.policy, **fields)
            for seed in (plan.seeds if placer.has_seed else [None])
        ]
    return trials


def trial(
    task: type[Place],
    label: str,
    graph: Graph,
    seed: int | None,
    policy: str = "",
    **fields: Any,
) -> Trial:
    """Return a trial on a graph, which may need the policy of `training`."""
    needed_policies = []
    if policy:
        fields["policy"] = f"{policy}-{seed}"
        needed_policies = [training_name(fields["policy"])]
    return placing_trial(
        task(label=label, graph=graph, seed=seed, **fields), label, graph, seed, *needed_policies
    )


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
