"""A placement as arguments of llama.cpp: which device has which layers and tensors.

`LlamaCppParts` says which part each op of a step runs with, and `nearest_arrangement` which devices
parts have where llama.cpp can express that.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import (
    UNKNOWN,
    Exported,
    Price,
    labels_of_step,
    price,
    problem_of_labels,
)
from placeto.exporting.layers import one_stack
from placeto.exporting.module_scopes import ROOT, ModuleScopes, is_within, path_of
from placeto.placing.costs import costs
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.texts import counted
from placeto_baselines import steepest_descent
from placeto_graphs import Cluster, Evaluator, OpGraph, PlacementProblem

# Names of devices in llama.cpp begin with that of the backend; what none of these is runs CUDA.
BACKENDS = {"mi[0-9]+.*": "ROCm", "m[0-9]+.*": "MTL"}
# Tensors of GGUF files, as regular expressions: those of the feed-forward part of a layer.
TENSORS_OF_EXPERTS, TENSORS_OF_FEED_FORWARD = r"ffn_.*_exps\.", r"ffn_(gate|up|down)\."
TENSORS_OF_OUTPUT = r"^output(_norm)?\."
FEED_FORWARD = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
EXPERTS = "experts"
MOST_ROUNDS = 40
STEPS = (1, 2, 4, 8)  # layers that change devices together


@dataclass(frozen=True, eq=False)
class LlamaCppArguments:
    """Arguments of ``llama-server``, ``llama-cli`` and other programs of llama.cpp."""

    gpu_layers: int  # ``--n-gpu-layers``: layers at the end that are on GPUs, the output as one
    devices: tuple[str, ...]  # ``--device``: the GPUs in the order in which they get layers
    tensor_split: tuple[int, ...]  # ``--tensor-split``: how many layers each of these has
    # ``--override-tensor``: the device of tensors whose names a regular expression finds, and that
    # are not where their layer is
    overrides: dict[str, str]
    moved: tuple[int, ...]  # layers that are on another device than in the placement
    op_devices: NDArray[np.int32]  # [V], the device of each op then
    price: Price

    @property
    def command_line(self) -> str:
        """The arguments, as a shell takes them."""
        words = ["--n-gpu-layers", str(self.gpu_layers)]
        if self.devices:
            words += ["--device", ",".join(self.devices)]
        if len(self.devices) > 1:
            shares = ",".join(str(share) for share in self.tensor_split)
            words += ["--split-mode", "layer", "--tensor-split", shares]
        if self.overrides:
            pairs = ",".join(f"{name}={device}" for name, device in self.overrides.items())
            words += ["--override-tensor", pairs]
        return shlex.join(words)


def llama_cpp(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec
) -> Exported:
    """Return the arguments of llama.cpp for a placement, see `llama_cpp_arguments`."""
    found = llama_cpp_arguments(problem, placement, evaluator)
    moved = f"{counted(len(found.moved), 'layer')} on another device than in the placement"
    what = "whole layers, on the CPU first and then on one GPU after another"
    return Exported(
        f"llama-server --model MODEL {found.command_line}\n",
        (moved, found.price.text(problem, what, evaluator)),
        found.price,
        {
            "n_gpu_layers": found.gpu_layers,
            "devices": found.devices,
            "tensor_split": found.tensor_split,
            "override_tensor": found.overrides,
        },
    )


def llama_cpp_arguments(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> LlamaCppArguments:
    """Return arguments for a placement, int32[G], of a language model.

    llama.cpp puts the first layers on the CPU, and the next ones on one GPU after another. It
    keeps the embedding of tokens on the CPU, if there is one, and the output with the last layer.
    The output, and the feed-forward part or the experts of a layer, may be elsewhere. All else of a
    layer goes to the device that has most of it in the placement. If layers are then out of order,
    they change places, so that each device has as many as before. After that, boundaries between
    devices and single parts move as long as a step costs less.
    """
    names = device_names(problem.cluster)
    parts = LlamaCppParts(problem.graph, names.index("CPU") if "CPU" in names else None)
    restricted = problem_of_labels(problem, parts.labels)
    priced_by = evaluator.make(restricted, None)
    placed = parts.devices(problem.expand(placement), len(names))
    found = nearest_arrangement(parts, placed, priced_by)
    layers, output, slots = found[parts.layers], int(found[parts.output]), parts.slots(found)
    feed_forward = found[parts.feed_forward]
    apart: dict[tuple[int, bool], list[int]] = {}
    for layer in np.flatnonzero(feed_forward != layers).tolist():
        apart.setdefault((int(feed_forward[layer]), parts.has_experts[layer]), []).append(layer)
    overrides = {
        _patterns(numbers, has_experts=has_experts): names[device]
        for (device, has_experts), numbers in apart.items()
    }
    if output != slots[-1]:
        overrides[TENSORS_OF_OUTPUT] = names[output]
    gpus = [device for device in slots if device != parts.cpu]
    after = restricted.placement_of_ops(found[parts.labels])
    return LlamaCppArguments(
        gpu_layers=len(gpus),
        devices=tuple(names[device] for device in dict.fromkeys(gpus)),
        tensor_split=tuple(gpus.count(device) for device in dict.fromkeys(gpus)),
        overrides=overrides,
        moved=tuple(np.flatnonzero(layers != placed[parts.layers]).tolist()),
        op_devices=restricted.expand(after),
        price=price(problem, placement, priced_by.evaluate(after[None]), evaluator),
    )


def device_names(cluster: Cluster) -> list[str]:
    """Return what llama.cpp calls the devices of a cluster, see its ``--list-devices``."""
    names: list[str] = []
    for device in cluster.devices:
        matching = (name for kind, name in BACKENDS.items() if re.fullmatch(kind, device.kind))
        backend = next(matching, "CUDA")
        number = sum(name.startswith(backend) for name in names)
        names.append("CPU" if device.is_cpu else f"{backend}{number}")
    if names.count("CPU") > 1:
        raise InputError("PROBLEM: expected one CPU at most, as llama.cpp uses one, got several")
    return names


def _patterns(layers: Sequence[int], *, has_experts: bool) -> str:
    """Return a regular expression of the names of feed-forward tensors of some layers."""
    numbers = "|".join(str(layer) for layer in layers)
    tensors = TENSORS_OF_EXPERTS if has_experts else TENSORS_OF_FEED_FORWARD
    return rf"blk\.{numbers if len(layers) == 1 else f'({numbers})'}\.{tensors}"


class LlamaCppParts:
    """The parts of a model that llama.cpp can have on devices of their own, by number.

    Layers come first, then the feed-forward part of each, the output, and the input.
    """

    def __init__(self, graph: OpGraph, cpu: int | None) -> None:
        self.cpu = cpu
        scopes = ModuleScopes(graph)
        layers = one_stack(scopes, "llama.cpp")
        num_layers = len(layers)
        self.layers = slice(num_layers)
        self.feed_forward = slice(num_layers, 2 * num_layers)
        self.output, self.input = 2 * num_layers, 2 * num_layers + 1
        inner = [_feed_forward_part(layer, graph.scopes) for layer in layers]
        self.has_experts = [part is not None and part.endswith(EXPERTS) for part in inner]
        number = {name: place for place, name in enumerate((*layers, *inner))}
        forward = np.full(graph.num_ops, UNKNOWN, np.int64)
        for modules in (layers, [part for part in inner if part]):
            for op, module in enumerate(scopes.outermost(modules)):
                if module is not None and scopes.is_forward[op]:
                    forward[op] = number[module]
        self._label_outside(scopes, forward)
        weights = scopes.is_weight[graph.edge_producers]
        read_in = forward[graph.edge_consumers]
        of_input = weights & (forward[graph.edge_producers] == self.input)
        self.is_tied = bool((of_input & (read_in == self.output)).any())
        if self.is_tied:
            forward[forward == self.input] = self.output
        if cpu is None:
            forward[forward == self.input] = 0
        self._bytes = graph.bytes_accessed
        self.labels = labels_of_step(graph, forward, otherwise=self.output)
        self.is_there = np.bincount(self.labels, minlength=self.input + 1) > 0

    def _label_outside(self, scopes: ModuleScopes, labels: NDArray[np.int64]) -> None:
        """Label the ops of the forward pass that are in no layer."""
        graph = scopes.graph
        behind = labels != UNKNOWN
        for op in graph.topological_order.tolist():
            behind[op] |= behind[graph.tensor_producer[graph.inputs_of_op[op]]].any()
        outside = np.flatnonzero((labels == UNKNOWN) & scopes.is_forward).tolist()
        of_output = {graph.scopes[op] for op in outside if behind[op]} - {ROOT}
        with_weights = {graph.scopes[op] for op in outside if scopes.is_weight[op]} - {ROOT}
        made_by_nothing = {
            op for op in outside if not len(graph.inputs_of_op[op]) and not scopes.is_weight[op]
        }
        for op in outside:
            if behind[op] or graph.scopes[op] in of_output:
                labels[op] = self.output
            else:
                labels[op] = self.input if graph.scopes[op] in with_weights else 0
        for tensor, reader in graph.edges[::-1].tolist():
            op = int(graph.tensor_producer[tensor])
            if op in made_by_nothing:  # inputs, and what is kept of earlier tokens
                labels[op] = labels[reader]

    def devices(self, op_devices: NDArray[np.int32], num_devices: int) -> NDArray[np.int32]:
        """Return int32[P], the device on which most of each part is, by the bytes it accesses."""
        most = np.zeros((self.input + 1, num_devices))
        np.add.at(most, (self.labels, op_devices), 1 + self._bytes)
        devices: NDArray[np.int32] = most.argmax(axis=1).astype(np.int32)
        layers, feed_forward = devices[self.layers], devices[self.feed_forward]
        devices[self.feed_forward] = np.where(
            self.is_there[self.feed_forward], feed_forward, layers
        )
        return devices

    def slots(self, devices: NDArray[np.int32]) -> list[int]:
        """Return the device of each layer, and of the output as llama.cpp places it behind them.

        The output is on a GPU of its own if it has one in int32[P], else on that of the last layer.
        """
        layers: list[int] = devices[self.layers].tolist()
        output = int(devices[self.output])
        on_another = self.is_there[self.output] and output != self.cpu and output not in layers
        return [*layers, output if on_another else layers[-1]]

    def completed(self, devices: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return int32[P] with those parts where they have to be of which nobody can choose."""
        devices = devices.copy()
        if self.cpu is not None:
            devices[self.input] = self.cpu
        if self.is_tied or not self.is_there[self.output]:
            devices[self.output] = self.slots(devices)[-1]
        return devices


