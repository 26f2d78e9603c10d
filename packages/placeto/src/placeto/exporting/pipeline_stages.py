"""A placement as the stages of a pipeline, for `torch.distributed.pipelining`."""

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import UNKNOWN, Price, labels_of_step, price, problem_of_labels
from placeto.exporting.layer_split import layer_split
from placeto.exporting.layers import all_layers
from placeto.exporting.module_scopes import ModuleScopes, path_of
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import PlacementProblem, colocate, colocate_by_id


class NoChainError(InputError):
    """A placement is no chain of stages."""


@dataclass(frozen=True)
class PipelineStages:
    """A model cut into stages, one behind the other.

    Attributes
    ----------
    split_points : texts
        The modules that all stages but the first begin with, each a ``SplitPoint.BEGINNING``.
    devices : texts
        The device of each stage, by its name in the cluster.
    price : `Price`
        Cost of whole modules, with their backward passes, in one stage.
    """

    split_points: tuple[str, ...]
    devices: tuple[str, ...]
    price: Price


def pipeline_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> PipelineStages:
    """Return where a pipeline is split, for a placement, int32[G], that is a chain of stages.

    A placement is a chain if the forward pass never returns to a device that it has left, and each
    stage begins between modules. Ops between two modules may be on either side. Of a step in
    micro-batches the first one counts; the others run in the same stages.
    """
    graph, names = problem.graph, problem.cluster.device_names
    scopes = ModuleScopes(graph)
    op_of_name = {name: op for op, name in enumerate(graph.op_names)}
    first_copies = [  # see `placeto_graphs.micro_batched`
        op_of_name.get(re.sub(r"@[0-9]+$", "@0", graph.op_names[op]), op) for op in scopes.computing
    ]
    ops = list(dict.fromkeys(first_copies))
    modules = scopes.outermost(scopes.indivisible)
    first_place: dict[str, int] = {}
    for place, op in enumerate(ops):
        for around in path_of(graph.scopes[op]):
            first_place.setdefault(around, place)

    op_devices = problem.expand(placement).tolist()
    stages: dict[int, int] = {}  # by device, the place in the order at which each begins
    last = -1
    for place, op in enumerate(ops):
        device, module = op_devices[op], modules[op]
        if module is None or device == last:
            continue
        if device in stages:
            raise NoChainError(
                "PLACEMENT: expected a chain of stages, as a pipeline is one, but the forward pass "
                f"comes back from {names[last]} to {names[device]} at {graph.op_names[op]}"
            )
        if first_place[module] == place:
            stages[device], last = place, device
        elif module in scopes.owners:
            raise NoChainError(
                "PLACEMENT: expected stages that begin between modules, as those of a pipeline do, "
                f"but the module {module} is on {names[last]} and {names[device]}"
            )
    begins = list(stages.values())[1:]
    stage_of = dict(
        zip(ops, np.searchsorted(begins, np.arange(len(ops)), side="right"), strict=True)
    )
    forward = np.full(graph.num_ops, UNKNOWN, np.int64)
    forward[scopes.computing] = [stage_of[first] for first in first_copies]
    labels = _stage_of_op(scopes, forward, len(begins))
    restricted = problem_of_labels(problem, labels)
    found = restricted.placement_of_ops(np.array(list(stages), np.int32)[labels])
    after = evaluator.make(restricted, None).evaluate(found[None])
    return PipelineStages(
        split_points=tuple(
            next(each for each in path_of(modules[ops[place]] or "") if first_place[each] == place)
            for place in begins
        ),
        devices=tuple(names[device] for device in stages),
        price=price(problem, placement, after, evaluator),
    )


def nearest_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec
) -> PipelineStages:
    """Return the stages of `layer_split`, for a placement that is no chain."""
    layers = all_layers(ModuleScopes(problem.graph))
    split = layer_split(problem, placement, layers, range(problem.num_devices), evaluator)
    grouping = colocate(problem.graph, [colocate_by_id])
    ops = replace(problem, grouping=grouping, hierarchy=None, rules=None)
    found = pipeline_stages(ops, ops.placement_of_ops(split.op_devices), evaluator)
    as_placed = replace(found.price, runtime_as_placed=split.price.runtime_as_placed)
    return replace(found, price=as_placed)


def _stage_of_op(scopes: ModuleScopes, stages: NDArray[np.int64], last: int) -> NDArray[np.int64]:
    """Return int64[V], the stage of each op of a step, from those of the ops that compute."""
    graph = scopes.graph
    reads = stages[graph.edge_consumers] != UNKNOWN
    for op, reader in zip(
        graph.edge_producers[reads].tolist(), graph.edge_consumers[reads].tolist(), strict=True
    ):
        if stages[op] == UNKNOWN:
            stages[op] = stages[reader]
        elif scopes.is_weight[op] and stages[op] != stages[reader]:
            raise InputError(
                f"PLACEMENT: expected each weight in one stage, but {graph.op_names[op]} is read "
                f"in the stages {stages[op]} and {stages[reader]}"
            )
    return labels_of_step(graph, stages, otherwise=last)
