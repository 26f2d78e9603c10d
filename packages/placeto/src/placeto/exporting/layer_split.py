"""Layers that run one after another, some on each device: the form that pipelines take.

vLLM and DeepSpeed give each device some layers that run one after another. `layer_split`
returns the split that is the placement, or else the fastest one that is found (`best_chain`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import Price, price
from placeto.exporting.layers import NO_TIME, ModelChain, chain_modules
from placeto.exporting.module_scopes import ModuleScopes
from placeto.placing.costs import fits
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_baselines import Stages, best_chain
from placeto_graphs import EvaluationBatch, PlacementProblem

NONE = -1


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """The layers of a model, cut into stages."""

    layers: tuple[str, ...]  # the modules, in the order in which they run
    stages: Stages
    op_devices: NDArray[np.int32]  # [V], the device of each op of the step
    as_placed: bool  # whether the placement has the layers there already
    price: Price


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
        as_placed, stages = as_placed and found.stages == stages, found.stages
    return LayerSplit(
        layers=chain.layers,
        stages=stages,
        op_devices=stages.device_of_layer()[chain.labels],
        as_placed=as_placed,
        price=price(problem, placement, evaluated(stages), evaluator),
    )


def stages_of(device_of_layer: NDArray[np.integer]) -> Stages | None:
    """Return the stages of a device for each layer; None if a device has two of them."""
    begins = np.flatnonzero(np.diff(device_of_layer, prepend=NONE)).tolist()
    devices = tuple(device_of_layer[begins].tolist())
    if len(set(devices)) < len(devices):
        return None
    return Stages((*begins, len(device_of_layer)), devices)


def _nearest(
    chain: ModelChain, scopes: ModuleScopes, op_devices: NDArray[np.int32]
) -> tuple[NDArray[np.int64], bool]:
    """Return int64[N], where modules with parameters spend most time; whether they spend all."""
    of_op = scopes.outermost(chain_modules(scopes))
    ops = [op for op in scopes.computing if of_op[op] is not None]
    labels, there = chain.labels[ops], op_devices[ops]
    share = np.zeros((chain.num_layers, chain.problem.num_devices))
    np.add.at(share, (labels, there), chain.problem.compute_time[ops, there] + NO_TIME)
    nearest = share.argmax(axis=1)
    return nearest, bool((there == nearest[labels]).all())
