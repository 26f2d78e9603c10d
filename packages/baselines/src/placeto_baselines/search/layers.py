"""Layers of a model, which a search moves together, and cuts into stages.

`layer_stacks` finds the blocks that a model repeats, as the scopes of a graph tell them.
`layers_of_groups` gives each group of a problem its layer.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import mean_seconds, op_seconds
from placeto_graphs import FREE_TYPE, Grouping, OpGraph, Phase, PlacementProblem

UNKNOWN = -1
ROOT = ""
PARAMETER = "parameter"
WEIGHTS = (PARAMETER, "buffer")  # the types of ops that hold what a module owns
INPUT = "input"
LOSS = "loss"  # the scope of what runs behind the model, as a captured step has it
FEWEST_LAYERS = 2  # of each device
MOST_COARSE = 64
NO_TIME = 1e-15  # seconds, so that ops without any count at all


def path_of(scope: str) -> tuple[str, ...]:
    """Return the modules around a scope, from the whole model inwards, and the scope itself."""
    names = scope.split(".") if scope else []
    return tuple(".".join(names[:depth]) for depth in range(len(names) + 1))


class GraphModules:
    """Modules of a model by the scopes of the V ops of a graph.

    Parameters
    ----------
    graph
        Graph of a step; without scopes it has no modules.
    """

    def __init__(self, graph: OpGraph) -> None:
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

    def outermost(self, modules: Iterable[str]) -> list[str | None]:
        """Return for each op the outermost of some modules that it is in; None if it is in none."""
        chosen = frozenset(modules)
        module_of_scope = {
            scope: next((module for module in path_of(scope) if module in chosen), None)
            for scope in set(self.graph.scopes)
        }
        return [module_of_scope[scope] for scope in self.graph.scopes]


def layer_stacks(scopes: GraphModules) -> dict[str, tuple[str, ...]]:
    """Return the stacks of layers of a model: the module that holds them, and its layers.

    A stack is a module with two or more numbered modules inside that run in the forward pass, such
    as a ``ModuleList``, outside the layers of other stacks. All are in the order in which they
    begin.
    """
    numbered: dict[str, dict[str, None]] = {}
    for op in scopes.computing:
        for module in path_of(scopes.graph.scopes[op])[1:]:
            around, _, name = module.rpartition(".")
            if name.isdecimal():
                numbered.setdefault(around, {})[module] = None
    stacks = {around: tuple(modules) for around, modules in numbered.items() if len(modules) > 1}
    layers = {layer for stack in stacks.values() for layer in stack}
    return {name: stack for name, stack in stacks.items() if not layers.intersection(path_of(name))}


def all_layers(scopes: GraphModules) -> tuple[str, ...]:
    """Return the layers of all stacks, and the modules before and behind that read parameters.

    Modules are as large as they can be without a stack inside, in the order in which they begin.
    There are none if no module reads parameters.
    """
    layers = {layer for stack in layer_stacks(scopes).values() for layer in stack}
    around_layers = {parent for layer in layers for parent in path_of(layer)[:-1]} | {ROOT}
    graph = scopes.graph
    is_parameter = np.array([kind == PARAMETER for kind in graph.op_types])
    reading = graph.edge_consumers[is_parameter[graph.edge_producers]]
    with_parameters = {graph.scopes[op] for op in reading[scopes.is_forward[reading]].tolist()}
    outer = {
        next(module for module in path_of(scope) if module not in around_layers)
        for scope in with_parameters - around_layers
    }
    module_of_op = scopes.outermost(layers | outer)
    running = dict.fromkeys(module_of_op[op] for op in scopes.computing)
    return tuple(module for module in running if module is not None)


def order_of_groups(problem: PlacementProblem, grouping: Grouping) -> NDArray[np.int64]:
    """Return int64[G], groups in the order in which the first op of each that takes time runs."""
    works = (problem.compute_time > 0).any(axis=1)
    position = np.asarray(problem.graph.topological_index)[works]
    first = np.full(grouping.num_groups, problem.graph.num_ops)
    np.minimum.at(first, grouping.group_of[works], position)
    return np.argsort(first, kind="stable")


def layers_of_groups(problem: PlacementProblem) -> tuple[NDArray[np.int64], bool]:
    """Return int64[G], layers of groups by `all_layers`, else coarse groups; whether by modules."""
    scopes = GraphModules(problem.graph)
    modules = all_layers(scopes)
    are_modules = len(modules) >= FEWEST_LAYERS * problem.num_devices
    if are_modules:
        index_of_module = {module: index for index, module in enumerate(modules)}
        label_of_op = np.array(
            [index_of_module.get(module or "", UNKNOWN) for module in scopes.outermost(modules)]
        )
        num_labels = len(modules)
    else:
        coarse = problem.levels[0]
        for level in problem.levels:
            if level.num_groups <= MOST_COARSE:
                coarse = level
        num_labels = coarse.num_groups
        position_of_group = np.argsort(order_of_groups(problem, coarse))
        label_of_op = position_of_group[coarse.group_of]
    layer_of_group = _voted_labels(problem, label_of_op, num_labels)
    order = order_of_groups(problem, problem.grouping)
    layers_in_order = layer_of_group[order]
    layer = layers_in_order[layers_in_order != UNKNOWN][0]  # for groups before the first layer
    for group in order.tolist():  # one without a layer runs with the group before it
        if layer_of_group[group] == UNKNOWN:
            layer_of_group[group] = layer
        layer = layer_of_group[group]
    consecutive: NDArray[np.int64] = np.unique(layer_of_group, return_inverse=True)[1]
    return consecutive, are_modules


def _voted_labels(
    problem: PlacementProblem, label_of_op: NDArray[np.integer], num_labels: int
) -> NDArray[np.int64]:
    """Return int64[G], the label on which the ops of each group spend most time; -1 for none."""
    votes = np.zeros((problem.num_groups, num_labels))
    labelled = label_of_op != UNKNOWN
    seconds = NO_TIME + mean_seconds(op_seconds(problem))
    groups = problem.grouping.group_of[labelled]
    np.add.at(votes, (groups, label_of_op[labelled]), seconds[labelled])
    return np.where(votes.any(axis=1), votes.argmax(axis=1), UNKNOWN)
