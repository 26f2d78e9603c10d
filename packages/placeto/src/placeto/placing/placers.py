"""Placers by name, with their default budgets, and placers of users; `warm_up` compiles theirs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeto.errors import InputError
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.placing.own import PLACER_PLUGINS, checked_placer, is_own, own_class
from placeto.progress import cpu_seconds
from placeto_baselines import (
    CpuOnly,
    CriticalPathPlacer,
    ExpertPlacer,
    ExpertScopes,
    Heft,
    LocalSearch,
    MEtf,
    MetisPlacer,
    MSct,
    MTopo,
    PortfolioSearch,
    RandomPlacer,
    RnnPlacer,
    RnnSettings,
    ScotchPlacer,
    SingleDevice,
)
from placeto_graphs import (
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    Placer,
    SchedulingEvaluator,
    from_networkx,
    parse_cluster,
)
from placeto_graphs.errors import not_among

if TYPE_CHECKING:
    from placeto_policy import PlacetoPlacer, Settings, UpdateSummary

    OnUpdate = Callable[[UpdateSummary, int], None]

# A narrow RNN learns as much from as many placements as one of 512 units, each of which takes it a
# quarter of the time (lab/notes/recurrent-policy.md).
NARROW_RNN: Mapping[str, Any] = {"hidden_size": 128, "learning_rate": 0.003}

MULTILEVEL = "multilevel"  # name of the usual search
ROLLOUTS_OF_PRETRAINED = 15  # sampled, besides the greedy one
# Placers whose placements count besides.
STARTS_OF_PRETRAINED = (SingleDevice(), CriticalPathPlacer(), Heft(), MEtf(), MSct())
ROUNDS_OF_PRETRAINED = 2  # after the best of them, where no search follows
MOST_EVALUATIONS_OF_ROUND = 4096  # beyond, a round takes longer than a search that finds more
BUDGET_OF_WARMING = 200  # placements: an update of every policy, and a few moves of every search
# A search that is to end after some seconds gets more evaluations than it can make.
ENDLESS = 10**9
EVALUATIONS_OF_START = 12_500  # of a start of local search, as it has them by default


class Budget(NamedTuple):
    """Limit of a placer."""

    evaluations: int  # 0 for as many as it likes
    seconds: float | None = None  # CPU seconds, None for as many as it likes
    most: int | None = None  # evaluations after which it is stopped
    on_update: "OnUpdate | None" = None  # gets each update of a training, and their number


@dataclass(frozen=True)
class PlacerSpec:
    """A placer that has a name in the command."""

    name: str
    title: str  # in tables
    make: Callable[[PlacementProblem, Budget], Placer]
    # Evaluations by default, in every command; None where that means nothing
    budget: int | None = None
    random: bool = False  # whether another seed gives another result
    # Evaluations with `compare --full`, where the default is what takes a few minutes on two cores
    full_budget: int | None = None
    modules: tuple[str, ...] = ()  # of one of a user's own: modules whose files decide what it does
    warms_as: str = ""  # name of a placer that calls the same code, if it is another

    @property
    def searches(self) -> bool:
        """True if it evaluates as many placements as it may, as all placers of users do."""
        return self.budget is not None or bool(self.modules)

    @property
    def trains(self) -> bool:
        """True if it trains a policy, which takes minutes."""
        return self.full_budget is not None


# Scopes of registered models and profiles that an expert takes for layers and branches.
KNOWN_SCOPES = (
    # Inception: the parallel branches of each module.
    ExpertScopes(branch=r"(network\.(?:modules|reduction)_\w+(?:\.\d+)?)\.(\w+)"),
    # NASNet and ENAS: the blocks of each cell.
    ExpertScopes(branch=r"(network\.cells\.cell\d+)\.blocks\.(block\d+)"),
    # Translation: its layers, as Wu et al. (2016) place them.
    ExpertScopes(layer=r"(?:encoder|decoder)\.layer(\d+)", with_last_layer=r"attention|softmax"),
    # A profile that PipeDream's optimizer has placed: its stages.
    ExpertScopes(layer=r"stage(\d+)$"),
)


def expert_scopes(scopes: Sequence[str]) -> ExpertScopes | None:
    """Return the layers and branches that the scopes of a graph name, or None if they do not."""
    different = set(scopes)
    for known in KNOWN_SCOPES:
        pattern = known.branch or known.layer or ""
        if any(re.match(pattern, scope) for scope in different):
            return known
    return None


def trained(
    problem: PlacementProblem, budget: Budget, settings: "Settings | None" = None
) -> Placer:
    """Return a placer that trains a policy, whose last rollout is within its limit, too."""
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    placer = PlacetoPlacer(
        max_evaluations=budget.evaluations, settings=settings, on_update=budget.on_update
    )
    beyond = max(placer.most_evaluations(problem) - budget.most, 0) if budget.most else 0
    return replace(placer, max_evaluations=max(budget.evaluations - beyond, 1))


def _paper(problem: PlacementProblem, budget: Budget) -> Placer:
    from placeto_policy import preset  # noqa: PLC0415

    return trained(problem, budget, preset("paper"))


def _pretrained(problem: PlacementProblem, _budget: Budget) -> Placer:
    """Return the bundled pretrained policy, beside others whose placements count, too."""
    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_ROUND
    placer = start_of_search(ROUNDS_OF_PRETRAINED if is_quick else 0)
    return replace(placer, starts=STARTS_OF_PRETRAINED)


def start_of_search(refinement_rounds: int = 0) -> "PlacetoPlacer":
    """Return the bundled pretrained policy, as it places before a search."""
    from placeto_policy import PlacetoPlacer, load_pretrained  # noqa: PLC0415

    return PlacetoPlacer(
        policy=load_pretrained(),
        num_rollouts=ROLLOUTS_OF_PRETRAINED,
        refinement_rounds=refinement_rounds,
    )


def _multilevel(_problem: PlacementProblem, budget: Budget) -> Placer:
    evaluations = None if budget.seconds else budget.evaluations
    return PortfolioSearch(seconds=budget.seconds, max_evaluations=evaluations, clock=cpu_seconds)


def _local_search(_problem: PlacementProblem, budget: Budget) -> Placer:
    if budget.seconds:  # as many starts as there is time for
        return LocalSearch(ENDLESS, restarts=ENDLESS // EVALUATIONS_OF_START)
    return LocalSearch(budget.evaluations)


# In the order of the seconds that they take on Inception-V3, the least first: comparisons run and
# show them in it, so that there is something to see at once.
_SPECS = (
    PlacerSpec("cpu", "CPU only", lambda _problem, _budget: CpuOnly()),
    PlacerSpec("single", "Single GPU", lambda _problem, _budget: SingleDevice()),
    PlacerSpec(
        "expert",
        "Expert",
        lambda problem, _budget: ExpertPlacer(expert_scopes(problem.graph.scopes)),
    ),
    PlacerSpec("scotch", "Scotch", lambda _problem, _budget: ScotchPlacer(), random=True),
    PlacerSpec("metis", "METIS", lambda _problem, _budget: MetisPlacer(), random=True),
    PlacerSpec("m-topo", "m-TOPO", lambda _problem, _budget: MTopo()),
    PlacerSpec("critical-path", "Critical path", lambda _problem, _budget: CriticalPathPlacer()),
    PlacerSpec("heft", "HEFT", lambda _problem, _budget: Heft()),
    PlacerSpec("m-etf", "m-ETF", lambda _problem, _budget: MEtf()),
    PlacerSpec("m-sct", "m-SCT", lambda _problem, _budget: MSct()),
    PlacerSpec("pretrained", "Placeto, pretrained", _pretrained, random=True),
    PlacerSpec(
        "random",
        "Random",
        lambda _problem, budget: RandomPlacer(ENDLESS if budget.seconds else budget.evaluations),
        budget=10_000,
        random=True,
    ),
    PlacerSpec(MULTILEVEL, "Portfolio search", _multilevel, budget=50_000, random=True),
    PlacerSpec("local-search", "Local search", _local_search, budget=50_000, random=True),
    # Its steps sample a placement each; those of Placeto look at others, which counts as well.
    PlacerSpec(
        "paper",
        "Placeto (paper configuration)",
        _paper,
        budget=20_000,
        random=True,
        full_budget=500_000,
    ),
    PlacerSpec(
        "placeto",
        "Placeto (default configuration)",
        trained,
        budget=50_000,
        random=True,
        full_budget=100_000,
    ),
    PlacerSpec(
        "rnn",
        "RNN",
        lambda problem, budget: RnnPlacer(
            fitting(RnnSettings(evaluations=budget.evaluations, **NARROW_RNN), [problem])
        ),
        budget=5_000,
        random=True,
        full_budget=100_000,
    ),
)
PLACERS: Mapping[str, PlacerSpec] = {spec.name: spec for spec in _SPECS}
PLACER_NAMES = tuple(PLACERS)


def placer_spec(given: str | Placer) -> PlacerSpec:
    """Return a placer of `PLACERS`, or one of the user: an object, or a name of its class.

    A name is ``package.module:Class`` or that of an entry point, with arguments behind colons. The
    class also gets ``max_evaluations`` and ``seconds``, if it has such parameters.
    """
    if not isinstance(given, str):
        checked = checked_placer(getattr(given, "name", type(given).__name__), given)
        modules = (type(given).__module__,)
        return PlacerSpec(
            checked.name, checked.name, lambda *_: checked, random=True, modules=modules
        )
    name, *arguments = given.split(":", 1)
    if name in PLACERS:
        if arguments:
            raise InputError(
                f"{given}: expected no arguments of {name}; its class takes them, such as "
                "placeto_baselines:LocalSearch:restarts=8"
            )
        return PLACERS[name]
    if not is_own(given, PLACER_PLUGINS):
        known = not_among(given, PLACER_NAMES)
        raise InputError(f"placer: {known}; one of your own is package.module:Class")
    own = own_class(given, PLACER_PLUGINS)

    def make(_problem: PlacementProblem, budget: Budget) -> Placer:
        limits = {"max_evaluations": budget.evaluations or None, "seconds": budget.seconds}
        heeded = {name: limit for name, limit in limits.items() if limit is not None}
        return checked_placer(own.text, own.make(**heeded))

    return PlacerSpec(own.text, own.text, make, random=True, modules=own.modules)


def make_placer(name: str | Placer, problem: PlacementProblem, budget: int | None = None) -> Placer:
    """Return a placer for a problem, with a number of evaluations."""
    spec = placer_spec(name)
    return spec.make(problem, Budget(budget or spec.budget or 0))


def fitting(settings: RnnSettings, problems: Sequence[PlacementProblem]) -> RnnSettings:
    """Return the hyperparameters with sequences as long as the graphs need."""
    longest = max(problem.num_groups for problem in problems)
    return replace(settings, max_groups=max(settings.max_groups, longest))


def warm_up(name: str, evaluator: EvaluatorSpec = STEP) -> None:
    """Let a placer place a few ops, which compiles its code; one of a user is left cold."""
    if name in PLACERS:
        _place_a_few_ops(name, STEP if evaluator.modules else evaluator)


def warm_up_evaluator(evaluator: Evaluator) -> None:
    """Let an evaluator evaluate a placement and try a move: its problem decides the code."""
    can_run = np.isfinite(evaluator.problem.group_graph.compute_time)
    placements = can_run.argmax(axis=1).astype(np.int32)[None]
    evaluator.evaluate(placements)
    if isinstance(evaluator, SchedulingEvaluator):
        evaluator.schedule(placements)
    if isinstance(evaluator, MoveEvaluator):
        moves = Moves(
            set_of=np.zeros((1, 1), np.int32),
            device=placements[:, :1],
            allowance=np.zeros((1, 1)),
            first_member=np.arange(2, dtype=np.int32),
            members=np.zeros(1, np.int32),
        )
        evaluator.walk(placements, moves)


@cache
def _place_a_few_ops(name: str, evaluator: EvaluatorSpec) -> None:
    priced = _of_a_few_ops(evaluator)
    evaluator.lower_bound(priced.problem)
    make_placer(name, priced.problem, BUDGET_OF_WARMING).place(priced.problem, priced)


@cache
def _of_a_few_ops(evaluator: EvaluatorSpec) -> Evaluator:
    """Return an evaluator of two chains of three ops, on a CPU and two GPUs."""
    import networkx as nx  # noqa: PLC0415 (a placement by the usual search needs none)

    chains = nx.DiGraph()
    for chain in "ab":
        nx.add_path(chains, [f"{chain}{position}" for position in range(3)], bytes=1000)
    problem = PlacementProblem(
        graph=from_networkx(chains),
        cluster=parse_cluster("1xcpu+2xk80"),
        compute_time=np.ones((6, 3)),
    )
    return evaluator.make(problem, None)
