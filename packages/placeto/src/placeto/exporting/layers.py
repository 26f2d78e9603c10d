"""The layers of a model, and some of them on each device, one after another, as pipelines have it.

`ModelChain` is a step of which each device has some layers. `layer_split` returns the split that is
the placement, or else the fastest one that is found (`best_chain`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import ModuleScopes, Price, labels_of_step, price
from placeto.exporting.passing import passed_on
from placeto.placing.costs import fits
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_baselines import LayerChain, Stages, best_chain
from placeto_baselines.search.layers import INPUT, NO_TIME, UNKNOWN, all_layers, layer_stacks
from placeto_graphs import (
    EvaluationBatch,
    OpGraph,
    Phase,
    PlacementProblem,
    grouping_of_labels,
)
from placeto_graphs.copies.collectives import GATHER

PASSES_ON = "The pipeline sends tensors from stage to stage, which is faster here."


def one_stack(scopes: ModuleScopes, library: str) -> tuple[str, ...]:
    """Return the layers of a model that has one stack of them."""
    stacks = layer_stacks(scopes)
    if len(stacks) != 1:
        described = ", ".join(
            f"{name or 'the model'} ({len(layers)})" for name, layers in stacks.items()
        )
        raise InputError(
            f"PROBLEM: expected one stack of layers, such as model.layers, as {library} splits "
            f"one, got {described or 'none'}"
        )
    return next(iter(stacks.values()))


def model_layers(scopes: ModuleScopes) -> tuple[str, ...]:
    """Return `all_layers` of a model; refuse one without parameters."""
    layers = all_layers(scopes)
    if not layers:
        raise InputError("PROBLEM: expected a model whose modules have parameters, got none")
    return layers


class ModelChain(LayerChain):
    """A step of which each of N layers, with what runs with it, is one group, and its costs.

    The layers are the one stack of a model, for a library that takes one, or `all_layers`. An op
    between two layers runs with the layer whose outputs it reads. An op before all layers runs with
    the first layer that reads it, and inputs are with the first one. A weight that several layers
    read is on each of their devices.
    """

    def __init__(
        self, problem: PlacementProblem, evaluator: EvaluatorSpec = STEP, library: str = ""
    ) -> None:
        graph, self.spec = problem.graph, evaluator
        self.scopes = scopes = ModuleScopes(graph)
        self.layers = one_stack(scopes, library) if library else model_layers(scopes)
        labels = labels_of_layers(scopes, self.layers)
        read_elsewhere = scopes.is_weight[graph.edge_producers] & (
            labels[graph.edge_producers] != labels[graph.edge_consumers]
        )
        # Bytes of weights that several layers read, and these layers, the one that has it first.
        self._shared: list[tuple[int, NDArray[np.int64]]] = []
        for op in np.unique(graph.edge_producers[read_elsewhere]).tolist():
            readers = labels[graph.edge_consumers[graph.edge_producers == op]]
            of_weight = np.concatenate([labels[[op]], np.setdiff1d(readers, labels[op])])
            self._shared.append((int(graph.parameter_bytes[op]), of_weight))
        free = np.full(graph.num_ops, UNKNOWN, np.int32)
        apart: OpGraph = replace(graph, edges=graph.edges[~read_elsewhere], colocation=free)
        grouping = grouping_of_labels(apart, labels)
        layer_of_group = np.empty(grouping.num_groups, np.int64)
        layer_of_group[grouping.group_of] = labels
        by_layer = replace(problem, graph=apart, grouping=grouping, hierarchy=None, rules=None)
        super().__init__(by_layer, evaluator.of_stages(by_layer), layer_of_group)

    def evaluate(self, device_of_layer: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of int32[B, N], the device of each layer."""
        return self._with_shared(super().evaluate(device_of_layer), device_of_layer)

    def costs(self, stages: Stages) -> EvaluationBatch:
        """Return the costs of stages that pass tensors on."""
        device_of_layer = stages.device_of_layer()
        stage_of_layer = np.repeat(np.arange(len(stages.sizes)), stages.sizes)
        pipeline, stage_of_op = passed_on(self.problem, stage_of_layer[self.labels])
        devices = np.array(stages.devices, np.int32)[stage_of_op]
        batch = self.spec.costs(pipeline, pipeline.placement_of_ops(devices))
        return self._with_shared(batch, device_of_layer[None])

    def _with_shared(
        self, batch: EvaluationBatch, device_of_layer: NDArray[np.int32]
    ) -> EvaluationBatch:
        """Return costs with the copies of weights that several layers read, for int32[B, N]."""
        peaks = batch.peak_memory.copy()
        everyone = np.arange(self.problem.num_devices)
        for num_bytes, layers in self._shared:
            reads = device_of_layer[:, layers, None] == everyone
            peaks += (reads.any(axis=1) & ~reads[:, 0]) * num_bytes
        return EvaluationBatch(runtime=batch.runtime, peak_memory=peaks)


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
    devices: Sequence[int],
    evaluator: EvaluatorSpec = STEP,
    library: str = "",
) -> LayerSplit:
    """Return which of some devices runs which layers, one after another.

    The layers are those of `ModelChain`. If the placement, int32[G], fits and has each layer on one
    device, and the layers of a device in a row, it is the split. Otherwise the split is the best
    one found.
    """
    chain = ModelChain(problem, evaluator, library)
    nearest, as_placed = _nearest(chain, problem.expand(placement))
    stages = stages_of(nearest)
    if stages is not None and not chain.can_be(stages, devices):
        stages = None
    costs = chain.costs(stages) if stages and as_placed else None
    if stages is None or costs is None or not fits(problem, costs.peak_memory[0]):
        starts = [stages] if stages else []
        best = best_chain(chain, devices, starts, evaluator.num_chains(problem))
        names = problem.cluster.device_names
        if best is None:
            possible = ", ".join(names[device] for device in devices)
            raise InputError(f"PROBLEM: expected devices that can run the layers, got {possible}")
        as_placed, stages = as_placed and best == stages, best
        costs = chain.costs(stages)
    return LayerSplit(
        layers=chain.layers,
        stages=stages,
        devices=tuple(problem.cluster.device_names[device] for device in stages.devices),
        op_devices=stages.device_of_layer()[chain.labels],
        as_placed=as_placed,
        price=price(
            problem,
            placement,
            costs,
            evaluator,
            "whole consecutive layers",
            PASSES_ON if as_placed else "",
        ),
    )


