"""A placement as a device map, which accelerate's ``dispatch_model`` takes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.module_scopes import ROOT, ModuleScopes, is_within, parents_of
from placeto.exporting.restriction import Price, price, problem_of_labels
from placeto.exporting.whole_modules import WholeModules, whole_modules
from placeto.placing.costs import costs
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import Cluster, PlacementProblem

if TYPE_CHECKING:
    from torch import nn

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
    """Return where whole modules go, for a placement of groups of ops.

    A module whose ops are all on one device stays there. Each other module moves, together with
    the modules that have to share its device (see `whole_modules`), to the device where a step
    costs least. Moves repeat until none helps.

    Parameters
    ----------
    problem
        The problem, with a graph whose scopes are names of modules.
    placement : int32[G]
        The device of each group. If there are GPUs, accelerate computes nothing on CPUs, so
        modules on a CPU move to a GPU.
    evaluator
        Evaluator of the placements of modules.

    Examples
    --------
    >>> from torch import nn, ones
    >>> from placeto_graphs import parse_cluster
    >>> from placeto.problems.making import make_problem
    >>> from placeto.problems.sources import Source
    >>> from placeto_capture import capture
    >>> graph = capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ones(16, 4))
    >>> problem = make_problem(Source("layers", graph), parse_cluster("2xv100"))
    >>> device_map(problem, np.zeros(problem.num_groups, np.int32)).modules
    {'': 0}
    """
    scopes = ModuleScopes(problem.graph)
    targets = targets_of(problem.cluster)
    op_devices = problem.expand(placement)
    devices_of_module = scopes.forward_values(op_devices.tolist())
    kept = [name for name, devices in devices_of_module.items() if len(devices) == 1]
    modules = whole_modules(scopes, set(kept) - {ROOT})
    restricted = problem_of_labels(problem, modules.labels)
    found = _cheapest(restricted, op_devices, scopes.is_forward, list(targets), evaluator)
    found_devices = restricted.expand(found)
    return DeviceMap(
        modules=_named(scopes, modules, [targets[device] for device in found_devices.tolist()]),
        main_device=targets[int(found_devices[modules.first_op[ROOT]])],
        split=tuple(name for name in modules.first_op if name and name not in kept),
        price=price(problem, placement, restricted, found, evaluator),
    )


def with_all_names(
    modules: dict[str, Target], main_device: Target, model: "nn.Module"
) -> dict[str, Target]:
    """Return a device map of what is in a model, with every name of its parameters and buffers.

    A graph has one name for each module, parameter and buffer. Other names of it in the model, such
    as those of tied weights, get the same device.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.ModuleDict({"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)})
    >>> model["last"].weight, model["again"] = model["first"].weight, model["first"]
    >>> with_all_names({"first": 1, "gone": 0}, 0, model)
    {'first': 1, 'again': 1, 'last': 1}
    """
    all_modules = dict(model.named_modules(remove_duplicate=False))
    first_names = {module: name for name, module in model.named_modules()}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    known = all_modules.keys() | dict(tensors).keys()
    found = {name: target for name, target in modules.items() if name in known}

    def target_of(name: str) -> Target | None:
        around = (*parents_of(name), name)
        return next((found[each] for each in reversed(around) if each in found), None)

    for name, module in all_modules.items():
        first = first_names[module]
        if name != first and target_of(name) is None:
            inside = {key: found[key] for key in found if is_within(key, first)}
            whole = target_of(first)
            found |= {name + key.removeprefix(first): target for key, target in inside.items()}
            if not inside and whole is not None:
                found[name] = whole
    named = {value: target for name, value in tensors if (target := target_of(name)) is not None}
    for name, value in tensors:
        if target_of(name) is None:
            found[name.rpartition(".")[0] or name] = named.get(value, main_device)
    return found


def targets_of(cluster: Cluster) -> dict[int, Target]:
    """Return what accelerate calls those devices of a cluster that it computes on.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> targets_of(parse_cluster("1xcpu+2xk80")), targets_of(parse_cluster("2xcpu"))
    ({1: 0, 2: 1}, {0: 'cpu'})
    """
    gpus = [number for number, device in enumerate(cluster.devices) if not device.is_cpu]
    return {device: number for number, device in enumerate(gpus)} or {0: CPU}


def _cheapest(
    problem: PlacementProblem,
    op_devices: NDArray[np.int32],
    is_forward: NDArray[np.bool_],
    devices: list[int],
    evaluator: EvaluatorSpec,
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
    elsewhere = impossible | ~np.isin(placement, devices)
    for group in np.flatnonzero(elsewhere).tolist():
        placement[group] = devices[int(seconds[group, devices].argmin())]
    free = np.union1d(apart, np.flatnonzero(elsewhere))
    free = free[np.argsort(-seconds[free, placement[free]], kind="stable")]
    priced_by = evaluator.make(problem, None)
    for _ in range(MOST_ROUNDS):
        before = placement.copy()
        for group in free.tolist():
            possible = [each for each in devices if np.isfinite(seconds[group, each])]
            moved = np.repeat(placement[None], len(possible), axis=0)
            moved[:, group] = possible
            placement = moved[int(costs(priced_by, moved).argmin())]
        if np.array_equal(before, placement):
            break
    return placement


def _named(
    scopes: ModuleScopes, modules: WholeModules, target_of_op: list[Target]
) -> dict[str, Target]:
    """Return the outermost modules that are on one device, and the model's own weights."""
    targets = scopes.forward_values(target_of_op)
    main = target_of_op[modules.first_op[ROOT]]
    if len(targets[ROOT]) == 1:
        return {ROOT: main}
    result: dict[str, Target] = {
        scopes.graph.op_names[op]: main
        for op in np.flatnonzero(scopes.is_weight).tolist()
        if scopes.graph.scopes[op] == ROOT
    }
    for module, op in modules.first_op.items():
        if module != ROOT:
            path = (*parents_of(module), module)
            result[next(each for each in path if len(targets[each]) == 1)] = target_of_op[op]
    return result
