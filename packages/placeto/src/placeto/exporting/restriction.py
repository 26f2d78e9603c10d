"""Placements of whole parts of a model: the ops of each part, and the cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import fits
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
    grouping_of_labels,
)

Candidate = TypeVar("Candidate")
UNKNOWN = -1


@dataclass(frozen=True)
class Price:
    """The cost of a restriction on placements, by the simulator or another evaluator.

    Attributes
    ----------
    runtime_as_placed, runtime : float
        Seconds of a step, or what the evaluator returns, before and with the restriction.
    peak_memory : D of int
        Bytes on each device, with the restriction.
    fits : bool
        True if these are within the memory of the devices.
    """

    runtime_as_placed: float
    runtime: float
    peak_memory: tuple[int, ...]
    fits: bool


def labels_of_step(
    graph: OpGraph, forward_labels: NDArray[np.int64], otherwise: int
) -> NDArray[np.int64]:
    """Label all ops of a step by those of its forward pass, int64[V], with which they run.

    Ops without a label have -1. A backward op gets the label of its forward op, and an update that
    of its parameter. If that is unknown, an op gets the label of the producer of its last input. An
    op without known inputs is labelled ``otherwise``.
    """
    together = colocate(graph, [colocate_by_id, colocate_gradients, colocate_updates])
    of_group = np.full(together.num_groups, UNKNOWN, np.int64)
    known = forward_labels != UNKNOWN
    of_group[together.group_of[known]] = forward_labels[known]
    labels = np.where(known, forward_labels, of_group[together.group_of])
    producer = graph.tensor_producer
    for op in graph.topological_order.tolist():
        if labels[op] == UNKNOWN:
            tensors = graph.inputs_of_op[op]
            labels[op] = labels[producer[tensors[-1]]] if len(tensors) else otherwise
    return labels


def problem_of_labels(problem: PlacementProblem, labels: NDArray[np.int64]) -> PlacementProblem:
    """Return a problem in which the ops of each label of int64[V] are one group.

    Labels whose ops share a colocation id are one group, too.
    """
    graph = problem.graph
    grouping = colocate(graph, [colocate_by_id, lambda same: grouping_of_labels(same, labels)])
    return replace(problem, grouping=grouping, hierarchy=None, rules=None)


def price(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    restricted: PlacementProblem,
    restricted_placement: NDArray[np.int32],
    evaluator: EvaluatorSpec = STEP,
) -> Price:
    """Return the costs of a step before and after a restriction, for an int32[G] of each."""
    before = evaluator.make(problem, None).evaluate(placement[None])
    after = evaluator.make(restricted, None).evaluate(restricted_placement[None])
    peaks = tuple(after.peak_memory[0].tolist())
    return Price(float(before.runtime[0]), float(after.runtime[0]), peaks, fits(problem, peaks))


def steepest_descent(
    candidates: Sequence[Candidate],
    costs: Callable[[Sequence[Candidate]], NDArray[np.float64]],
    neighbours: Callable[[Candidate], Sequence[Candidate]],
    most_rounds: int,
) -> Candidate | None:
    """Return the best candidate, moved to its best neighbour as long as that costs less.

    It is None if there is no candidate, or none of a finite cost.

    Examples
    --------
    >>> steepest_descent(
    ...     [0, 9], lambda some: np.array([(each - 4.0) ** 2 for each in some]),
    ...     lambda each: [each - 1, each + 1], most_rounds=20,
    ... )
    4
    """
    best, least = None, np.inf
    for _ in range(most_rounds):
        found = costs(candidates) if candidates else np.array([np.inf])
        if not found.min() < least:
            break
        best, least = candidates[int(found.argmin())], found.min()
        candidates = neighbours(best)
    return best
