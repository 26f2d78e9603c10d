"""The modules of a model that have to be on one device if accelerate dispatches it.

accelerate moves the arguments of a module that its device map names to the device of the module.
A module that the map does not name computes where its tensors are. So all tensors that its own
forward pass reads have to be on one device.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray

from placeto.exporting.module_scopes import ROOT, ModuleScopes, is_within
from placeto.exporting.restriction import UNKNOWN, labels_of_step


@dataclass(frozen=True, eq=False)
class WholeModules:
    """The modules that a device map names, and which of them share a device.

    ``""`` is the whole model: its inputs, its own weights, and what computes the loss behind it.
    """

    # The op that each module begins with, none inside another one, in the order in which they run.
    first_op: dict[str, int]
    labels: NDArray[np.int64]  # [V]; ops with equal labels share a device


def whole_modules(scopes: ModuleScopes, kept: Collection[str] = ()) -> WholeModules:
    """Return the smallest modules that can be on devices of their own.

    A module that has weights of its own is whole. So is one whose own forward pass reads tensors of
    several places, one of them outside; if all are inside, these places share a device. Modules
    that share a weight share a device. Modules in ``kept`` are whole in any case.
    """
    whole = scopes.indivisible.union(kept)
    while True:
        walk = _Walk(scopes, whole)
        if not walk.whole:
            return walk.result()
        # A module inside may have been the reason for one around it.
        inner = {
            module
            for module in walk.whole
            if not any(other != module and is_within(other, module) for other in walk.whole)
        }
        whole |= inner


class _Walk:
    """A walk over the forward pass, with some modules whole."""

    def __init__(self, scopes: ModuleScopes, whole: frozenset[str]) -> None:
        self.whole: set[str] = set()  # modules that turn out to have to be whole, too
        self._scopes = scopes
        self._graph = scopes.graph
        self._place: list[str | None] = scopes.outermost(whole)
        self._shared: UnionFind = UnionFind([ROOT])
        order = self._graph.topological_order
        for op in order[scopes.is_forward[order]].tolist():
            self._visit(op)

    def result(self) -> WholeModules:
        """Return the modules, as far as this walk knows them."""
        forward = np.full(self._graph.num_ops, UNKNOWN, np.int64)
        first_op: dict[str, int] = {}
        number: dict[str, int] = {}
        computing_first = np.argsort(self._scopes.is_weight, kind="stable")
        for op in computing_first[self._scopes.is_forward[computing_first]].tolist():
            place = self._place[op] or ROOT
            first_op.setdefault(place, op)
            forward[op] = number.setdefault(self._shared[place], len(number))
        root = number.setdefault(self._shared[ROOT], len(number))
        first_op.setdefault(ROOT, 0)
        return WholeModules(first_op, labels_of_step(self._graph, forward, otherwise=root))

    def _visit(self, op: int) -> None:
        """Find where an op runs that is in no whole module, and whether what it reads is there."""
        place = self._place[op]
        if place is not None:
            for producer in self._producers(op):
                if self._scopes.is_weight[producer]:
                    self._shared.union(place, self._place[producer] or ROOT)
            return
        scope = self._graph.scopes[op]
        if scope == ROOT and not len(self._graph.inputs_of_op[op]):
            self._place[op] = ROOT
            return
        read = [self._place[producer] for producer in self._producers(op)]
        places = list(dict.fromkeys(where for where in read if where is not None))
        if not places:
            return
        self._place[op] = next((where for where in places if where != ROOT), ROOT)
        if len({self._shared[where] for where in places}) == 1:
            return
        if all(where == ROOT or is_within(where, scope) for where in places):
            self._shared.union(*places)
        else:
            self.whole.add(scope)

    def _producers(self, op: int) -> list[int]:
        producers: list[int] = self._graph.tensor_producer[self._graph.inputs_of_op[op]].tolist()
        return producers