def pipeline_stages(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> LayerSplit:
    """Return the split of all layers over all devices; refuse what torch's stages cannot do.

    That is a weight that two stages read, and a loss of what an earlier stage than the last makes.
    """
    split = layer_split(problem, placement, range(problem.num_devices), evaluator)
    stage_of_device = np.full(problem.num_devices, UNKNOWN)
    stage_of_device[[*split.stages.devices]] = range(len(split.devices))
    check_torch_stages(ModuleScopes(problem.graph), stage_of_device[split.op_devices])
    return split


def check_torch_stages(scopes: ModuleScopes, stages: NDArray[np.int64]) -> None:
    """Refuse stages of the V ops, int64[V], that torch's cannot be; see `pipeline_stages`."""
    graph = scopes.graph
    makers, readers = graph.edge_producers, graph.edge_consumers
    gathers = np.array([kind == GATHER for kind in graph.op_types])
    has_weights = scopes.is_weight | (gathers & scopes.is_forward)
    of_weight = has_weights[makers] & scopes.is_forward[readers]
    apart = np.flatnonzero(of_weight & (stages[makers] != stages[readers]))
    if len(apart):
        maker, reader = makers[apart[0]], readers[apart[0]]
        earlier, later = sorted((int(stages[maker]), int(stages[reader])))
        raise InputError(
            "PLACEMENT: expected each weight in one stage, but "
            f"{graph.op_names[maker]} is read in the stages {earlier} and {later}"
        )
    in_loss = (graph.phases == Phase.FORWARD) & ~scopes.is_forward
    early = np.flatnonzero(
        in_loss[readers]
        & scopes.is_forward[makers]
        & ~has_weights[makers]
        & (stages[makers] < stages.max())
    )
    if len(early):
        maker = makers[early[0]]
        raise InputError(
            "PROBLEM: expected a loss of what the last stage makes, but it reads "
            f"{graph.op_names[maker]} of stage {stages[maker]}: give a loss without it"
        )


def stages_of(device_of_layer: NDArray[np.integer]) -> Stages | None:
    """Return the stages of a device for each layer; None if a device has two of them."""
    begins = np.flatnonzero(np.diff(device_of_layer, prepend=UNKNOWN)).tolist()
    devices = tuple(device_of_layer[begins].tolist())
    if len(set(devices)) < len(devices):
        return None
    return Stages((*begins, len(device_of_layer)), devices)


def _nearest(chain: ModelChain, op_devices: NDArray[np.int32]) -> tuple[NDArray[np.int64], bool]:
    """Return int64[N], where modules with parameters spend most time; whether they spend all."""
    ops = ops_of_modules(chain.scopes)
    nearest = main_devices(chain.problem, chain.labels, ops, op_devices)
    return nearest, bool((op_devices[ops] == nearest[chain.labels[ops]]).all())


def ops_of_modules(scopes: ModuleScopes) -> NDArray[np.intp]:
    """Return the ops that modules with parameters compute in the forward pass."""
    of_op = scopes.outermost(model_layers(scopes))
    return np.array([op for op in scopes.computing if of_op[op] is not None])


def main_devices(
    problem: PlacementProblem,
    labels: NDArray[np.int64],
    ops: NDArray[np.intp],
    op_devices: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return the device where some ops of each label of int64[V] spend most time."""
    share = np.zeros((labels.max() + 1, problem.num_devices))
    seconds = problem.compute_time[ops, op_devices[ops]] + NO_TIME
    np.add.at(share, (labels[ops], op_devices[ops]), seconds)
    devices: NDArray[np.int64] = share.argmax(axis=1)
    return devices


def labels_of_layers(scopes: ModuleScopes, layers: Sequence[str]) -> NDArray[np.int64]:
    """Return int64[V], the layer that each op of a step runs with."""
    labels = forward_labels(scopes, layers)
    labels[scopes.is_forward & np.array([kind == INPUT for kind in scopes.graph.op_types])] = 0
    return labels_of_step(scopes.graph, labels, otherwise=len(layers) - 1)


def forward_labels(
    scopes: ModuleScopes, layers: Sequence[str], behind: int | None = None
) -> NDArray[np.int64]:
    """Return int64[V], layers of forward ops, else -1; ``behind`` for what reads the last one."""
    graph, last = scopes.graph, len(layers) - 1
    label_of_layer = {layer: label for label, layer in enumerate(layers)}
    labels = np.array(
        [label_of_layer.get(layer or "", UNKNOWN) for layer in scopes.outermost(layers)]
    )
    labels[~scopes.is_forward] = UNKNOWN
    for op in scopes.computing:
        read = graph.tensor_producer[graph.inputs_of_op[op]]
        made_in = labels[read[~scopes.is_weight[read]]].max(initial=UNKNOWN)
        if labels[op] == UNKNOWN:
            labels[op] = behind if behind and made_in == last else made_in
        elif made_in > labels[op]:
            raise InputError(
                "PROBLEM: expected layers that run one after another, but "
                f"{layers[labels[op]]} reads what {layers[min(made_in, last)]} makes"
            )
    for op in graph.topological_order[::-1].tolist():
        if labels[op] == UNKNOWN and scopes.is_forward[op]:
            read_in = [
                labels[graph.consumers_of_tensor[tensor]] for tensor in graph.tensors_of_op[op]
            ]
            read_labels = np.concatenate([*read_in, [UNKNOWN]])
            read_labels = read_labels[read_labels != UNKNOWN]
            labels[op] = read_labels.min() if len(read_labels) else UNKNOWN
    return labels
