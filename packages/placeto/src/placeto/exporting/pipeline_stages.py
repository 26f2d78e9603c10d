"""A placement as the stages of a pipeline, for `torch.distributed.pipelining`."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import UNKNOWN, Price, labels_of_step, price, problem_of_labels
from placeto.exporting.layer_split import layer_split
from placeto.exporting.layers import all_layers
from placeto.exporting.module_scopes import ModuleScopes, path_of
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import PlacementProblem


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
    as_placed : bool
        Whether the placement has these stages already.
    """

    split_points: tuple[str, ...]
    devices: tuple[str, ...]
    price: Price
    as_placed: bool = True


def pipeline_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> PipelineStages:
    """Return the stages of a placement, int32[G], if it is a chain of them that fits.

    For any other placement they are the best split of layers that is found, see `layer_split`.
    """
    placed = _stages_as_placed(problem, placement, evaluator)
    if placed is not None and placed.price.fits:
        return placed
    scopes, names = ModuleScopes(problem.graph), problem.cluster.device_names
    devices = range(problem.num_devices)
    split = layer_split(problem, placement, all_layers(scopes), devices, evaluator)
    if placed is not None and not split.price.fits:
        return placed
    stage_of = {device: stage for stage, device in enumerate(split.stages.devices)}
    _check_weights(scopes, np.array([stage_of[device] for device in split.op_devices.tolist()]))
    return PipelineStages(
        split_points=tuple(split.layers[begin] for begin in split.stages.bounds[1:-1]),
        devices=tuple(names[device] for device in split.stages.devices),
        price=split.price,
        as_placed=False,
    )


def _stages_as_placed(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec
) -> PipelineStages | None:
    """Return where a pipeline is split, for a placement that is a chain of stages; else None.

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
            return None
        if first_place[module] == place:
            stages[device], last = place, device
        elif module in scopes.owners:
            return None
    begins = list(stages.values())[1:]
    stage_of = dict(
        zip(ops, np.searchsorted(begins, np.arange(len(ops)), side="right"), strict=True)
    )
    forward = np.full(graph.num_ops, UNKNOWN, np.int64)
    forward[scopes.computing] = [stage_of[first] for first in first_copies]
    reads = np.flatnonzero(forward[graph.edge_consumers] != UNKNOWN)[::-1]
    readers, read = forward[graph.edge_consumers[reads]], graph.edge_producers[reads]
    computes = forward[read] != UNKNOWN
    forward[read[~computes]] = readers[~computes]  # of the first reader
    labels = labels_of_step(graph, forward, otherwise=len(begins))
    _check_weights(scopes, labels)
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


def _check_weights(scopes: ModuleScopes, stages: NDArray[np.int64]) -> None:
    """Refuse a weight that two stages read, for int64[V], the stage of each op."""
    producers, consumers = scopes.graph.edge_producers, scopes.graph.edge_consumers
    of_weight = scopes.is_weight[producers] & scopes.is_forward[consumers]
    apart = of_weight & (stages[producers] != stages[consumers])
    if apart.any():
        op, reader = int(producers[apart][0]), int(consumers[apart][0])
        both = sorted({int(stages[op]), int(stages[reader])})
        raise InputError(
            f"PLACEMENT: expected each weight in one stage, but {scopes.graph.op_names[op]} is "
            f"read in the stages {both[0]} and {both[1]}"
        )
