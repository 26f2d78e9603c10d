"""A placement as arguments of llama.cpp: which device has which layers and tensors."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.exported import Exported, counted, price_text
from placeto.exporting.layer_split import one_stack
from placeto.exporting.module_scopes import ROOT, ModuleScopes, is_within, parents_of
from placeto.exporting.restriction import (
    UNKNOWN,
    Price,
    labels_of_step,
    price,
    problem_of_labels,
)
from placeto_graphs import Cluster, OpGraph, PlacementProblem

# Names of devices in llama.cpp begin with that of the backend; what none of these is runs CUDA.
BACKENDS = {"mi[0-9]+.*": "ROCm", "m[0-9]+.*": "MTL"}
FEED_FORWARD = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
EXPERTS = "experts"
# Tensors of GGUF files, as regular expressions: those of the feed-forward part of a layer.
TENSORS_OF_EXPERTS, TENSORS_OF_FEED_FORWARD = r"ffn_.*_exps\.", r"ffn_(gate|up|down)\."
TENSORS_OF_OUTPUT = r"^output(_norm)?\."


@dataclass(frozen=True, eq=False)
class LlamaCppArguments:
    """Arguments of ``llama-server``, ``llama-cli`` and other programs of llama.cpp.

    Attributes
    ----------
    gpu_layers : int
        Value of ``--n-gpu-layers``: layers at the end that are on GPUs, and the output as one.
    devices : texts
        Value of ``--device``: the GPUs in the order in which they get layers.
    tensor_split : ints
        Value of ``--tensor-split``: how many layers each of these devices has.
    overrides : texts to texts
        Value of ``--override-tensor``: the device of tensors whose names a regular expression
        finds, and that are not where their layer is.
    moved : ints
        Layers that are on another device than in the placement.
    op_devices : int32[V]
        The device of each op then.
    price : `Price`
        Cost of that.
    """

    gpu_layers: int
    devices: tuple[str, ...]
    tensor_split: tuple[int, ...]
    overrides: dict[str, str]
    moved: tuple[int, ...]
    op_devices: NDArray[np.int32]
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


def llama_cpp(problem: PlacementProblem, placement: NDArray[np.int32]) -> Exported:
    """Return the arguments of llama.cpp for a placement, see `llama_cpp_arguments`."""
    found = llama_cpp_arguments(problem, placement)
    moved = f"{counted(len(found.moved), 'layer')} on another device than in the placement"
    what = "whole layers, on the CPU first and then on one GPU after another"
    return Exported(
        f"llama-server --model MODEL {found.command_line}\n",
        (moved, price_text(problem, found.price, what)),
        found.price,
        {
            "n_gpu_layers": found.gpu_layers,
            "devices": found.devices,
            "tensor_split": found.tensor_split,
            "override_tensor": found.overrides,
        },
    )


def llama_cpp_arguments(
    problem: PlacementProblem, placement: NDArray[np.int32]
) -> LlamaCppArguments:
    """Return arguments for a placement of a language model.

    llama.cpp puts the first layers on the CPU, and those behind them on one GPU after another. It
    keeps the embedding of tokens on the CPU, if there is one, and the output behind the last layer.
    The feed-forward part of a layer, or its experts if it has some, and the output may be
    elsewhere. All else of a layer is where most of it is in the placement. Layers of which that is
    no such order change places, so that each device has as many.

    Parameters
    ----------
    problem
        The problem, with a graph whose scopes are names of modules.
    placement : int32[G]
        The device of each group.

    Raises
    ------
    InputError
        When there is no stack of layers, or more than one, or the cluster has several CPUs.
    GraphError
        When it is no placement of the problem.

    Examples
    --------
    >>> from torch import nn, ones
    >>> from placeto_graphs import parse_cluster
    >>> from placeto.problems.making import make_problem
    >>> from placeto.problems.sources import Source
    >>> from placeto_capture import capture
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)))
    >>> source = Source("layers", capture(model, ones(16, 8)))
    >>> problem = make_problem(source, parse_cluster("2xv100"))
    >>> on_second = np.int32([scope.startswith("3.") for scope in problem.graph.scopes])
    >>> found = llama_cpp_arguments(problem, problem.placement_of_ops(on_second))
    >>> print(found.command_line)
    --n-gpu-layers 5 --device CUDA0,CUDA1 --split-mode layer --tensor-split 3,2
    """
    names = device_names(problem.cluster)
    cpu = names.index("CPU") if "CPU" in names else None
    parts = _Parts(problem.graph, has_cpu=cpu is not None)
    placed = parts.devices(problem.expand(placement), len(names))
    found = placed.copy()
    found[parts.layers] = layers = _in_order(placed[parts.layers], cpu)
    with_layer = placed[parts.feed_forward] == placed[parts.layers]
    found[parts.feed_forward][with_layer] = layers[with_layer]
    output = int(placed[parts.output] if parts.has_output else layers[-1])
    slots = _slots(layers, output, cpu)
    overrides = _overrides(parts, names, found[parts.feed_forward], layers)
    if output != slots[-1] and not parts.is_tied:
        overrides[TENSORS_OF_OUTPUT] = names[output]
    found[parts.output] = slots[-1] if parts.is_tied else output
    if cpu is not None:
        found[parts.input] = cpu
    gpus = [device for device in slots if device != cpu]
    restricted = problem_of_labels(problem, parts.labels)
    after = restricted.placement_of_ops(found[parts.labels])
    return LlamaCppArguments(
        gpu_layers=len(gpus),
        devices=tuple(names[device] for device in dict.fromkeys(gpus)),
        tensor_split=tuple(gpus.count(device) for device in dict.fromkeys(gpus)),
        overrides=overrides,
        moved=tuple(np.flatnonzero(layers != placed[parts.layers]).tolist()),
        op_devices=restricted.expand(after),
        price=price(problem, placement, restricted, after),
    )


def device_names(cluster: Cluster) -> list[str]:
    """Return what llama.cpp calls the devices of a cluster, see its ``--list-devices``.

    Raises
    ------
    InputError
        When there are several CPUs, which are one to llama.cpp.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> device_names(parse_cluster("1xcpu-ddr5-2ch+2xrtx3090")), device_names(parse_cluster("1xm2"))
    (['CPU', 'CUDA0', 'CUDA1'], ['MTL0'])
    """
    counts: dict[str, int] = {}
    names = []
    for device in cluster.devices:
        if device.is_cpu:
            names.append("CPU")
            continue
        matching = (name for kind, name in BACKENDS.items() if re.fullmatch(kind, device.kind))
        backend = next(matching, "CUDA")
        names.append(f"{backend}{counts.setdefault(backend, 0)}")
        counts[backend] += 1
    if names.count("CPU") > 1:
        raise InputError("PROBLEM: expected one CPU at most, as llama.cpp uses one, got several")
    return names


class _Parts:
    """The parts of a model that llama.cpp can have on devices of their own, by number.

    Layers come first, then the feed-forward part of each, the output, and the input.
    """

    def __init__(self, graph: OpGraph, *, has_cpu: bool) -> None:
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
        self.has_input = has_cpu and bool((forward == self.input).any())
        if not self.has_input:
            forward[forward == self.input] = 0
        self.has_output = bool((forward == self.output).any())
        self._bytes = graph.bytes_accessed
        self.labels = labels_of_step(graph, forward, otherwise=self.output)

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
        there = most[self.feed_forward].any(axis=1)
        devices[self.feed_forward] = np.where(there, feed_forward, layers)
        return devices


def _feed_forward_part(layer: str, scopes: Iterable[str]) -> str | None:
    """Return the feed-forward module of a layer, or the experts in it."""
    inside = {scope for scope in scopes if is_within(scope, layer) and scope != layer}
    modules = {module for scope in inside for module in (*parents_of(scope), scope)}
    found = [f"{layer}.{name}" for name in FEED_FORWARD if f"{layer}.{name}" in modules]
    with_experts = [f"{module}.{EXPERTS}" for module in found if f"{module}.{EXPERTS}" in modules]
    return next(iter(with_experts or found), None)


def _in_order(devices: NDArray[np.int32], cpu: int | None) -> NDArray[np.int32]:
    """Return a device for each layer: the CPU first, and each device once.

    Each device has as many layers as before. GPUs are in the order of the middles of theirs.

    Examples
    --------
    >>> _in_order(np.int32([1, 1, 0, 2, 2]), cpu=0), _in_order(np.int32([2, 2, 1]), cpu=0)
    (array([0, 1, 1, 2, 2], dtype=int32), array([2, 2, 1], dtype=int32))
    """
    places = {device: np.flatnonzero(devices == device) for device in set(devices.tolist())}
    order = sorted(places, key=lambda device: (device != cpu, places[device].mean(), device))
    return np.concatenate([np.full(len(places[each]), each, np.int32) for each in order])


def _slots(layers: NDArray[np.int32], output: int, cpu: int | None) -> list[int]:
    """Return the device of each layer, and of the output as llama.cpp places it behind them.

    The output is on a GPU of its own if it has one, else on that of the last layer.
    """
    slots: list[int] = layers.tolist()
    return [*slots, output if output != cpu and output not in slots else slots[-1]]


def _patterns(layers: Sequence[int], tensors: str) -> str:
    r"""Return a regular expression of the names of tensors of some layers.

    Examples
    --------
    >>> print(_patterns([3, 4], TENSORS_OF_EXPERTS), _patterns([7], TENSORS_OF_FEED_FORWARD))
    blk\.(3|4)\.ffn_.*_exps\. blk\.7\.ffn_(gate|up|down)\.
    """
    numbers = "|".join(str(layer) for layer in layers)
    return rf"blk\.{numbers if len(layers) == 1 else f'({numbers})'}\.{tensors}"


def _overrides(
    parts: _Parts, names: Sequence[str], devices: NDArray[np.int32], layers: NDArray[np.int32]
) -> dict[str, str]:
    """Return the device of the feed-forward tensors that are not where their layers are."""
    apart: dict[tuple[int, bool], list[int]] = {}
    for layer in np.flatnonzero(devices != layers).tolist():
        apart.setdefault((int(devices[layer]), parts.has_experts[layer]), []).append(layer)
    return {
        _patterns(numbers, TENSORS_OF_EXPERTS if has_experts else TENSORS_OF_FEED_FORWARD): names[
            device
        ]
        for (device, has_experts), numbers in apart.items()
    }
