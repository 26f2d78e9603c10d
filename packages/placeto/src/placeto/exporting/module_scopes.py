"""The modules of a model, as the scopes of a graph tell them."""

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto_graphs import FREE_TYPE, OpGraph, Phase

Value = TypeVar("Value", bound=Hashable)

ROOT = ""
WEIGHTS = ("parameter", "buffer")  # the types of ops that hold what a module owns
INPUT = "input"
LOSS = "loss"  # the scope of what runs behind the model, see `placeto_capture.capture`


def is_within(scope: str, module: str) -> bool:
    """Return whether a scope is a module or something inside it."""
    return module in (ROOT, scope) or scope.startswith(f"{module}.")


def path_of(scope: str) -> tuple[str, ...]:
    """Return the modules around a scope, from the whole model inwards, and the scope itself."""
    parts = scope.split(".") if scope else []
    return tuple(".".join(parts[:depth]) for depth in range(len(parts) + 1))


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
        found: list[int] = order[computes[order]].tolist()
        return found

    @cached_property
    def indivisible(self) -> frozenset[str]:
        """Modules that have weights of their own, or no modules inside; not the whole model."""
        scopes = {self.graph.scopes[op] for op in np.flatnonzero(self.is_forward).tolist()}
        parents = {parent for scope in scopes for parent in path_of(scope)[:-1]}
        owners = {self.graph.scopes[op] for op in np.flatnonzero(self.is_weight).tolist()}
        return frozenset((scopes - parents) | owners) - {ROOT}

    def forward_values(self, values: Sequence[Value]) -> dict[str, set[Value]]:
        """Return the values of all forward ops of each module, for one value for each of V ops."""
        found: dict[str, set[Value]] = {}
        for op in np.flatnonzero(self.is_forward).tolist():
            scope = self.graph.scopes[op]
            for module in path_of(scope):
                found.setdefault(module, set()).add(values[op])
        return found

    def outermost(self, modules: Iterable[str]) -> list[str | None]:
        """Return for each op the outermost of some modules that it is in; None if it is in none."""
        chosen = frozenset(modules)
        found: dict[str, str | None] = {}
        for scope in self.graph.scopes:
            if scope not in found:
                found[scope] = next((each for each in path_of(scope) if each in chosen), None)
        return [found[scope] for scope in self.graph.scopes]
