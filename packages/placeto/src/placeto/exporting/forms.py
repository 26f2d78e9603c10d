"""A placement in the form of another library: the parts of a model, and what the form costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.costs import fits, overflow_text
from placeto.placing.evaluators import EvaluatorSpec
from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    OpGraph,
    PlacementProblem,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
    grouping_of_labels,
)

UNKNOWN = -1


@dataclass(frozen=True)
class Price:
    """The cost of a form that cannot express every placement."""

    runtime_as_placed: float  # seconds of a step, or what another evaluator returns
    runtime: float  # the same with the form
    peak_memory: tuple[int, ...]  # bytes on each device, with the form
    fits: bool  # whether these are within the memory of the devices

    def text(self, problem: PlacementProblem, what: str, evaluator: EvaluatorSpec) -> str:
        """Return what a step costs with a form, and as placed."""
        overflow = overflow_text(problem.cluster, self.peak_memory)
        start, simulated = f"{evaluator.objective}:", ""
        if evaluator.simulates:
            start, simulated = "a step takes", ", simulated"
        return (
            f"{start} {evaluator.text(self.runtime)} with {what}{simulated}, and "
            f"{evaluator.text(self.runtime_as_placed)} as placed{overflow}"
        )


@dataclass(frozen=True, eq=False)
class Exported:
    """A placement in another form."""

    content: str  # for the library: to paste, or of a file
    remarks: tuple[str, ...] = ()  # lines about it for the user
    price: Price | None = None
    details: Mapping[str, object] = field(default_factory=dict)  # the content as values of JSON
    op_devices: NDArray[np.int32] | None = None  # [V], the device of each op then; of layers


def price(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    after: EvaluationBatch,
    evaluator: EvaluatorSpec,
) -> Price:
    """Return the costs of a placement, int32[G], and of the form of it that was evaluated."""
    before = evaluator.make(problem, None).evaluate(placement[None])
    peaks = tuple(after.peak_memory[0].tolist())
    return Price(float(before.runtime[0]), float(after.runtime[0]), peaks, fits(problem, peaks))


def check_one_machine(cluster: Cluster, library: str) -> None:
    """Refuse devices of several machines, of which a library uses one."""
    count = len(np.unique(cluster.machine))
    if count > 1:
        raise InputError(
            f"PROBLEM: expected devices of one machine, as {library} uses those of one, got {count}"
        )


def labels_of_step(
    graph: OpGraph, forward_labels: NDArray[np.int64], otherwise: int
) -> NDArray[np.int64]:
    """Label all ops of a step by those of its forward pass, int64[V], with which they run; else -1.

    A backward op gets the label of its forward op, and an update that of its parameter. If that is
    unknown, it is the label of the producer of the last input, or else ``otherwise``.
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
