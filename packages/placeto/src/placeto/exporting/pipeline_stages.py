"""A placement as the stages of a pipeline, for `torch.distributed.pipelining`."""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.layer_split import all_layers, layer_split
from placeto.exporting.module_scopes import ModuleScopes, parents_of
from placeto.exporting.restriction import (
    UNKNOWN,
    Price,
    labels_of_step,
    price,
    problem_of_labels,
)
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
    """Return where a pipeline is split, for a placement that is a chain of stages.

    A placement is a chain if the forward pass never returns to a device that it has left, and each
    stage begins between modules. Ops between two modules may be on either side.

    Parameters
    ----------
    problem
        The problem, with a graph whose scopes are names of modules.
    placement : int32[G]
        The device of each group.
    evaluator
        Evaluator of the stages.

    Examples
    --------
    >>> from torch import nn, ones
    >>> from placeto_graphs import parse_cluster
    >>> from placeto.problems.making import make_problem
    >>> from placeto.problems.sources import Source
    >>> from placeto_capture import capture
    >>> graph = capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ones(16, 4))
    >>> problem = make_problem(Source("layers", graph), parse_cluster("2xv100"))
    >>> on_second = [scope == "2" for scope in graph.scopes]
    >>> found = pipeline_stages(problem, problem.placement_of_ops(np.int32(on_second)))
    >>> found.split_points, found.devices
    (('2',), ('v100:0', 'v100:1'))
    """
    forward = _ForwardPass(ModuleScopes(problem.graph))
    stages = _stages(problem, forward, problem.expand(placement))
    labels = _stage_of_op(forward, [stage.first for stage in stages])
    devices = np.array([stage.device for stage in stages], np.int32)
    restricted = problem_of_labels(problem, labels)
    found = restricted.placement_of_ops(devices[labels])
    return PipelineStages(
        split_points=tuple(forward.outermost_beginning_at(stage.first) for stage in stages[1:]),
        devices=tuple(problem.cluster.device_names[stage.device] for stage in stages),
        price=price(problem, placement, restricted, found, evaluator),
    )


def nearest_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> PipelineStages:
    """Return the stages of a pipeline for a placement that is no chain: of layers, on any devices.

    They are those of `layer_split`.
    """
    graph, every = problem.graph, range(problem.num_devices)
    layers = all_layers(ModuleScopes(graph))
    split = layer_split(problem, placement, layers, every, evaluator=evaluator)
    grouping = colocate(graph, [colocate_by_id])
    ops = replace(problem, grouping=grouping, hierarchy=None, rules=None)
    found = pipeline_stages(ops, ops.placement_of_ops(split.op_devices), evaluator)
    as_placed = replace(found.price, runtime_as_placed=split.price.runtime_as_placed)
    return replace(found, price=as_placed)


class _ForwardPass:
    """The ops of a forward pass in the order in which they run, and the module of each.

    Of a step in micro-batches it is that of the first one; the others run in the same stages.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        graph = scopes.graph
        self.scopes = scopes
        op_of_name = {name: op for op, name in enumerate(graph.op_names)}
        first_copy = [
            op_of_name.get(_first_copy(graph.op_names[op]), op) for op in scopes.computing
        ]
        self.later_copies = {
            op: first for op, first in zip(scopes.computing, first_copy, strict=True) if op != first
        }
        self.ops = [op for op in scopes.computing if op not in self.later_copies]
        of_op = scopes.outermost(scopes.indivisible)
        self.modules = [of_op[op] for op in self.ops]
        self._first_place: dict[str, int] = {}
        for place, op in enumerate(self.ops):
            for around in (*parents_of(graph.scopes[op]), graph.scopes[op]):
                self._first_place.setdefault(around, place)

    def begins_at(self, module: str, place: int) -> bool:
        """Return whether the first op of a module is the one at a place in the order."""
        return self._first_place[module] == place

    def outermost_beginning_at(self, place: int) -> str:
        """Return the outermost module whose first op is at a place."""
        module = self.modules[place]
        assert module is not None  # noqa: S101 (stages begin with ops of modules)
        path = (*parents_of(module), module)
        found: str = next(around for around in path if self.begins_at(around, place))
        return found


def _first_copy(op_name: str) -> str:
    """Return what the op of the first micro-batch is called, see `placeto_graphs.micro_batched`."""
    return re.sub(r"@[0-9]+$", "@0", op_name)


class _Stage(NamedTuple):
    """A stage: its first op, as a place in the order, and its device."""

    first: int
    device: int


def _stages(
    problem: PlacementProblem, forward: _ForwardPass, op_devices: NDArray[np.int32]
) -> list[_Stage]:
    """Return the stages, if the modules are a chain of them."""
    names, op_names = problem.cluster.device_names, problem.graph.op_names
    stages: list[_Stage] = []
    for place, (op, module) in enumerate(zip(forward.ops, forward.modules, strict=True)):
        device = int(op_devices[op])
        if module is None or (stages and device == stages[-1].device):
            continue
        if device in [stage.device for stage in stages]:
            raise NoChainError(
                "PLACEMENT: expected a chain of stages, as a pipeline is one, but the forward pass "
                f"comes back from {names[stages[-1].device]} to {names[device]} at {op_names[op]}"
            )
        if forward.begins_at(module, place):
            stages.append(_Stage(place, device))
        elif module in forward.scopes.owners:
            raise NoChainError(
                "PLACEMENT: expected stages that begin between modules, as those of a pipeline do, "
                f"but the module {module} is on {names[stages[-1].device]} and {names[device]}"
            )
    return stages


def _stage_of_op(forward: _ForwardPass, beginnings: list[int]) -> NDArray[np.int64]:
    """Return int64[V], the stage that each op of a step is in."""
    graph = forward.scopes.graph
    stages = np.full(graph.num_ops, UNKNOWN, np.int64)
    places = np.arange(len(forward.ops))
    stages[forward.ops] = np.searchsorted(beginnings[1:], places, side="right")
    for op, first in forward.later_copies.items():
        stages[op] = stages[first]
    reads = stages[graph.edge_consumers] != UNKNOWN
    for op, reader in zip(
        graph.edge_producers[reads].tolist(), graph.edge_consumers[reads].tolist(), strict=True
    ):
        if stages[op] == UNKNOWN:
            stages[op] = stages[reader]
        elif forward.scopes.is_weight[op] and stages[op] != stages[reader]:
            raise InputError(
                f"PLACEMENT: expected each weight in one stage, but {graph.op_names[op]} is read "
                f"in the stages {stages[op]} and {stages[reader]}"
            )
    return labels_of_step(graph, stages, otherwise=len(beginnings) - 1)
