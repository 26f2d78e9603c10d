"""A placement as a device map, which accelerate's ``dispatch_model`` takes.

accelerate moves the arguments of a module that its device map names to the device of the module.
A module that the map does not name computes where its tensors are. So all tensors that its own
forward pass reads have to be on one device: `whole_modules` finds what has to stay together.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import (
    ModuleScopes,
    Price,
    check_one_copy,
    check_one_machine,
    is_within,
    labels_of_step,
    price,
    problem_of_labels,
)
from placeto.exporting.layers import layer_split
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_baselines.search.layers import ROOT, UNKNOWN, path_of
from placeto_graphs import Cluster, Evaluator, PlacementProblem, placement_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

CPU = "cpu"
MOST_ROUNDS = 10
Target = int | str  # the number of a GPU, or "cpu"


@dataclass(frozen=True)
class DeviceMap:
    """Where accelerate puts the modules of a model.

    Attributes
    ----------
    modules : texts to int or text
        The number of the GPU of each module, or ``"cpu"``. ``""`` is the whole model.
    main_device : int or text
        ``main_device`` of ``dispatch_model``: the device of inputs, and of the model's own weights.
    split : texts
        The modules whose ops the placement has on several devices.
    price : `Price`
        Cost of whole modules.
    """

    modules: dict[str, Target]
    main_device: Target
    split: tuple[str, ...]
    price: Price


def device_map(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> DeviceMap:
    """Return where whole modules go, for a placement of groups of ops, int32[G].

    A module whose ops are all on one device stays there. Each other one moves, with the modules
    that have to share its device, to the device where a step costs least, until no move helps. If
    that does not fit the memory, whole layers in a row may.
    """
    check_one_machine(problem.cluster, "accelerate")
    check_one_copy(problem.graph, "dispatch_model", "--to torch")
    map_of_modules = _map_of_ops(problem, placement, problem.expand(placement), evaluator)
    if not map_of_modules.price.fits:
        with suppress(InputError):  # of a model without layers in a row
            gpus = [*targets_of(problem.cluster)]
            split = layer_split(problem, placement, gpus, evaluator)
            map_of_layers = _map_of_ops(problem, placement, split.op_devices, evaluator)
            if map_of_layers.price.fits:
                map_of_modules = map_of_layers
    return map_of_modules


def _map_of_ops(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    op_devices: NDArray[np.int32],
    evaluator: EvaluatorSpec,
) -> DeviceMap:
    """Return where whole modules go, for int32[V], devices of ops."""
    scopes = ModuleScopes(problem.graph)
    targets = targets_of(problem.cluster)
    devices_of_module = scopes.forward_values(op_devices.tolist())
    undivided = [name for name, devices in devices_of_module.items() if len(devices) == 1]
    first_op, labels = whole_modules(scopes, set(undivided) - {ROOT})
    restricted = problem_of_labels(problem, labels)
    waiting = replace(restricted, graph=evaluator.scheduled(problem, placement).graph)
    priced_by = evaluator.make(waiting, None)
    whole_placement = _cheapest(restricted, op_devices, scopes.is_forward, list(targets), priced_by)
    device_of_op = restricted.expand(whole_placement).tolist()
    return DeviceMap(
        modules=_named(scopes, first_op, [targets[device] for device in device_of_op]),
        main_device=targets[device_of_op[first_op[ROOT]]],
        split=tuple(name for name in first_op if name and name not in undivided),
        price=price(
            problem,
            placement,
            evaluator.costs(restricted, whole_placement),
            evaluator,
            "whole modules",
        ),
    )


def with_all_names(
    modules: dict[str, Target], main_device: Target, model: "nn.Module"
) -> dict[str, Target]:
    """Return a device map of what a model has, with all names of its tensors, also tied ones."""
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    names = {name for name, _ in (*model.named_modules(remove_duplicate=False), *tensors)}
    targets = {name: target for name, target in modules.items() if name in names}

    def target_of(name: str) -> Target | None:
        for module in reversed(path_of(name)):
            if module in targets:
                return targets[module]
        return None

    targets_of_tensors: dict[Tensor, Target] = {}  # also by another of its names
    for name, tensor in tensors:
        target = target_of(name)
        if target is not None:
            targets_of_tensors[tensor] = target
    for name, tensor in tensors:
        if target_of(name) is None:  # a module with weights of its own is whole
            targets[name.rpartition(".")[0] or name] = targets_of_tensors.get(tensor, main_device)
    return targets


def targets_of(cluster: Cluster) -> dict[int, Target]:
    """Return what accelerate calls those devices of a cluster that it computes on."""
    gpus = [index for index, device in enumerate(cluster.devices) if not device.is_cpu]
    return {device: gpu for gpu, device in enumerate(gpus)} or {0: CPU}


def _cheapest(
    problem: PlacementProblem,
    op_devices: NDArray[np.int32],
    is_forward: NDArray[np.bool_],
    devices: list[int],
    evaluator: Evaluator,
) -> NDArray[np.int32]:
    """Return int32[G], with groups where their forward ops are, or else where they cost least."""
    group_of = problem.grouping.group_of
    seconds = problem.group_graph.compute_time
    nowhere = np.isinf(seconds[:, devices]).all(axis=1)
    if nowhere.any():
        name = problem.grouping.group_names[int(nowhere.argmax())]
        raise InputError(
            f"PROBLEM: expected a GPU that can run all of the module of {name}, as accelerate "
            "computes nothing elsewhere, got none"
        )
    placement = problem.placement_of_ops(op_devices)
    placement[group_of[is_forward]] = op_devices[is_forward]
    apart = group_of[is_forward & (placement[group_of] != op_devices)]
    impossible = np.isinf(seconds[np.arange(len(placement)), placement])
    elsewhere = np.flatnonzero(impossible | ~np.isin(placement, devices))
    placement[elsewhere] = np.array(devices)[seconds[elsewhere][:, devices].argmin(axis=1)]
    free = np.union1d(apart, elsewhere)
    free = free[np.argsort(-seconds[free, placement[free]], kind="stable")]
    for _ in range(MOST_ROUNDS):
        previous = placement.copy()
        for group in free.tolist():
            possible = [device for device in devices if np.isfinite(seconds[group, device])]
            moved = np.repeat(placement[None], len(possible), axis=0)
            moved[:, group] = possible
            ranks = placement_ranks(evaluator.evaluate(moved), problem.cluster.memory_bytes)
            placement = moved[ranks.index(min(ranks))]
        if np.array_equal(previous, placement):
            break
    return placement


def _named(
    scopes: ModuleScopes, first_op: dict[str, int], target_of_op: list[Target]
) -> dict[str, Target]:
    """Return the outermost modules that are on one device, and the model's own weights."""
    targets = scopes.forward_values(target_of_op)
    main = target_of_op[first_op[ROOT]]
    if len(targets[ROOT]) == 1:
        return {ROOT: main}
    result: dict[str, Target] = {
        scopes.graph.op_names[op]: main
        for op in np.flatnonzero(scopes.is_weight).tolist()
        if scopes.graph.scopes[op] == ROOT
    }
    for module, op in first_op.items():
        if module != ROOT:
            whole = next(name for name in path_of(module) if len(targets[name]) == 1)
            result[whole] = target_of_op[op]
    return result


