"""Table of a policy on problems that it has not seen, with list schedulers and search."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto_baselines import CriticalPathPlacer, Heft, MEtf, MSct, MultilevelSearch, SingleDevice
from placeto_graphs import Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer
from placeto_simulator import Simulator
from pretraining.searched import Searched, cost_of

PLACERS = ("greedy", "best of 16", "two rounds", "pretrained", "HEFT", "critical path")
SEARCH = "search as long"
COLUMNS = (
    *("problem", "groups", "devices", "best known, s", *PLACERS, SEARCH),
    *("greedy, CPU s", "two rounds, CPU s", "pretrained, CPU s"),
)
MOST_EVALUATIONS_OF_ROUND = 4096  # rounds of coordinate descent with more are left out
STARTS = (SingleDevice(), CriticalPathPlacer(), Heft(), MEtf(), MSct())  # of pretrained
ROLLOUTS = 15  # sampled ones, besides the greedy one
WARM_UP = 100  # evaluations


@dataclass(frozen=True)
class Evaluation:
    """Costs that were found for one problem of G groups on D devices.

    The greedy placement is the most probable one. The best of 16 is the best of it and of sampled
    ones; two rounds of coordinate descent begin there. The placer ``pretrained`` begins with other
    placers, too. The search has as many CPU seconds as ``pretrained``. Seconds include all that is
    computed once for a problem.
    """

    name: str
    groups: int
    devices: int
    best_known: float  # seconds: the least of the long search at any level and of all here
    ratios: tuple[float, ...]  # to the best known cost, of `PLACERS` and `SEARCH`
    seconds: tuple[float, float, float]  # CPU, of greedy, two rounds and pretrained


def evaluate(policy: PlacementPolicy, each: Searched, seed: int = 0) -> Evaluation:
    """Return the evaluation of a policy on an unseen problem."""
    problem, simulator = each.problem, Simulator(each.problem, num_threads=1)
    for placer in (MultilevelSearch(evaluations=WARM_UP), PlacetoPlacer(policy=policy)):
        placer.place(problem, simulator)  # compiles, and loads what is compiled

    def timed(placer: Placer) -> tuple[float, float]:
        began = time.process_time()
        found = placer.place(problem, simulator, seed=seed)
        return cost_of(simulator, found.placement), time.process_time() - began

    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_ROUND
    rounds = 2 if is_quick else 0
    found = [
        timed(PlacetoPlacer(policy=policy)),
        timed(PlacetoPlacer(policy=policy, num_rollouts=ROLLOUTS)),
        timed(PlacetoPlacer(policy=policy, num_rollouts=ROLLOUTS, refinement_rounds=rounds)),
        timed(
            PlacetoPlacer(
                policy=policy, num_rollouts=ROLLOUTS, refinement_rounds=rounds, starts=STARTS
            )
        ),
        timed(Heft()),
        timed(CriticalPathPlacer()),
    ]
    as_long = found[PLACERS.index("pretrained")][1]
    found.append(timed(MultilevelSearch(as_long, clock=time.process_time)))
    costs = [cost for cost, _ in found]
    best = min(*costs, cost_of(Simulator(each.searched, num_threads=1), each.placement))
    return Evaluation(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        ratios=tuple(cost / best for cost in costs),
        seconds=(found[0][1], found[2][1], as_long),
    )


def header() -> str:
    """Return the first two lines of the table."""
    return f"| {' | '.join(COLUMNS)} |\n|---{'|---:' * (len(COLUMNS) - 1)}|"


def row(each: Evaluation) -> str:
    """Return the row of the table."""
    cells = [each.name, f"{each.groups}", f"{each.devices}", f"{each.best_known:.4g}"]
    cells += [f"{ratio:.3f}" for ratio in each.ratios]
    cells += [f"{seconds:.2f}" for seconds in each.seconds]
    return f"| {' | '.join(cells)} |"


def summary(evaluations: Sequence[Evaluation]) -> str:
    """Return medians, geometric means and shares near the best known, as lines of a table."""
    ratios = np.array([each.ratios for each in evaluations])
    statistics = (
        ("median", np.median(ratios, axis=0)),
        ("geometric mean", np.exp(np.log(ratios).mean(axis=0))),
        ("within 5 % of the best known", (ratios <= 1.05).mean(axis=0)),
    )
    lines = [f"| | {' | '.join((*PLACERS, SEARCH))} |", "|---" * (len(PLACERS) + 2) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |"
        for name, values in statistics
    ]
    return "\n".join(lines)
