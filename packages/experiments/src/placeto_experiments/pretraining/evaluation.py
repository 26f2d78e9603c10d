"""Table of a policy on problems that it has not seen, with list schedulers and search."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of, cost_of_result, fits
from placeto.placing.placers import STARTS_OF_PRETRAINED, pretrained, start_of_search
from placeto.texts import TextTable
from placeto_baselines import CriticalPathPlacer, Heft, MultilevelSearch
from placeto_experiments.pretraining.searched import Searched
from placeto_graphs import PlacementResult, Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer
from placeto_simulator import Simulator

PLACERS = ("greedy", "best of 16", "two rounds", "pretrained", "HEFT", "critical path")
SEARCH = "search as long"
WARM_UP = 100  # evaluations
ROUNDS, PRETRAINED, SCHEDULERS = 2, 3, slice(4, 6)  # their places among the ratios
COLUMNS = (
    *("problem", ">groups", ">devices", ">best known, s"),
    *(f">{name}" for name in (*PLACERS, SEARCH)),
    *(">greedy, CPU s", ">two rounds, CPU s", ">pretrained, CPU s"),
)


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
    fits_where_search_fits: bool  # of the placement of ``pretrained``


def evaluate(
    policy: PlacementPolicy, problems: Iterable[Searched], seed: int = 0
) -> Iterator[Evaluation]:
    """Yield the evaluation of a policy on each of some unseen problems."""
    for each in problems:
        yield _evaluation(policy, each, seed)


def _evaluation(policy: PlacementPolicy, each: Searched, seed: int) -> Evaluation:
    problem, simulator = each.problem, Simulator(each.problem, num_threads=1)
    for placer in (MultilevelSearch(evaluations=WARM_UP), PlacetoPlacer(policy=policy)):
        placer.place(problem, simulator)  # compiles, and loads what is compiled

    def timed(placer: Placer) -> tuple[PlacementResult, float]:
        began = time.process_time()
        return placer.place(problem, simulator, seed=seed), time.process_time() - began

    greedy, greedy_seconds = timed(PlacetoPlacer(policy=policy))
    some, _ = timed(start_of_search(policy))
    rounds, rounds_seconds = timed(pretrained(problem, policy))
    placed, seconds = timed(replace(pretrained(problem, policy), starts=STARTS_OF_PRETRAINED))
    schedulers = [timed(placer)[0] for placer in (Heft(), CriticalPathPlacer())]
    searched, _ = timed(MultilevelSearch(seconds, clock=time.process_time))
    long_search = Simulator(each.searched, num_threads=1)
    known = long_search.evaluate(each.placement[None])
    found = (greedy, some, rounds, placed, *schedulers, searched)
    costs = [cost_of_result(problem, result) for result in found]
    best = min(*costs, cost_of(long_search, each.placement))
    return Evaluation(
        name=each.name,
        groups=problem.num_groups,
        devices=problem.num_devices,
        best_known=best,
        ratios=tuple(cost / best for cost in costs),
        seconds=(greedy_seconds, rounds_seconds, seconds),
        fits_where_search_fits=placed.fits(problem.cluster)
        or not fits(problem, known.peak_memory[0]),
    )


def row(each: Evaluation) -> str:
    """Return the row of the table."""
    cells = [each.name, f"{each.groups}", f"{each.devices}", f"{each.best_known:.4g}"]
    cells += [f"{ratio:.3f}" for ratio in each.ratios]
    cells += [f"{seconds:.2f}" for seconds in each.seconds]
    return "| " + " | ".join(cells) + " |"


def header() -> str:
    """Return the first two lines of the table."""
    return TextTable("", COLUMNS, ()).markdown()


def summary(evaluations: Sequence[Evaluation]) -> str:
    """Return what the whole table says, as lines."""
    ratios = np.array([each.ratios for each in evaluations])
    seconds = np.array([each.seconds for each in evaluations])
    statistics = (
        ("median", np.median(ratios, axis=0)),
        ("geometric mean", np.exp(np.log(ratios).mean(axis=0))),
        ("within 5 % of the best known", (ratios <= 1.05).mean(axis=0)),
    )
    rows = [[name, *(f"{value:.3f}" for value in values)] for name, values in statistics]
    table = TextTable("", ("", *(f">{name}" for name in (*PLACERS, SEARCH))), rows).markdown()
    schedulers = ratios[:, SCHEDULERS].min(axis=1)
    fitting = np.mean([each.fits_where_search_fits for each in evaluations])
    lines = [
        _beside("pretrained", ratios[:, PRETRAINED], "a search as long", ratios[:, -1]),
        _beside(
            "two rounds", ratios[:, ROUNDS], "the better of HEFT and critical path", schedulers
        ),
        f"Placements of pretrained fit where search finds one that does on {fitting:.1%}.",
        *(
            f"CPU seconds of {name}: {np.median(values):.2f} (median), {values.max():.2f} at most."
            for name, values in zip(("greedy", "two rounds", "pretrained"), seconds.T, strict=True)
        ),
    ]
    return "\n\n".join([table, *lines])


def _beside(name: str, own: NDArray[np.float64], other: str, theirs: NDArray[np.float64]) -> str:
    """Return on how many problems a placer is better than another one, and by how much."""
    better, as_good = (own < theirs).mean(), (own == theirs).mean()
    mean = np.exp(np.log(own / theirs).mean())
    return (
        f"{name} is better than {other} on {better:.0%}, as good on {as_good:.0%}; "
        f"its cost is {mean:.3f}x (geometric mean)."
    )
