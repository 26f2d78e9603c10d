"""Layers that run one after another, some on each device: the form that pipelines take.

vLLM and DeepSpeed give each device some layers that run one after another. `layer_split`
returns the split that is the placement, or else the fastest one that is found (`best_chain`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import UNKNOWN, Price, price
from placeto.exporting.layers import NO_TIME, ModelChain, all_layers
from placeto.exporting.module_scopes import ModuleScopes
from placeto.placing.costs import fits
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_baselines import Stages, best_chain
from placeto_graphs import EvaluationBatch, PlacementProblem


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """The layers of a model, cut into stages, one behind the other.

    Attributes
    ----------
    layers : texts
        The modules of the layers, in the order in which they run.
    stages : `placeto_baselines.Stages`
        The layers and the device of each stage.
    devices : texts
        The device of each stage, by its name in the cluster.
    op_devices : int32[V]
        The device of each op of the step.
    as_placed : bool
        Whether the placement has the layers there already.
    price : `Price`
        Cost of whole layers, with their backward passes, in one stage.
    """

    layers: tuple[str, ...]
    stages: Stages
    devices: tuple[str, ...]
    op_devices: NDArray[np.int32]
    as_placed: bool
    price: Price

    @property
    def split_points(self) -> tuple[str, ...]:
        """The modules that all stages but the first begin with, `SplitPoint.BEGINNING` of torch."""
        return tuple(self.layers[begin] for begin in self.stages.bounds[1:-1])


def layer_split(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    layers: Sequence[str],
    devices: Sequence[int],
    evaluator: EvaluatorSpec = STEP,
) -> LayerSplit:
    """Return which of some devices runs which layers, one after another.

    If the placement, int32[G], fits and has each layer on one device, and the layers of a device
    in a row, it is the split. Otherwise the split is the best one found.
    """
    scopes = ModuleScopes(problem.graph)
    chain = ModelChain(problem, scopes, layers, evaluator)
    nearest, as_placed = _nearest(chain, scopes, problem.expand(placement))
    stages = stages_of(nearest)
    if stages is not None and not chain.can_be(stages, devices):
        stages = None

    def evaluated(stages: Stages) -> EvaluationBatch:
        return chain.evaluate(stages.device_of_layer()[None])

    if not (stages and as_placed and fits(problem, evaluated(stages).peak_memory[0])):
        found = best_chain(chain, devices, [stages] if stages else [])
        if found is None:
            names = ", ".join(problem.cluster.device_names[each] for each in devices)
            raise InputError(f"PROBLEM: expected devices that can run the layers, got {names}")
        as_placed, stages = as_placed and found == stages, found
    return LayerSplit(
        layers=chain.layers,
        stages=stages,
        devices=tuple(problem.cluster.device_names[each] for each in stages.devices),
        op_devices=stages.device_of_layer()[chain.labels],
        as_placed=as_placed,
        price=price(problem, placement, evaluated(stages), evaluator),
    )


def pipeline_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> LayerSplit:
    """Return the split of all layers, for `torch.distributed.pipelining`.

    As of `layer_split`, on all devices; a weight that two stages would read is an `InputError`.
    """
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
    return split


def stages_of(device_of_layer: NDArray[np.integer]) -> Stages | None:
    """Return the stages of a device for each layer; None if a device has two of them."""
    begins = np.flatnonzero(np.diff(device_of_layer, prepend=UNKNOWN)).tolist()
    devices = tuple(device_of_layer[begins].tolist())
    if len(set(devices)) < len(devices):
        return None
    return Stages((*begins, len(device_of_layer)), devices)


def _nearest(
    chain: ModelChain, scopes: ModuleScopes, op_devices: NDArray[np.int32]
) -> tuple[NDArray[np.int64], bool]:
    """Return int64[N], where modules with parameters spend most time; whether they spend all."""
    of_op = scopes.outermost(all_layers(scopes))
    ops = [op for op in scopes.computing if of_op[op] is not None]
    labels, there = chain.labels[ops], op_devices[ops]
    share = np.zeros((chain.num_layers, chain.problem.num_devices))
    np.add.at(share, (labels, there), chain.problem.compute_time[ops, there] + NO_TIME)
    nearest = share.argmax(axis=1)
    return nearest, bool((there == nearest[labels]).all())
