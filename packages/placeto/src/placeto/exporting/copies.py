"""Copies of a model as ``torchrun`` starts them: the devices of each, and what it sums with others.

PyTorch sums gradients over processes that hold the same weights, so all copies have the same
stages. `copied_stages` returns those of the placement, or else the best of the stages of one copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import ModuleScopes, Placement, Price, price
from placeto.exporting.layers import (
    labels_of_layers,
    main_devices,
    model_layers,
    ops_of_modules,
    stages_of,
)
from placeto.exporting.passing import passed_on
from placeto.placing.costs import fits
from placeto.placing.evaluators import EvaluatorSpec
from placeto_graphs import (
    Copies,
    EvaluationBatch,
    PlacementProblem,
    copies_of,
    placement_ranks,
)


@dataclass(frozen=True, eq=False)
class CopiedStages:
    """The same stages of each of k copies, on devices of their own.

    Attributes
    ----------
    copies : `placeto_graphs.Copies`
        What the graph says of the copies.
    devices : int64[k, S]
        The device of each of S stages of each copy.
    sizes : S integers
        Number of layers of each stage; none if each copy is on one device.
    split_points : texts
        The modules that all stages but the first begin with.
    stage_of_op : int64[V]
        The stage of each op of the step.
    as_placed : bool
        Whether the placement has the layers there already.
    """

    copies: Copies
    devices: NDArray[np.int64]
    sizes: tuple[int, ...]
    split_points: tuple[str, ...]
    stage_of_op: NDArray[np.int64]
    as_placed: bool

    @property
    def is_apart(self) -> bool:
        """Whether no two stages share a device."""
        return len(np.unique(self.devices)) == self.devices.size

    @property
    def num_stages(self) -> int:
        """Number of the stages of each copy."""
        return int(self.devices.shape[1])

    @property
    def op_devices(self) -> NDArray[np.int32]:
        """int32[V], the device of each op."""
        return self.devices[self.copies.copy_of_op, self.stage_of_op].astype(np.int32)

    def costs(self, problem: PlacementProblem, evaluator: EvaluatorSpec) -> EvaluationBatch:
        """Return the costs of stages that pass tensors on."""
        copy_of_op = self.copies.copy_of_op
        stages = copy_of_op * self.num_stages + self.stage_of_op
        pipelines, stages = passed_on(problem, stages, copy_of_op)
        devices = self.devices.ravel()[stages].astype(np.int32)
        return evaluator.costs(pipelines, pipelines.placement_of_ops(devices))


def copied_stages(
    problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec
) -> tuple[CopiedStages, Price]:
    """Return the stages of the copies of a placement, int32[G], and their price.

    They stay if the placement fits and has the same stages of each copy on devices of its own.
    Otherwise they are the best of those of one copy, for all; or each copy is on one device.
    """
    copies = copies_of(problem.graph)
    if copies is None:
        raise InputError("PROBLEM: expected copies, got one step; build it with --copies 2 or more")
    op_devices = problem.expand(placement)
    splits = [split for split in _splits(problem, copies, op_devices) if split.is_apart]
    if not splits:
        raise InputError(
            "PLACEMENT: expected devices of its own for each copy, got shared ones; place fewer "
            "copies, or each on other devices"
        )
    ranked = []
    for split in splits:
        costs = split.costs(problem, evaluator)
        (rank,) = placement_ranks(costs, problem.cluster.memory_bytes)
        moves = not (split.as_placed and fits(problem, costs.peak_memory[0]))
        ranked.append((moves, rank, split, costs))
    _, _, split, costs = min(ranked, key=lambda row: row[:2])
    form = "whole consecutive layers" if split.num_stages > 1 else "each copy on one device"
    return split, price(problem, placement, costs, evaluator, form)


def _splits(
    problem: PlacementProblem, copies: Copies, op_devices: NDArray[np.int32]
) -> Iterator[CopiedStages]:
    """Yield each copy on its main device, and all copies in the stages of one of them."""
    graph, count = problem.graph, copies.count
    devices = main_devices(problem, copies.copy_of_op, np.arange(graph.num_ops), op_devices)
    is_whole = bool((op_devices == devices[copies.copy_of_op]).all())
    yield CopiedStages(
        copies, devices[:, None], (), (), np.zeros(graph.num_ops, np.int64), is_whole
    )
    if is_whole:
        return
    scopes = ModuleScopes(graph)
    layers, ops = model_layers(scopes), ops_of_modules(scopes)
    labels = labels_of_layers(scopes, layers)
    layer_of_copy = copies.copy_of_op * len(layers) + labels
    nearest = main_devices(problem, layer_of_copy, ops, op_devices)
    stages = [stages_of(devices_of_copy) for devices_of_copy in nearest.reshape(count, -1)]
    of_copies = [of_copy for of_copy in stages if of_copy is not None and len(of_copy.devices) > 1]
    is_placed = (op_devices[ops] == nearest[layer_of_copy[ops]]).all()
    if len({len(of_copy.devices) for of_copy in of_copies}) != 1 or len(of_copies) < count:
        return
    all_bounds = dict.fromkeys(of_copy.bounds for of_copy in of_copies)
    for bounds in all_bounds:
        sizes = np.diff(bounds)
        yield CopiedStages(
            copies,
            np.array([of_copy.devices for of_copy in of_copies], np.int64),
            tuple(sizes.tolist()),
            tuple(layers[begin] for begin in bounds[1:-1]),
            np.repeat(np.arange(len(sizes)), sizes)[labels],
            bool(is_placed) and len(all_bounds) == 1,
        )