def _feed_forward_part(layer: str, scopes: Iterable[str]) -> str | None:
    """Return the feed-forward module of a layer, or the experts in it."""
    inside = {scope for scope in scopes if is_within(scope, layer) and scope != layer}
    modules = {module for scope in inside for module in path_of(scope)}
    found = [f"{layer}.{name}" for name in FEED_FORWARD if f"{layer}.{name}" in modules]
    with_experts = [f"{module}.{EXPERTS}" for module in found if f"{module}.{EXPERTS}" in modules]
    return next(iter(with_experts or found), None)


def nearest_arrangement(
    parts: LlamaCppParts, placed: NDArray[np.int32], evaluator: Evaluator
) -> NDArray[np.int32]:
    """Return int32[P], devices of parts that llama.cpp can express.

    They are those of ``placed``, int32[P], if it can express these. Otherwise layers change places
    until they are in order, and then neighbours of that are tried as long as they cost less. The
    evaluator is of a problem with a group for each part.
    """
    found = placed.copy()
    found[parts.layers] = layers = _in_order(placed[parts.layers], parts.cpu)
    with_layer = placed[parts.feed_forward] == placed[parts.layers]
    found[parts.feed_forward][with_layer] = layers[with_layer]
    found = parts.completed(found)
    if np.array_equal(layers, placed[parts.layers]):
        return found
    problem = evaluator.problem
    best = steepest_descent(
        [found],
        lambda near: costs(
            evaluator, np.stack([problem.placement_of_ops(each[parts.labels]) for each in near])
        ),
        lambda each: [*map(parts.completed, _neighbours(parts, each, problem.num_devices))],
        MOST_ROUNDS,
    )
    return found if best is None else best


