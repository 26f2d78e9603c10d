"""Table of a policy on problems that it has not seen, with list schedulers and search."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from placeto.placing.costs import cost_of_result
from placeto.placing.costs import costs as costs_of
from placeto.placing.placers import (
    MOST_EVALUATIONS_OF_ROUND,
    ROLLOUTS_OF_PRETRAINED,
    ROUNDS_OF_PRETRAINED,
    STARTS_OF_PRETRAINED,
)
from placeto.texts import TextTable
from placeto_baselines import CriticalPathPlacer, Heft, MultilevelSearch
from placeto_graphs import PlacementProblem, Placer
from placeto_policy import PlacementPolicy, PlacetoPlacer
from placeto_simulator import Simulator
from pretraining.searched import Searched

PRETRAINED = "pretrained"
PLACERS = ("greedy", "best of 16", "two rounds", PRETRAINED, "HEFT", "critical path")
SEARCH = "equal search"
TIMED = ("greedy", "two rounds", PRETRAINED)
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
    problem: PlacementProblem
    best_known: float  # seconds: the least of the long search at any level and of all here
    ratios: dict[str, float]  # of `PLACERS` and `SEARCH`: their costs relative to the best known
    seconds: dict[str, float]  # CPU, of the same


def evaluate(policy: PlacementPolicy, searched: Searched, seed: int = 0) -> Evaluation:
    """Return the evaluation of a policy on an unseen problem."""
    problem, simulator = searched.problem, Simulator(searched.problem, num_threads=1)
    MultilevelSearch(max_evaluations=WARM_UP).place(problem, simulator)  # compiles, or loads
    rollout = PlacetoPlacer(policy=policy, starts=())
    rollout.place(problem, simulator)
    costs: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def run(name: str, placer: Placer) -> None:
        began = time.process_time()
        result = placer.place(problem, simulator, seed=seed)
        seconds[name] = time.process_time() - began
        costs[name] = cost_of_result(problem, result)

    is_quick = problem.num_groups * problem.num_devices <= MOST_EVALUATIONS_OF_ROUND
    sampled = partial(replace, rollout, num_rollouts=ROLLOUTS_OF_PRETRAINED)
    refined = partial(sampled, refinement_rounds=ROUNDS_OF_PRETRAINED if is_quick else 0)
    policies = (rollout, sampled(), refined(), refined(starts=STARTS_OF_PRETRAINED))
    placers: tuple[Placer, ...] = (*policies, Heft(), CriticalPathPlacer())
    for name, placer in zip(PLACERS, placers, strict=True):
        run(name, placer)
    run(SEARCH, MultilevelSearch(seconds[PRETRAINED], clock=time.process_time))
    evaluator = Simulator(searched.searched, num_threads=1)
    long_search = float(costs_of(evaluator, searched.placement[None])[0])
    best = min(*costs.values(), long_search)
    return Evaluation(
        name=searched.name,
        problem=problem,
        best_known=best,
        ratios={name: cost / best for name, cost in costs.items()},
        seconds=seconds,
    )


def tables(evaluations: Sequence[Evaluation]) -> tuple[TextTable, TextTable]:
    """Return a table of the problems, and one of medians, geometric means and good shares."""
    placers = [f">{name}" for name in (*PLACERS, SEARCH)]
    rows = [
        [
            evaluation.name,
            f"{evaluation.problem.num_groups}",
            f"{evaluation.problem.num_devices}",
            f"{evaluation.best_known:.4g}",
            *(f"{ratio:.3f}" for ratio in evaluation.ratios.values()),
            *(f"{evaluation.seconds[name]:.2f}" for name in TIMED),
        ]
        for evaluation in evaluations
    ]
    columns = ["problem", ">groups", ">devices", ">best known, s", *placers]
    columns += [f">{name}, CPU s" for name in TIMED]
    ratios = np.array([list(evaluation.ratios.values()) for evaluation in evaluations])
    statistics = {
        "median": np.median(ratios, axis=0),
        "geometric mean": np.exp(np.log(ratios).mean(axis=0)),
        "within 5 % of the best known": (ratios <= 1.05).mean(axis=0),
    }
    summary = [
        [name, *(f"{statistic:.3f}" for statistic in values)] for name, values in statistics.items()
    ]
    return TextTable("", columns, rows), TextTable("", ["", *placers], summary)
