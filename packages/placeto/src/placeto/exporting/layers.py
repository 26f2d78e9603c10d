"""The layers of a model: the blocks that it repeats, as the scopes of a graph tell them.

`layer_stacks` finds them. `layer_chain` says which layer each op of a step runs with, for libraries
that give each device some layers that run one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.module_scopes import ROOT, ModuleScopes, parents_of
from placeto.exporting.restriction import UNKNOWN, labels_of_step
from placeto_graphs import OpGraph, PlacementProblem, grouping_of_labels

PARAMETER = "parameter"


@dataclass(frozen=True)
class LayerStack:
    """Blocks that a model repeats.

    Attributes
    ----------
    name : text
        The module that holds them, such as ``"model.layers"``; ``""`` is the model itself.
    layers : texts
        The blocks, such as ``"model.layers.0"``, in the order in which they begin to run.
    """

    name: str
    layers: tuple[str, ...]


def layer_stacks(scopes: ModuleScopes) -> tuple[LayerStack, ...]:
    """Return the stacks of layers of a model, in the order in which they begin to run.

    A stack is a module with two or more numbered parts that run in the forward pass, such as a
    ``ModuleList`` or a ``Sequential``. A stack inside a layer of another stack, such as the experts
    of a layer, belongs to that layer.
    """
    parts: dict[str, dict[str, None]] = {}
    for op in scopes.computing:
        scope = scopes.graph.scopes[op]
        for module in (*parents_of(scope)[1:], scope):
            around, _, name = module.rpartition(".")
            if name.isdecimal():
                parts.setdefault(around, {})[module] = None
    stacks = {
        name: LayerStack(name, tuple(found)) for name, found in parts.items() if len(found) > 1
    }
    layers = {layer for stack in stacks.values() for layer in stack.layers}
    return tuple(
        stack
        for name, stack in stacks.items()
        if not layers.intersection((*parents_of(name), name))
    )


def chain_modules(scopes: ModuleScopes) -> tuple[str, ...]:
    """Return the layers of all stacks, and the modules before and behind that read parameters.

    These are as large as they can be without a stack inside. All are in the order in which they
    begin to run.
    """
    layers = {layer for stack in layer_stacks(scopes) for layer in stack.layers}
    around_layers = {parent for layer in layers for parent in parents_of(layer)} | {ROOT}
    graph = scopes.graph
    is_parameter = np.array([kind == PARAMETER for kind in graph.op_types])
    reading = graph.edge_consumers[is_parameter[graph.edge_producers]]
    with_parameters = {graph.scopes[op] for op in reading[scopes.is_forward[reading]].tolist()}
    outer = {
        next(module for module in (*parents_of(scope), scope) if module not in around_layers)
        for scope in with_parameters - around_layers
    }
    of_op = scopes.outermost(layers | outer)
    running = dict.fromkeys(of_op[op] for op in scopes.computing)
    return tuple(module for module in running if module is not None)


@dataclass(frozen=True, eq=False)
class SharedWeight:
    """A weight that several layers read: each device of theirs has a copy.

    Attributes
    ----------
    num_bytes : int
        Bytes of a copy.
    layers : int64[N]
        Numbers of the layers that read it; it is counted where the first one is.
    """

    num_bytes: int
    layers: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LayerChain:
    """A step of which each layer, with what runs with it, is one group.

    Attributes
    ----------
    layers : N texts
        The modules, in the order in which they run.
    problem : `placeto_graphs.PlacementProblem`
        The step, in which layers do not read the ``shared`` weights of others.
    group_of_layer : int64[N]
        The group of each layer.
    labels : int64[V]
        The layer of each op.
    shared : `SharedWeight` values
        Weights of which devices have copies.
    """

    layers: tuple[str, ...]
    problem: PlacementProblem
    group_of_layer: NDArray[np.int64]
    labels: NDArray[np.int64]
    shared: tuple[SharedWeight, ...]


def layer_chain(
    problem: PlacementProblem, scopes: ModuleScopes, layers: Sequence[str]
) -> LayerChain:
    """Return the step of a problem as a chain of layers.

    An op between two layers runs with the layer whose outputs it reads. An op before all layers
    runs with the first layer that reads it.
    """
    graph = problem.graph
    forward = _forward_labels(scopes, layers)
    labels = labels_of_step(graph, forward, otherwise=len(layers) - 1)
    read_elsewhere = scopes.is_weight[graph.edge_producers] & (
        labels[graph.edge_producers] != labels[graph.edge_consumers]
    )
    shared = []
    for op in np.unique(graph.edge_producers[read_elsewhere]).tolist():
        readers = labels[graph.edge_consumers[graph.edge_producers == op]]
        of_weight = np.concatenate([labels[[op]], np.setdiff1d(readers, labels[op])])
        shared.append(SharedWeight(int(graph.parameter_bytes[op]), of_weight))
    free = np.full(graph.num_ops, UNKNOWN, np.int32)
    apart: OpGraph = replace(graph, edges=graph.edges[~read_elsewhere], colocation=free)
    grouping = grouping_of_labels(apart, labels)
    group_of_layer = np.empty(len(layers), np.int64)
    group_of_layer[labels] = grouping.group_of
    return LayerChain(
        layers=tuple(layers),
        problem=replace(problem, graph=apart, grouping=grouping, hierarchy=None, rules=None),
        group_of_layer=group_of_layer,
        labels=labels,
        shared=tuple(shared),
    )


def _forward_labels(scopes: ModuleScopes, layers: Sequence[str]) -> NDArray[np.int64]:
    """Return int64[V], the number of the layer of each op of the forward pass; else -1."""
    graph = scopes.graph
    number = {layer: place for place, layer in enumerate(layers)}
    labels = np.array(
        [UNKNOWN if layer is None else number[layer] for layer in scopes.outermost(layers)],
        np.int64,
    )
    labels[~scopes.is_forward] = UNKNOWN
    for op in scopes.computing:
        read = graph.tensor_producer[graph.inputs_of_op[op]]
        made_in = labels[read[~scopes.is_weight[read]]].max(initial=UNKNOWN)
        if labels[op] == UNKNOWN:
            labels[op] = made_in
        elif made_in > labels[op]:
            raise InputError(
                "PROBLEM: expected layers that run one after another, but "
                f"{layers[labels[op]]} reads what {layers[made_in]} makes"
            )
    for op in graph.topological_order[::-1].tolist():
        if labels[op] == UNKNOWN and scopes.is_forward[op]:
            read_in = [labels[graph.consumers_of_tensor[each]] for each in graph.tensors_of_op[op]]
            known = np.concatenate([*read_in, [UNKNOWN]])
            known = known[known != UNKNOWN]
            labels[op] = known.min() if len(known) else UNKNOWN
    return labels
