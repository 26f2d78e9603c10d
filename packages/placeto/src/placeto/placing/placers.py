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
class Scheme:
    """A placer that can be asked for by name.

    Attributes
    ----------
    title : text
        What it is called in tables.
    make : function
        From a problem and a budget to the placer.
    budget : int or None
        How many placements it samples by default; None where a budget means nothing.
    random : bool
        Whether another seed gives another result.
    short_budget : int or None
        What it has of that in a comparison that is to take a few minutes on two cores; None for
        all of it.
    """

    title: str
    make: Callable[[PlacementProblem, int], Placer]
    budget: int | None = None
    random: bool = False
    short_budget: int | None = None


def _expert(problem: PlacementProblem, _budget: int) -> Placer:
    return ExpertPlacer(expert_scopes(problem.graph.scopes))


def _placeto(_problem: PlacementProblem, budget: int) -> Placer:
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415,

    return PlacetoPlacer(training_evaluations=budget)


def _published(_problem: PlacementProblem, budget: int) -> Placer:
    from placeto_policy import (  # noqa: PLC0415
        PlacetoPlacer,
        preset,
    )

    return PlacetoPlacer(training_evaluations=budget, settings=preset("paper"))


def pretrained(problem: PlacementProblem, policy: "PlacementPolicy | None" = None) -> Placer:
    """Return the policy in the box as it places without a search behind it.

    Parameters
    ----------
    problem
        What it is to place.
    policy
        Another policy in its stead.
    """
    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_SWEEP
    return _passes(policy, sweeps=SWEEPS_OF_PRETRAINED if is_quick else 0)


def start_of_search(policy: "PlacementPolicy | None" = None) -> Placer:
    """Return the policy in the box as it places where a search goes on: that sweeps better."""
    return _passes(policy, sweeps=0)


def _passes(policy: "PlacementPolicy | None", sweeps: int) -> Placer:
    from placeto_policy import (  # noqa: PLC0415
        PlacetoPlacer,
        load_pretrained,
    )

    return PlacetoPlacer(
        policy=policy or load_pretrained(), samples=SAMPLES_OF_PRETRAINED, sweeps=sweeps
    )


def _rnn(problem: PlacementProblem, budget: int) -> Placer:
    return RnnPlacer(fitting(RnnSettings(evaluations=budget, **NARROW_RNN), [problem]))


# In the order of the seconds that they take on Inception-V3, the least first: comparisons run and
# show them in it, so that there is something to see at once.
SCHEMES: Mapping[str, Scheme] = {
    "cpu": Scheme("CPU only", lambda _problem, _budget: CpuOnly()),
    "single": Scheme("Single GPU", lambda _problem, _budget: SingleDevice()),
    "expert": Scheme("Expert", _expert),
    "scotch": Scheme("Scotch", lambda _problem, _budget: ScotchPlacer(), random=True),
    "metis": Scheme("METIS", lambda _problem, _budget: MetisPlacer(), random=True),
    "m-topo": Scheme("m-TOPO", lambda _problem, _budget: MTopo()),
    "critical-path": Scheme("Critical path", lambda _problem, _budget: CriticalPathPlacer()),
    "heft": Scheme("HEFT", lambda _problem, _budget: Heft()),
    "m-etf": Scheme("m-ETF", lambda _problem, _budget: MEtf()),
    "m-sct": Scheme("m-SCT", lambda _problem, _budget: MSct()),
    "pretrained": Scheme(
        "Placeto, pretrained", lambda problem, _budget: pretrained(problem), random=True
    ),
    "random": Scheme(
        "Random", lambda _problem, budget: RandomPlacer(budget), budget=10_000, random=True
    ),
    "coarse-to-fine": Scheme(
        "Coarse to fine",
        lambda _problem, budget: MultilevelSearch(evaluations=budget),
        budget=50_000,
        random=True,
    ),
    "local-search": Scheme(
        "Local search", lambda _problem, budget: LocalSearch(budget), budget=50_000, random=True
    ),
    # Its steps sample a placement each; those of Placeto look at others, which counts as well.
    "published": Scheme(
        "Placeto, as published", _published, budget=500_000, random=True, short_budget=20_000
    ),
    "placeto": Scheme("Placeto", _placeto, budget=100_000, random=True, short_budget=50_000),
    "rnn": Scheme("RNN", _rnn, budget=100_000, random=True, short_budget=5_000),
}
PLACER_NAMES = tuple(SCHEMES)


def fitting(settings: RnnSettings, problems: Sequence[PlacementProblem]) -> RnnSettings:
    """Return the hyperparameters with sequences as long as the graphs need."""
    longest = max(problem.num_groups for problem in problems)
    return replace(settings, max_groups=max(settings.max_groups, longest))


def make_placer(name: str, problem: PlacementProblem, budget: int | None = None) -> Placer:
    """Return a placer.

    Parameters
    ----------
    name
        One of `PLACER_NAMES`.
    problem
        What it is to place.
    budget
        How many placements it may sample, if it searches; by default its own.
    """
    scheme = SCHEMES[name]
    return scheme.make(problem, budget or scheme.budget or 1)
