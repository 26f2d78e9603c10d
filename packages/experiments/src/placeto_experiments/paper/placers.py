"""Trials of the placers that several experiments have in common, and the titles of placers."""

from dataclasses import replace

from placeto.trials.placing_tasks import Place, PlaceByName
from placeto.trials.trials import Graph, Trial, placing, training_name
from placeto_baselines import RnnSettings
from placeto_experiments.paper.placing_tasks import (
    LOWER_BOUND,
    RANDOM,
    Bound,
    PlaceAtRandom,
    PlaceByHillClimbing,
    PlaceRnnZeroShot,
    PlaceZeroShot,
)
from placeto_experiments.paper.plan import PAPER_BUDGETS, Plan
from placeto_experiments.paper.training_tasks import TrainPlaceto, TrainRnn
from placeto_policy import Settings, preset

ZERO_SHOT, SAMPLED = "placeto-zero-shot", "placeto-zero-shot-sampled"
REFINED = "placeto-zero-shot-refined"
PAPER_ZERO_SHOT, PRETRAINED = "paper-zero-shot", "pretrained"
TRAINED, PAPER_TRAINED = "placeto-trained", "paper-trained"
RNN_ZERO_SHOT, RNN_TRAINED = "rnn-zero-shot", "rnn-trained"
RANDOM_SEARCH, LOCAL_SEARCH = "random-search", "local-search"
HILL_CLIMBING, MULTILEVEL = "hill-climbing", "multilevel"
SINGLE, SCOTCH = "single", "scotch"

PAPER_UPDATES = PAPER_BUDGETS["updates"]
PAPER_EVALUATIONS = PAPER_BUDGETS["evaluations"]
REFINEMENT_ROUNDS = 2
HILL_CLIMBING_BUDGET = 5000

TITLES = {
    ZERO_SHOT: "Placeto (default configuration), zero-shot",
    SAMPLED: "Placeto (default configuration), zero-shot, best of several rollouts",
    REFINED: "Placeto (default configuration), zero-shot, refined",
    PAPER_ZERO_SHOT: "Placeto (paper configuration), zero-shot",
    PRETRAINED: "Placeto, pretrained",
    TRAINED: "Placeto (default configuration), trained on the graph",
    PAPER_TRAINED: "Placeto (paper configuration), trained on the graph",
    RNN_ZERO_SHOT: "RNN, zero-shot",
    RNN_TRAINED: "RNN, trained on the graph",
    RANDOM: "Random placement",
    RANDOM_SEARCH: "Random search",
    SINGLE: "Single GPU",
    SCOTCH: "Scotch",
    HILL_CLIMBING: "Hill climbing",
    MULTILEVEL: "Multilevel search",
    LOCAL_SEARCH: "Local search",
    LOWER_BOUND: "Lower bound",
}


def without_simulated_features(settings: Settings) -> Settings:
    """Return settings whose policy reads no simulated features.

    Simulated features hide the effect of an embedding or of a reward.
    """
    if settings.device_features == "loads-and-lookahead":
        settings = replace(settings, device_features="loads")
    if settings.node_features == "costs-times-and-schedule":
        settings = replace(settings, node_features="costs-and-times")
    return settings


def paper_settings(plan: Plan) -> Settings:
    """Return the paper's hyperparameters, in sizes of the plan."""
    updates = PAPER_UPDATES * plan.scale.number("updates")
    return replace(preset("paper"), **{**plan.scale.settings, "updates": updates})


def train_placeto(
    name: str,
    graphs: tuple[Graph, ...],
    settings: Settings,
    seed: int,
    *,
    validation: tuple[Graph, ...] = (),
) -> Trial:
    """Return the training of a policy on several graphs; the best on validation graphs is kept."""
    policy = f"{name}-{seed}"
    task = TrainPlaceto(policy, graphs, settings, seed, validation)
    return Trial(training_name(policy), task)


def train_rnn(graphs: tuple[Graph, ...], plan: Plan, seed: int) -> Trial:
    """Return the training of an RNN on several graphs."""
    policy = f"rnn-{seed}"
    return Trial(training_name(policy), TrainRnn(policy, graphs, plan.rnn_settings, seed))


def zero_shot(
    name: str,
    graph: Graph,
    seed: int,
    *,
    label: str = ZERO_SHOT,
    rollouts: int = 0,
    refinement_rounds: int = 0,
) -> Trial:
    """Return placing with a policy of `train_placeto`, without more training."""
    task = PlaceZeroShot(
        label=label,
        graph=graph,
        seed=seed,
        policy=f"{name}-{seed}",
        rollouts=rollouts,
        refinement_rounds=refinement_rounds,
    )
    return _placing(task, training_name(task.policy))


def rnn_zero_shot(graph: Graph, seed: int) -> Trial:
    """Return placing with the RNN of `train_rnn`, without more training."""
    task = PlaceRnnZeroShot(label=RNN_ZERO_SHOT, graph=graph, seed=seed, policy=f"rnn-{seed}")
    return _placing(task, training_name(task.policy))


def trained_on_graph(graph: Graph, plan: Plan, seed: int) -> Trial:
    """Return the training of a policy on the graph itself."""
    budget = plan.scale.number("evaluations")
    return _by_name(TRAINED, "placeto", graph, seed, budget, plan.settings)


def paper_trained_on_graph(graph: Graph, plan: Plan, seed: int) -> Trial:
    """Return the training of a policy on the graph itself, with the paper's hyperparameters."""
    settings = replace(preset("paper"), **plan.scale.settings)
    budget = PAPER_EVALUATIONS * plan.scale.number("evaluations")
    return _by_name(PAPER_TRAINED, "placeto", graph, seed, budget, settings)


def rnn_trained_on_graph(graph: Graph, settings: RnnSettings, seed: int) -> Trial:
    """Return the training of an RNN on the graph itself."""
    return _by_name(RNN_TRAINED, "rnn", graph, seed, settings.evaluations, settings)


def searches(graph: Graph, plan: Plan, seed: int) -> list[Trial]:
    """Return the placers of a graph without training, with as many evaluations as Placeto."""
    budget = plan.scale.number("evaluations")
    climbing = min(budget, HILL_CLIMBING_BUDGET)
    return [
        _placing(PlaceAtRandom(label=RANDOM, graph=graph, seed=seed)),
        _placing(PlaceByHillClimbing(label=HILL_CLIMBING, graph=graph, seed=seed, budget=climbing)),
        _by_name(RANDOM_SEARCH, "random", graph, seed, budget),
        _by_name(SCOTCH, "scotch", graph, seed),
        _by_name(LOCAL_SEARCH, "local-search", graph, seed, budget),
        _by_name(MULTILEVEL, "multilevel", graph, seed, budget),
        _by_name(PRETRAINED, "pretrained", graph, seed),
    ]


def without_seed(graph: Graph) -> list[Trial]:
    """Return the trials whose results no seed changes: one device, and the lower bound."""
    return [
        _by_name(SINGLE, "single", graph, None),
        _placing(Bound(label=LOWER_BOUND, graph=graph, seed=None)),
    ]


def _by_name(
    label: str,
    name: str,
    graph: Graph,
    seed: int | None,
    budget: int | None = None,
    settings: Settings | RnnSettings | None = None,
) -> Trial:
    return _placing(
        PlaceByName(
            label=label, graph=graph, seed=seed, budget=budget, name=name, settings=settings
        )
    )


def _placing(task: Place, *needs: str) -> Trial:
    return placing(task, task.label, task.graph, task.seed, *needs)