def _neighbours(
    parts: LlamaCppParts, found: NDArray[np.int32], num_devices: int
) -> Iterator[NDArray[np.int32]]:
    """Yield int32[P], devices that differ where one device ends, or in that of a part."""

    def with_layers(begin: int, end: int, device: int) -> NDArray[np.int32]:
        other = found.copy()
        together = other[parts.feed_forward][begin:end] == layers[begin:end]
        other[parts.layers][begin:end] = device
        other[parts.feed_forward][begin:end][together] = device
        return other

    layers = found[parts.layers]
    bounds = [0, *(np.flatnonzero(np.diff(layers)) + 1).tolist(), len(layers)]
    for before, bound, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        for step in STEPS:
            if bound - step > before:
                yield with_layers(bound - step, bound, int(layers[bound]))
            if bound + step < after:
                yield with_layers(bound, bound + step, int(layers[bound - 1]))
    movable = range(parts.feed_forward.start, parts.output + (not parts.is_tied))
    for part in movable:
        for device in range(num_devices):
            if parts.is_there[part] and device != found[part]:
                other = found.copy()
                other[part] = device
                yield other


def _in_order(devices: NDArray[np.int32], cpu: int | None) -> NDArray[np.int32]:
    """Return a device for each layer: the CPU first, and each device once.

    Each device has as many layers as before. GPUs are in the order of the middles of theirs.
    """
    places = {device: np.flatnonzero(devices == device) for device in set(devices.tolist())}
    order = sorted(places, key=lambda device: (device != cpu, places[device].mean(), device))
    return np.concatenate([np.full(len(places[each]), each, np.int32) for each in order])
