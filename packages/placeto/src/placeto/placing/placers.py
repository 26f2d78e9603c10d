"""The placers by name, with the budgets that they have by default."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placeto.placing.expert_scopes import expert_scopes
from placeto_baselines import (
    CpuOnly,
    CriticalPathPlacer,
    ExpertPlacer,
    Heft,
    LocalSearch,
    MEtf,
    MetisPlacer,
    MSct,
    MTopo,
    MultilevelSearch,
    RandomPlacer,
    RnnPlacer,
    RnnSettings,
    ScotchPlacer,
    SingleDevice,
)
from placeto_graphs import PlacementProblem, Placer

if TYPE_CHECKING:
    from placeto_policy import PlacementPolicy

# A narrow RNN learns as much from as many placements as one of 512 units, each of which takes it a
# quarter of the time (lab/notes/recurrent-policy.md).
NARROW_RNN: Mapping[str, Any] = {"hidden_size": 128, "learning_rate": 0.003}

SAMPLES_OF_PRETRAINED = 15  # besides the most probable placement
SWEEPS_OF_PRETRAINED = 2  # after the best of them, where no search follows
MOST_EVALUATIONS_OF_SWEEP = 4096  # beyond, a sweep takes longer than a search that is worth more


@dataclass(frozen=True)
class PlacerSpec:
    """A placer that has a name in the command."""

    title: str  # in tables
    make: Callable[[PlacementProblem, int], Placer]  # of a problem and a budget
    # Evaluations by default, in every command; None where that means nothing
    budget: int | None = None
    random: bool = False  # whether another seed gives another result
    # Evaluations with `compare --full`, where the default is what takes a few minutes on two cores
    full_budget: int | None = None

    @property
    def trains(self) -> bool:
        """Whether it trains a policy, which takes minutes."""
        return self.full_budget is not None


def _expert(problem: PlacementProblem, _budget: int) -> Placer:
    return ExpertPlacer(expert_scopes(problem.graph.scopes))


def _placeto(_problem: PlacementProblem, budget: int) -> Placer:
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    return PlacetoPlacer(training_evaluations=budget)


def _published(_problem: PlacementProblem, budget: int) -> Placer:
    from placeto_policy import PlacetoPlacer, preset  # noqa: PLC0415

    return PlacetoPlacer(training_evaluations=budget, settings=preset("paper"))


def pretrained(problem: PlacementProblem, policy: "PlacementPolicy | None" = None) -> Placer:
    """Return the bundled pretrained policy, or another one, as it places without a search."""
    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_SWEEP
    return start_of_search(policy, SWEEPS_OF_PRETRAINED if is_quick else 0)


def start_of_search(policy: "PlacementPolicy | None" = None, sweeps: int = 0) -> Placer:
    """Return the bundled pretrained policy, or another one, as it places before a search."""
    from placeto_policy import PlacetoPlacer, load_pretrained  # noqa: PLC0415

    return PlacetoPlacer(
        policy=policy or load_pretrained(), samples=SAMPLES_OF_PRETRAINED, sweeps=sweeps
    )


def _rnn(problem: PlacementProblem, budget: int) -> Placer:
    return RnnPlacer(fitting(RnnSettings(evaluations=budget, **NARROW_RNN), [problem]))


# In the order of the seconds that they take on Inception-V3, the least first: comparisons run and
# show them in it, so that there is something to see at once.
PLACERS: Mapping[str, PlacerSpec] = {
    "cpu": PlacerSpec("CPU only", lambda _problem, _budget: CpuOnly()),
    "single": PlacerSpec("Single GPU", lambda _problem, _budget: SingleDevice()),
    "expert": PlacerSpec("Expert", _expert),
    "scotch": PlacerSpec("Scotch", lambda _problem, _budget: ScotchPlacer(), random=True),
    "metis": PlacerSpec("METIS", lambda _problem, _budget: MetisPlacer(), random=True),
    "m-topo": PlacerSpec("m-TOPO", lambda _problem, _budget: MTopo()),
    "critical-path": PlacerSpec("Critical path", lambda _problem, _budget: CriticalPathPlacer()),
    "heft": PlacerSpec("HEFT", lambda _problem, _budget: Heft()),
    "m-etf": PlacerSpec("m-ETF", lambda _problem, _budget: MEtf()),
    "m-sct": PlacerSpec("m-SCT", lambda _problem, _budget: MSct()),
    "pretrained": PlacerSpec(
        "Placeto, pretrained", lambda problem, _budget: pretrained(problem), random=True
    ),
    "random": PlacerSpec(
        "Random", lambda _problem, budget: RandomPlacer(budget), budget=10_000, random=True
    ),
    "multilevel": PlacerSpec(
        "Coarse to fine",
        lambda _problem, budget: MultilevelSearch(evaluations=budget),
        budget=50_000,
        random=True,
    ),
    "local-search": PlacerSpec(
        "Local search", lambda _problem, budget: LocalSearch(budget), budget=50_000, random=True
    ),
    # Its steps sample a placement each; those of Placeto look at others, which counts as well.
    "paper": PlacerSpec(
        "Placeto, as published", _published, budget=20_000, random=True, full_budget=500_000
    ),
    "placeto": PlacerSpec("Placeto", _placeto, budget=50_000, random=True, full_budget=100_000),
    "rnn": PlacerSpec("RNN", _rnn, budget=5_000, random=True, full_budget=100_000),
}
PLACER_NAMES = tuple(PLACERS)
_OLD_NAMES = {"coarse-to-fine": "multilevel", "published": "paper"}  # until 0.4


def current_name(name: str) -> str:
    """Return the name of a placer today, where it had another one before 0.3.

    Examples
    --------
    >>> current_name("coarse-to-fine"), current_name("heft")
    ('multilevel', 'heft')
    """
    return _OLD_NAMES.get(name, name)


def fitting(settings: RnnSettings, problems: Sequence[PlacementProblem]) -> RnnSettings:
    """Return the hyperparameters with sequences as long as the graphs need."""
    longest = max(problem.num_groups for problem in problems)
    return replace(settings, max_groups=max(settings.max_groups, longest))


def make_placer(name: str, problem: PlacementProblem, budget: int | None = None) -> Placer:
    """Return a placer of `PLACER_NAMES` for a problem, with a budget or by default its own."""
    spec = PLACERS[name]
    return spec.make(problem, budget or spec.budget or 1)
