"""The trials of the placers that several experiments have in common."""

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
from placeto_experiments.paper.plan import AS_PUBLISHED, Plan
from placeto_experiments.paper.training_tasks import TrainPlaceto, TrainRnn
from placeto_policy import Settings, preset

ZERO_SHOT, SAMPLED = "placeto-zero-shot", "placeto-zero-shot-sampled"
SWEPT = "placeto-zero-shot-swept"
PUBLISHED_ZERO_SHOT, PRETRAINED = "published-zero-shot", "pretrained"
OPTIMIZED, PUBLISHED_OPTIMIZED = "placeto-optimized", "published-optimized"
RNN_ZERO_SHOT, RNN_OPTIMIZED = "rnn-zero-shot", "rnn-optimized"
RANDOM_SEARCH, LOCAL_SEARCH = "random-search", "local-search"
HILL_CLIMBING, MULTILEVEL = "hill-climbing", "multilevel"
SINGLE, SCOTCH = "single", "scotch"

UPDATES_AS_PUBLISHED = AS_PUBLISHED["updates"]
PLACEMENTS_AS_PUBLISHED = AS_PUBLISHED["placements"]
SWEEPS = 2
HILL_CLIMBING_BUDGET = 5000

TITLES = {
    ZERO_SHOT: "Placeto zero-shot, greedy",
    SAMPLED: "Placeto zero-shot, best of samples",
    SWEPT: "Placeto zero-shot, greedy and two rounds of coordinate descent",
    PUBLISHED_ZERO_SHOT: "Placeto (paper configuration), zero-shot",
    PRETRAINED: "Placeto, pretrained",
    OPTIMIZED: "Placeto optimized",
    PUBLISHED_OPTIMIZED: "Placeto (paper configuration), optimized",
    RNN_ZERO_SHOT: "RNN zero-shot",
    RNN_OPTIMIZED: "RNN optimized",
    RANDOM: "Random, one placement",
    RANDOM_SEARCH: "Random, best of as many",
    SINGLE: "Single GPU",
    SCOTCH: "Scotch",
    HILL_CLIMBING: "Hill climbing",
    MULTILEVEL: "Multilevel search, in as many groups",
    LOCAL_SEARCH: "Local search",
    LOWER_BOUND: "Lower bound",
}


def without_simulated_features(settings: Settings) -> Settings:
    """Return settings whose policy sees nothing that is simulated.

    For questions that a policy which is told as much hardly poses: what an embedding or a reward is
    worth.
    """
    if settings.device_features == "loads-and-lookahead":
        settings = replace(settings, device_features="loads")
    if settings.node_features == "costs-times-and-schedule":
        settings = replace(settings, node_features="costs-and-times")
    return settings


def as_published(plan: Plan) -> Settings:
    """Return the paper's hyperparameters, in sizes of the plan."""
    updates = UPDATES_AS_PUBLISHED * plan.scale.number("updates")
    return replace(preset("paper"), **{**plan.scale.settings, "updates": updates})


def train_placeto(
    name: str,
    graphs: tuple[Graph, ...],
    settings: Settings,
    seed: int,
    *,
    validation: tuple[Graph, ...] = (),
) -> Trial:
    """Return the training of a policy on several graphs, chosen by how it places others."""
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
    samples: int = 0,
    sweeps: int = 0,
) -> Trial:
    """Return placing with a policy of `train_placeto` as it is."""
    task = PlaceZeroShot(
        label=label,
        graph=graph,
        seed=seed,
        policy=f"{name}-{seed}",
        samples=samples,
        sweeps=sweeps,
    )
    return _placing(task, training_name(task.policy))


def rnn_zero_shot(graph: Graph, seed: int) -> Trial:
    """Return placing with the RNN of `train_rnn` as it is."""
    task = PlaceRnnZeroShot(label=RNN_ZERO_SHOT, graph=graph, seed=seed, policy=f"rnn-{seed}")
    return _placing(task, training_name(task.policy))


def optimized(graph: Graph, plan: Plan, seed: int) -> Trial:
    """Return the training of a policy on the graph itself."""
    budget = plan.scale.number("evaluations")
    return _by_name(OPTIMIZED, "placeto", graph, seed, budget, plan.settings)


def published_optimized(graph: Graph, plan: Plan, seed: int) -> Trial:
    """Return the training of a policy on the graph itself, with the paper's hyperparameters."""
    settings = replace(preset("paper"), **plan.scale.settings)
    budget = PLACEMENTS_AS_PUBLISHED * plan.scale.number("evaluations")
    return _by_name(PUBLISHED_OPTIMIZED, "placeto", graph, seed, budget, settings)


def rnn_optimized(graph: Graph, settings: RnnSettings, seed: int) -> Trial:
    """Return the training of an RNN on the graph itself."""
    return _by_name(RNN_OPTIMIZED, "rnn", graph, seed, settings.evaluations, settings)


def searches(graph: Graph, plan: Plan, seed: int) -> list[Trial]:
    """Return what places a graph without training: searches with as many evaluations as Placeto."""
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
    """Return what comes to the same with every seed: one device, and the bound."""
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
