"""A placement in the form of another library: modules by the scopes of a graph, and its costs."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.cost_texts import overflow_text
from placeto.placing.costs import fits
from placeto.placing.evaluators import EvaluatorSpec
from placeto_baselines.search.layers import LOSS, ROOT, UNKNOWN, GraphModules, path_of
from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    OpGraph,
    PlacementProblem,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
    copies_of,
    grouping_of_labels,
)

Value = TypeVar("Value", bound=Hashable)
Placement = NDArray[np.int32]  # [G], the device of each group
ROUNDING = 1e-9  # as a fraction of a cost: sums in another order are equal


def is_within(scope: str, module: str) -> bool:
    """Return whether a scope is a module or something inside it."""
    return module in (ROOT, scope) or scope.startswith(f"{module}.")


class ModuleScopes(GraphModules):
    """Modules of a model by the scopes of the V ops of a graph; no scopes are an `InputError`."""

    def __init__(self, graph: OpGraph) -> None:
        if not any(scope not in (ROOT, LOSS) for scope in graph.scopes):
            raise InputError(
                "PROBLEM: expected ops whose scopes are names of modules, as a PyTorch model has "
                "them, got none"
            )
        super().__init__(graph)

    @cached_property
    def indivisible(self) -> frozenset[str]:
        """Modules that have weights of their own, or no modules inside; not the whole model."""
        scopes = {self.graph.scopes[op] for op in np.flatnonzero(self.is_forward).tolist()}
        parents = {parent for scope in scopes for parent in path_of(scope)[:-1]}
        owners = {self.graph.scopes[op] for op in np.flatnonzero(self.is_weight).tolist()}
        return frozenset((scopes - parents) | owners) - {ROOT}

    def forward_values(self, values: Sequence[Value]) -> dict[str, set[Value]]:
        """Return the values of all forward ops of each module, for one value for each of V ops."""
        values_of_module: dict[str, set[Value]] = {}
        for op in np.flatnonzero(self.is_forward).tolist():
            scope = self.graph.scopes[op]
            for module in path_of(scope):
                values_of_module.setdefault(module, set()).add(values[op])
        return values_of_module


@dataclass(frozen=True)
class Price:
    """The cost of a form that cannot express every placement."""

    runtime_as_placed: float  # seconds of a step, or what another evaluator returns
    runtime: float  # the same with the form
    peak_memory: tuple[int, ...]  # bytes on each device, with the form
    fits: bool  # whether these are within the memory of the devices
    remark: str  # says it to the user


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
    placement: Placement,
    costs: EvaluationBatch,
    evaluator: EvaluatorSpec,
    form: str,
    reason: str = "",
) -> Price:
    """Return the costs of a placement, int32[G], and of the form of it that was evaluated.

    The remark has the ``reason`` of a form that is faster, if no other search is.
    """
    costs_as_placed = evaluator.costs(problem, placement)
    as_placed, runtime = float(costs_as_placed.runtime[0]), float(costs.runtime[0])
    peaks = tuple(costs.peak_memory[0].tolist())
    cost = "Simulated step" if evaluator.simulates else evaluator.objective.capitalize()
    remark = (
        f"{cost}: {evaluator.text(runtime)} as exported ({form}"
        f"{overflow_text(problem.cluster, peaks)}), {evaluator.text(as_placed)} as placed."
    )
    if runtime < as_placed * (1 - ROUNDING):
        remark += f" {reason or f'The export searches {form} again, and finds a faster placement.'}"
    return Price(as_placed, runtime, peaks, fits(problem, peaks), remark)


def check_one_machine(cluster: Cluster, library: str) -> None:
    """Refuse devices of several machines, of which a library uses one."""
    count = len(cluster.machine_names)
    if count > 1:
        raise InputError(
            f"PROBLEM: expected devices of one machine, as {library} uses those of one, got {count}"
        )


def check_one_copy(graph: OpGraph, library: str, other: str) -> None:
    """Refuse copies of a model for a library that has one."""
    copies = copies_of(graph)
    if copies is not None:
        raise InputError(
            f"PROBLEM: expected one copy of the model, as {library} has one, got {copies.count}; "
            f"export them with {other}"
        )


def gpus_of_machines(cluster: Cluster, devices: Sequence[int]) -> dict[str, list[int]]:
    """Return the numbers of devices among the GPUs of their machine, by its name; without CPUs."""
    numbers: dict[str, list[int]] = {}
    for device in devices:
        machine = cluster.machine[device]
        if not cluster.devices[device].is_cpu:
            gpus = [gpu for gpu in cluster.accelerators if cluster.machine[gpu] == machine]
            numbers.setdefault(cluster.machine_names[machine], []).append(gpus.index(device))
    return numbers


def check_inference(graph: OpGraph, library: str) -> None:
    """Refuse a step of training for a library that serves a model."""
    if graph.phases.any():
        raise InputError(
            f"PROBLEM: expected a step of inference, as {library} serves a model, got one of "
            "training; build the model with --mode decode or --mode prefill, and place that step"
        )


def labels_of_step(
    graph: OpGraph, forward_labels: NDArray[np.int64], otherwise: int
) -> NDArray[np.int64]:
    """Label all ops of a step by those of its forward pass, int64[V], with which they run; else -1.

    A backward op gets the label of its forward op, and an update that of its parameter. If that is
    unknown, it is the label of the producer of the last input, or else ``otherwise``.
    """
    together = colocate(graph, [colocate_by_id, colocate_gradients, colocate_updates])
    label_of_group = np.full(together.num_groups, UNKNOWN, np.int64)
    is_labelled = forward_labels != UNKNOWN
    label_of_group[together.group_of[is_labelled]] = forward_labels[is_labelled]
    labels = np.where(is_labelled, forward_labels, label_of_group[together.group_of])
    producer = graph.tensor_producer
    for op in graph.topological_order.tolist():
        if labels[op] == UNKNOWN:
            tensors = graph.inputs_of_op[op]
            labels[op] = labels[producer[tensors[-1]]] if len(tensors) else otherwise
    return labels


def problem_of_labels(problem: PlacementProblem, labels: NDArray[np.int64]) -> PlacementProblem:
    """Return a problem whose groups are ops of one label of int64[V], or one colocation id."""
    graph = problem.graph
    grouping = colocate(graph, [colocate_by_id, lambda same: grouping_of_labels(same, labels)])
    return replace(problem, grouping=grouping, hierarchy=None, rules=None)
