"""A placement as the stages of a pipeline, for `torch.distributed.pipelining`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import Price
from placeto.exporting.layer_split import layer_split
from placeto.exporting.layers import all_layers
from placeto.exporting.module_scopes import ModuleScopes
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
        Cost of whole layers, with their backward passes, in one stage.
    as_placed : bool
        Whether the placement has these stages already.
    """

    split_points: tuple[str, ...]
    devices: tuple[str, ...]
    price: Price
    as_placed: bool


def pipeline_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> PipelineStages:
    """Return where a pipeline is split, for a placement, int32[G]; see `layer_split`."""
    graph, scopes = problem.graph, ModuleScopes(problem.graph)
    layers, devices = all_layers(scopes), range(problem.num_devices)
    split = layer_split(problem, placement, layers, devices, evaluator)
    of_weight = scopes.is_weight[graph.edge_producers] & scopes.is_forward[graph.edge_consumers]
    ends = split.op_devices[np.stack([graph.edge_producers, graph.edge_consumers])]
    apart = np.flatnonzero(of_weight & (ends[0] != ends[1]))
    if len(apart):
        first, other = sorted(map(split.stages.devices.index, ends[:, apart[0]].tolist()))
        raise InputError(
            "PLACEMENT: expected each weight in one stage, but "
            f"{graph.op_names[graph.edge_producers[apart[0]]]} is read in the stages {first} and "
            f"{other}"
        )
    return PipelineStages(
        split_points=tuple(split.layers[begin] for begin in split.stages.bounds[1:-1]),
        devices=tuple(problem.cluster.device_names[device] for device in split.stages.devices),
        price=split.price,
        as_placed=split.as_placed,
    )
