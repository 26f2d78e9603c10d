"""A placement in the form of another library: modules by the scopes of a graph, and its costs."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.costs import fits, overflow_text
from placeto.placing.evaluators import EvaluatorSpec
from placeto_graphs import (
    FREE_TYPE,
    Cluster,
    EvaluationBatch,
    OpGraph,
    Phase,
    PlacementProblem,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
    grouping_of_labels,
)

Value = TypeVar("Value", bound=Hashable)
Placement = NDArray[np.int32]  # [G], the device of each group

UNKNOWN = -1
ROOT = ""
WEIGHTS = ("parameter", "buffer")  # the types of ops that hold what a module owns
INPUT = "input"
LOSS = "loss"  # the scope of what runs behind the model, see `placeto_capture.capture`


def is_within(scope: str, module: str) -> bool:
    """Return whether a scope is a module or something inside it."""
    return module in (ROOT, scope) or scope.startswith(f"{module}.")


def path_of(scope: str) -> tuple[str, ...]:
    """Return the modules around a scope, from the whole model inwards, and the scope itself."""
    names = scope.split(".") if scope else []
    return tuple(".".join(names[:depth]) for depth in range(len(names) + 1))


class ModuleScopes:
    """Modules of a model by the scopes of the V ops of a graph; no scopes are an `InputError`."""

    def __init__(self, graph: OpGraph) -> None:
        if not any(scope not in (ROOT, LOSS) for scope in graph.scopes):
            raise InputError(
                "PROBLEM: expected ops whose scopes are names of modules, as a PyTorch model has "
                "them, got none"
            )
        self.graph = graph

    @cached_property
    def is_forward(self) -> NDArray[np.bool_]:
        """bool[V], ops of the model's forward pass, and what is there before it."""
        forward: NDArray[np.bool_] = self.graph.phases == Phase.FORWARD
        loss = np.array([scope == LOSS for scope in self.graph.scopes])
        # The loss reads no inputs of the model and has no weights; a module of this name may.
        is_input = np.array([kind == INPUT for kind in self.graph.op_types])
        producers, consumers = self.graph.edge_producers, self.graph.edge_consumers
        reads = (is_input[producers] & ~loss[producers] & loss[consumers]).any()
        return forward if reads or (self.is_weight & loss).any() else forward & ~loss

    @cached_property
    def is_weight(self) -> NDArray[np.bool_]:
        """bool[V], ops that hold a parameter or a buffer of the model."""
        return np.array([kind in WEIGHTS for kind in self.graph.op_types])

    @cached_property
    def computing(self) -> list[int]:
        """The ops of the forward pass that compute something, in the order in which they run."""
        order = self.graph.topological_order
        computes = np.array([kind != FREE_TYPE for kind in self.graph.op_types])
        computes &= self.is_forward & np.isin(np.arange(self.graph.num_ops), self.graph.edges[:, 1])
        ops: list[int] = order[computes[order]].tolist()
        return ops

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

    def outermost(self, modules: Iterable[str]) -> list[str | None]:
        """Return for each op the outermost of some modules that it is in; None if it is in none."""
        chosen = frozenset(modules)
        module_of_scope: dict[str, str | None] = {}
        for scope in self.graph.scopes:
            if scope not in module_of_scope:
                module_of_scope[scope] = next(
                    (module for module in path_of(scope) if module in chosen), None
                )
        return [module_of_scope[scope] for scope in self.graph.scopes]


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
) -> Price:
    """Return the costs of a placement, int32[G], and of the form of it that was evaluated."""
    costs_as_placed = evaluator.costs(problem, placement)
    as_placed, runtime = float(costs_as_placed.runtime[0]), float(costs.runtime[0])
    peaks = tuple(costs.peak_memory[0].tolist())
    start, simulated = f"{evaluator.objective}:", ""
    if evaluator.simulates:
        start, simulated = "a step takes", ", simulated"
    remark = (
        f"{start} {evaluator.text(runtime)} with {form}{simulated}, and "
        f"{evaluator.text(as_placed)} as placed{overflow_text(problem.cluster, peaks)}"
    )
    return Price(as_placed, runtime, peaks, fits(problem, peaks), remark)


def check_one_machine(cluster: Cluster, library: str) -> None:
    """Refuse devices of several machines, of which a library uses one."""
    count = len(cluster.machine_names)
    if count > 1:
        raise InputError(
            f"PROBLEM: expected devices of one machine, as {library} uses those of one, got {count}"
        )


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
