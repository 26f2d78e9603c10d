"""Compilation and imports, once in a process, before the seconds of a placer count."""

from functools import cache

import networkx as nx
import numpy as np

from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.placing.placers import PLACERS, make_placer
from placeto_graphs import (
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    SchedulingEvaluator,
    from_networkx,
    parse_cluster,
)

BUDGET = 200  # placements: an update of every policy, and a few moves of every search


def warm_up(name: str, evaluator: EvaluatorSpec = STEP) -> None:
    """Let a placer place a problem of a few ops, so that nothing is left to compile or import.

    The first call of a placer in a process compiles code and loads libraries. That takes up to many
    seconds, which would count for the first placer. Placers without a name in the command and
    evaluators of users are left cold. If a library is missing, the error of the placer is raised.
    """
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
    problem = _a_few_ops()
    evaluator.lower_bound(problem)
    make_placer(name, problem, BUDGET).place(problem, _of_a_few_ops(evaluator))


@cache
def _of_a_few_ops(evaluator: EvaluatorSpec) -> Evaluator:
    return evaluator.make(_a_few_ops(), None)


@cache
def _a_few_ops() -> PlacementProblem:
    """Return two chains of three ops, on a CPU and two GPUs."""
    chains = nx.DiGraph()
    for chain in "ab":
        nx.add_path(chains, [f"{chain}{position}" for position in range(3)], bytes=1000)
    graph = from_networkx(chains)
    cluster = parse_cluster("1xcpu+2xk80")
    return PlacementProblem(
        graph=graph, cluster=cluster, compute_time=np.ones((graph.num_ops, cluster.num_devices))
    )