def whole_modules(
    scopes: ModuleScopes, undivided: Collection[str] = ()
) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return the smallest modules that can be on devices of their own, and int64[V].

    Of each module, none inside another one, it is the op that it begins with, in the order in which
    they run; ops with equal labels of int64[V] share a device. ``""`` is the whole model. Whole are
    modules in ``undivided``, those with weights of their own, and those whose own forward pass
    reads tensors of several places, one of them outside; if all are inside, these share a device.
    """
    graph = scopes.graph
    whole = scopes.indivisible.union(undivided)
    must_be_whole, places, shared = _walk(scopes, whole)
    while must_be_whole:
        # A module inside may have been the reason for one around it.
        whole |= {
            module
            for module in must_be_whole
            if not any(inner != module and is_within(inner, module) for inner in must_be_whole)
        }
        must_be_whole, places, shared = _walk(scopes, whole)
    forward = np.full(graph.num_ops, UNKNOWN, np.int64)
    first_op: dict[str, int] = {}
    label_of_place: dict[str, int] = {}
    computing_first = np.argsort(scopes.is_weight, kind="stable")
    for op in computing_first[scopes.is_forward[computing_first]].tolist():
        place = places[op] or ROOT
        first_op.setdefault(place, op)
        forward[op] = label_of_place.setdefault(shared[place], len(label_of_place))
    root = label_of_place.setdefault(shared[ROOT], len(label_of_place))
    first_op.setdefault(ROOT, 0)
    return first_op, labels_of_step(graph, forward, otherwise=root)


def _walk(
    scopes: ModuleScopes, whole: frozenset[str]
) -> tuple[set[str], list[str | None], UnionFind]:
    """Walk over the forward pass with some modules whole.

    Return what has to be whole, too; where each op runs; and which of these places share a device.
    """
    graph = scopes.graph
    places: list[str | None] = scopes.outermost(whole)
    must_be_whole: set[str] = set()
    shared = UnionFind([ROOT])
    order = graph.topological_order
    for op in order[scopes.is_forward[order]].tolist():
        read = graph.tensor_producer[graph.inputs_of_op[op]].tolist()
        place, scope = places[op], graph.scopes[op]
        if place is not None:
            for producer in read:
                if scopes.is_weight[producer]:
                    shared.union(place, places[producer] or ROOT)
        elif scope == ROOT and not read:
            places[op] = ROOT
        else:
            places_of_inputs = dict.fromkeys(places[producer] for producer in read)
            places_read = [place for place in places_of_inputs if place is not None]
            if not places_read:
                continue
            places[op] = next((place for place in places_read if place != ROOT), ROOT)
            if len({shared[place] for place in places_read}) == 1:
                continue
            if all(place == ROOT or is_within(place, scope) for place in places_read):
                shared.union(*places_read)
            else:
                must_be_whole.add(scope)
    return must_be_whole, places, shared
