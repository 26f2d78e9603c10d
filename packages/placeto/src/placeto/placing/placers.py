"""Placers by name, with their default limits, and placers of users; `warm_up` compiles theirs."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.errors import InputError
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.placing.own import PLACER_PLUGINS, checked_placer, is_own, own_class
from placeto.progress import cpu_seconds
from placeto.training.folder import policy_file, read_policy
from placeto_baselines import (
    CpuOnly,
    CriticalPathPlacer,
    ExpertPlacer,
    ExpertScopes,
    Heft,
    Limits,
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
POLICY = "policy:"  # before the folder or file of a trained policy, in the name of its placer
DEFAULT_REFINEMENT_ROUNDS = 10  # most placements need fewer; one gains more than a rollout
ROLLOUTS_OF_PRETRAINED = 15  # sampled, besides the greedy one
# Placers whose placements count besides.
STARTS_OF_PRETRAINED = (SingleDevice(), CriticalPathPlacer(), Heft(), MEtf(), MSct())
ROUNDS_OF_PRETRAINED = 2  # after the best of them, where no search follows
MOST_EVALUATIONS_OF_ROUND = 4096  # beyond, a round takes longer than a search that finds more
EVALUATIONS_OF_WARMING = 200  # an update of every policy, and a few moves of every search
# A search that is to end after some seconds gets more evaluations than it can make.
ENDLESS = 10**9
EVALUATIONS_OF_START = 12_500  # of a start of local search, as it has them by default


@dataclass(frozen=True)
class PlacerSpec:
    """A placer that has a name in the command."""

    name: str
    title: str  # in tables
    # Of a problem, limits that have a number of evaluations where it needs one (`with_default`),
    # and what is called with each update of a training
    make: "Callable[[PlacementProblem, Limits, OnUpdate | None], Placer]"
    # Evaluations by default, in every command; None where that means nothing
    default_evaluations: int | None = None
    random: bool = False  # whether another seed gives another result
    # Evaluations with `compare --full`, where the default is what takes a few minutes on two cores
    full_evaluations: int | None = None
    modules: tuple[str, ...] = ()  # of one of a user's own: modules whose files decide what it does
    warms_as: str = ""  # name of a placer that calls the same code, if it is another

    @property
    def searches(self) -> bool:
        """True if it evaluates as many placements as it may, as all placers of users do."""
        return self.default_evaluations is not None or bool(self.modules)

    @property
    def trains(self) -> bool:
        """True if it trains a policy, which takes minutes."""
        return self.full_evaluations is not None

    def with_default(self, limits: Limits, *, full: bool = False) -> Limits:
        """Return limits with the default number of evaluations, if they have none.

        Seconds end a search; a training is also planned by its evaluations.
        """
        evaluations = self.default_evaluations
        if full and self.full_evaluations:
            evaluations = self.full_evaluations
        ends_by_seconds = limits.seconds is not None and not self.trains
        if limits.max_evaluations is not None or evaluations is None or ends_by_seconds:
            return limits
        return replace(limits, max_evaluations=evaluations, strict=False)


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
    for patterns in KNOWN_SCOPES:
        pattern = patterns.branch or patterns.layer or ""
        if any(re.match(pattern, scope) for scope in different):
            return patterns
    return None


def trained(
    problem: PlacementProblem,
    limits: Limits,
    on_update: "OnUpdate | None" = None,
    settings: "Settings | None" = None,
) -> Placer:
    """Return a placer that trains a policy, whose last rollout is within its limit, too."""
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    evaluations = limits.max_evaluations or 0
    placer = PlacetoPlacer(max_evaluations=evaluations, settings=settings, on_update=on_update)
    if not limits.strict:
        return placer
    beyond = max(placer.most_evaluations(problem) - evaluations, 0)
    return replace(placer, max_evaluations=max(evaluations - beyond, 1))


def _paper(problem: PlacementProblem, limits: Limits, on_update: "OnUpdate | None") -> Placer:
    from placeto_policy import preset  # noqa: PLC0415

    return trained(problem, limits, on_update, preset("paper"))


def _rnn(problem: PlacementProblem, limits: Limits, _on_update: "OnUpdate | None") -> Placer:
    settings = fitting(RnnSettings(**NARROW_RNN), [problem])
    return RnnPlacer(settings, limits.max_evaluations)


def _pretrained(problem: PlacementProblem, *_unused: object) -> Placer:
    """Return the bundled pretrained policy, beside others whose placements count, too."""
    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_ROUND
    placer = start_of_search(ROUNDS_OF_PRETRAINED if is_quick else 0)
    has_cpu = any(device.is_cpu for device in problem.cluster.devices)
    # It is never slower than one device, of any kind.
    return replace(placer, starts=(*STARTS_OF_PRETRAINED, *([CpuOnly()] if has_cpu else [])))


def start_of_search(refinement_rounds: int = 0) -> "PlacetoPlacer":
    """Return the bundled pretrained policy, as it places before a search."""
    from placeto_policy import PlacetoPlacer, load_pretrained  # noqa: PLC0415

    return PlacetoPlacer(
        policy=load_pretrained(),
        num_rollouts=ROLLOUTS_OF_PRETRAINED,
        starts=(),
        refinement_rounds=refinement_rounds,
    )


def policy_spec(path: Path) -> PlacerSpec:
    """Return the placer of a trained policy, which places as ``placeto place --policy`` does."""
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415

    policy = read_policy(path)
    placer = PlacetoPlacer(policy=policy, refinement_rounds=DEFAULT_REFINEMENT_ROUNDS)
    return PlacerSpec(
        f"{POLICY}{path}",
        f"Policy {path}",
        lambda *_: placer,
        modules=(os.path.realpath(policy_file(path)),),
        warms_as="pretrained" if policy.num_devices is None else "placeto",
    )


def _portfolio(_problem: PlacementProblem, limits: Limits, _unused: object) -> Placer:
    max_evaluations = None if limits.seconds else limits.max_evaluations
    return PortfolioSearch(
        seconds=limits.seconds, max_evaluations=max_evaluations, clock=cpu_seconds
    )


def _random(_problem: PlacementProblem, limits: Limits, _unused: object) -> Placer:
    if limits.seconds or limits.max_evaluations is None:
        return RandomPlacer(ENDLESS)
    return RandomPlacer(limits.max_evaluations)


def _local_search(_problem: PlacementProblem, limits: Limits, _unused: object) -> Placer:
    if limits.seconds or limits.max_evaluations is None:  # as many starts as there is time for
        return LocalSearch(ENDLESS, restarts=ENDLESS // EVALUATIONS_OF_START)
    return LocalSearch(limits.max_evaluations)


# In the order of the seconds that they take on Inception-V3, the least first: comparisons run and
# show them in it, so that there is something to see at once.
_SPECS = (
    PlacerSpec("cpu", "CPU only", lambda *_: CpuOnly()),
    PlacerSpec("single", "Single GPU", lambda *_: SingleDevice()),
    PlacerSpec(
        "expert",
        "Expert",
        lambda problem, *_: ExpertPlacer(expert_scopes(problem.graph.scopes)),
    ),
    PlacerSpec("scotch", "Scotch", lambda *_: ScotchPlacer(), random=True),
    PlacerSpec("metis", "METIS", lambda *_: MetisPlacer(), random=True),
    PlacerSpec("m-topo", "m-TOPO", lambda *_: MTopo()),
    PlacerSpec("critical-path", "Critical path", lambda *_: CriticalPathPlacer()),
    PlacerSpec("heft", "HEFT", lambda *_: Heft()),
    PlacerSpec("m-etf", "m-ETF", lambda *_: MEtf()),
    PlacerSpec("m-sct", "m-SCT", lambda *_: MSct()),
    PlacerSpec("pretrained", "Placeto, pretrained", _pretrained, random=True),
    PlacerSpec("random", "Random", _random, default_evaluations=10_000, random=True),
    PlacerSpec(MULTILEVEL, "Portfolio search", _portfolio, default_evaluations=50_000, random=True),
    PlacerSpec(
        "local-search", "Local search", _local_search, default_evaluations=50_000, random=True
    ),
    # Its steps sample a placement each; those of Placeto look at others, which counts as well.
    PlacerSpec(
        "paper",
        "Placeto (paper configuration)",
        _paper,
        default_evaluations=20_000,
        random=True,
        full_evaluations=500_000,
    ),
    PlacerSpec(
        "placeto",
        "Placeto (default configuration)",
        trained,
        default_evaluations=50_000,
        random=True,
        full_evaluations=100_000,
    ),
    PlacerSpec(
        "rnn",
        "RNN",
        _rnn,
        default_evaluations=5_000,
        random=True,
        full_evaluations=100_000,
    ),
)
PLACERS: Mapping[str, PlacerSpec] = {spec.name: spec for spec in _SPECS}
PLACER_NAMES = tuple(PLACERS)


def placer_spec(placer: str | Placer) -> PlacerSpec:
    """Return a placer of `PLACERS`, or one of the user: an object, or a name of its class.

    A name is ``package.module:Class`` or that of an entry point, with arguments behind colons. The
    class also gets ``max_evaluations`` and ``seconds``, if it has such parameters. ``policy:`` with
    a folder of ``placeto train`` names its policy.
    """
    if not isinstance(placer, str):
        checked = checked_placer(getattr(placer, "name", type(placer).__name__), placer)
        modules = (type(placer).__module__,)
        return PlacerSpec(
            checked.name, checked.name, lambda *_: checked, random=True, modules=modules
        )
    if placer.startswith(POLICY):
        return policy_spec(Path(placer.removeprefix(POLICY)))
    name, *arguments = placer.split(":", 1)
    if name in PLACERS:
        if arguments:
            raise InputError(
                f"{placer}: expected no arguments of {name}; its class takes them, such as "
                "placeto_baselines:LocalSearch:restarts=8"
            )
        return PLACERS[name]
    if not is_own(placer, PLACER_PLUGINS):
        expected = not_among(placer, PLACER_NAMES)
        raise InputError(f"placer: {expected}; one of your own is package.module:Class")
    user_class = own_class(placer, PLACER_PLUGINS)

    def make(_problem: PlacementProblem, limits: Limits, _on_update: "OnUpdate | None") -> Placer:
        by_name = {"max_evaluations": limits.max_evaluations, "seconds": limits.seconds}
        set_limits = {name: limit for name, limit in by_name.items() if limit is not None}
        return checked_placer(user_class.text, user_class.make(**set_limits))

    return PlacerSpec(
        user_class.text, user_class.text, make, random=True, modules=user_class.modules
    )


def make_placer(
    name: str | Placer, problem: PlacementProblem, max_evaluations: int | None = None
) -> Placer:
    """Return a placer for a problem.

    Parameters
    ----------
    name
        Name of the command, such as ``"heft"`` or ``"pretrained"``; ``"package.module:Class"``; or
        ``"policy:FOLDER"`` of a policy that ``placeto train`` left in a folder.
    problem
        Problem that it will place.
    max_evaluations
        Number of evaluations of a search or a training, by default that of the command.

    Raises
    ------
    InputError
        If there is no such placer.

    Examples
    --------
    >>> from placeto import read_problem
    >>> from placeto_simulator import Simulator
    >>> problem = read_problem("nmt:0", cluster="2xv100", num_groups=16)
    >>> make_placer("pretrained", problem).place(problem, Simulator(problem)).fits(problem.cluster)
    True
    """
    spec = placer_spec(name)
    limits = spec.with_default(Limits(max_evaluations, strict=False))
    return spec.make(problem, limits, None)


def fitting(settings: RnnSettings, problems: Sequence[PlacementProblem]) -> RnnSettings:
    """Return the hyperparameters with sequences as long as the graphs need."""
    longest = max(problem.num_groups for problem in problems)
    return replace(settings, max_groups=max(settings.max_groups, longest))


def warm_up(name: str, evaluator: EvaluatorSpec = STEP) -> None:
    """Let a placer place a few ops, which compiles its code; one of a user is left cold."""
    if name in PLACERS:
        # A schedule needs micro-batches, which a few ops do not have.
        is_usual = not (evaluator.modules or evaluator.schedule)
        _place_a_few_ops(name, evaluator if is_usual else STEP)


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
    make_placer(name, priced.problem, EVALUATIONS_OF_WARMING).place(priced.problem, priced)


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
