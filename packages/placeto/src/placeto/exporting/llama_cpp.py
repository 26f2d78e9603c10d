"""A placement as arguments of llama.cpp: which device has which layers and tensors.

`LlamaCppChain` says which part each op of a step runs with, and `best_arrangement` which devices
parts have where llama.cpp can express that.
"""

import shlex
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import (
    Exported,
    ModuleScopes,
    check_inference,
    check_one_machine,
    is_within,
    labels_of_step,
    price,
    problem_of_labels,
)
from placeto.exporting.layers import forward_labels, one_stack, stages_of
from placeto.placing.costs import SIMULATION_ERROR
from placeto.placing.evaluators import EvaluatorSpec
from placeto.problems.making import backends, tied_to_cache
from placeto.texts import counted
from placeto_baselines import LayerChain, Stages, best_chain, steepest_descent
from placeto_baselines.search.layers import ROOT, path_of
from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    PlacementProblem,
    placement_ranks,
)

# Names of devices in llama.cpp begin with its name of their backend.
BACKENDS = {"cuda": "CUDA", "rocm": "ROCm", "metal": "MTL", "vulkan": "Vulkan", "sycl": "SYCL"}
# Tensors of GGUF files, as regular expressions: those of the feed-forward part of a layer.
TENSORS_OF_EXPERTS, TENSORS_OF_FEED_FORWARD = r"ffn_.*_exps\.", r"ffn_(gate|up|down)\."
TENSORS_OF_OUTPUT = r"^output(_norm)?\."
FEED_FORWARD = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
EXPERTS = "experts"
MOST_ROUNDS = 40
STEPS = (1, 2, 4, 8)  # layers that change devices together
CACHE_TYPES = {4: "q4_0", 8: "q8_0"}  # by bits of a number; others have llama.cpp's default


def llama_cpp(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec
) -> Exported:
    """Return the command of a server for a placement, int32[G], of a language model.

    llama.cpp puts the first layers on the CPU, and the next ones on one GPU after another. It
    keeps the embedding of tokens on the CPU, if there is one, and the output with the last layer.
    The output, and the feed-forward part or the experts of a layer, may be elsewhere. All else of a
    layer goes to the device that has most of it in the placement. A placement of this form that
    fits stays as it is. See `best_arrangement` for all others.
    """
    check_one_machine(problem.cluster, "llama.cpp without --rpc")
    check_inference(problem.graph, "llama.cpp")
    names = device_names(problem.cluster)
    cpu = names.index("CPU") if "CPU" in names else None
    chain = LlamaCppChain(problem, cpu, evaluator)
    placed = chain.nearest(problem.expand(placement))
    arrangement = best_arrangement(chain, placed, problem.expand(placement))
    layers, output = arrangement[chain.layers], int(arrangement[chain.output])
    slots = chain.slots(arrangement)
    feed_forward = arrangement[chain.feed_forward]
    apart: dict[tuple[int, bool], list[int]] = {}
    for layer in np.flatnonzero(feed_forward != layers).tolist():
        apart.setdefault((int(feed_forward[layer]), chain.has_experts[layer]), []).append(layer)
    overrides = {
        _patterns(layers_apart, has_experts=has_experts): device
        for (device, has_experts), layers_apart in apart.items()
    }
    if output != slots[-1]:
        overrides[TENSORS_OF_OUTPUT] = output
    gpus = [device for device in slots if device != cpu]
    # llama.cpp has backends for these alone: what only has overridden tensors gets no layers.
    used = dict.fromkeys([*gpus, *(device for device in overrides.values() if device != cpu)])
    devices, shares = [names[device] for device in used], [gpus.count(device) for device in used]
    named = {tensors: names[device] for tensors, device in overrides.items()}
    cache = problem.graph.cache
    words = ["--n-gpu-layers", str(len(gpus))]  # those at the end, of which the output is one
    if devices:
        words += ["--device", ",".join(devices)]
    if len(devices) > 1 and gpus:
        words += ["--split-mode", "layer", "--tensor-split", ",".join(map(str, shares))]
    if named:
        pairs = ",".join(f"{tensors}={device}" for tensors, device in named.items())
        words += ["--override-tensor", pairs]
    if cache is not None:
        words += ["--ctx-size", str(cache.context * cache.sequences)]  # of all sequences
        if cache.sequences > 1:
            words += ["--parallel", str(cache.sequences)]
        if cache.bits in CACHE_TYPES:
            cache_type = CACHE_TYPES[cache.bits]
            words += ["--cache-type-k", cache_type, "--cache-type-v", cache_type]
        if cache.on_cpu:
            words += ["--no-kv-offload"]
    num_moved = int((layers != placed[chain.layers]).sum())
    costs = evaluator.costs(chain.problem, arrangement[chain.part_of_group])
    form_price = price(problem, placement, costs, evaluator, "whole layers")
    remarks = [form_price.remark]
    if num_moved:
        moved = counted(num_moved, "layer")
        remarks.insert(0, f"The exported command moves {moved} to another device.")
    return Exported(
        f"llama-server --model MODEL {shlex.join(words)}\n",
        tuple(remarks),
        form_price,
        {
            "n_gpu_layers": len(gpus),
            "devices": devices,
            "tensor_split": shares,
            "override_tensor": named,
            "context": cache.context if cache else 0,
            "sequences": cache.sequences if cache else 0,
        },
        chain.problem.expand(arrangement[chain.part_of_group]),
    )


def device_names(cluster: Cluster) -> list[str]:
    """Return what llama.cpp calls the devices of a cluster, see its ``--list-devices``."""
    names: list[str] = []
    for device, backend in zip(cluster.devices, backends(cluster), strict=True):
        if device.is_cpu:
            names.append("CPU")
            continue
        if not backend:
            raise InputError(
                f"PROBLEM: {device.name}: expected a kind with a backend, "
                f"{', '.join(BACKENDS)}, which [kinds.{device.kind}] of a cluster file may have, "
                "got none"
            )
        index = sum(name.startswith(BACKENDS[backend]) for name in names)
        names.append(f"{BACKENDS[backend]}{index}")
    if names.count("CPU") > 1:
        raise InputError("PROBLEM: expected one CPU at most, as llama.cpp uses one, got several")
    return names


def _patterns(layers: Sequence[int], *, has_experts: bool) -> str:
    """Return a regular expression of the names of feed-forward tensors of some layers."""
    alternatives = "|".join(str(layer) for layer in layers)
    tensors = TENSORS_OF_EXPERTS if has_experts else TENSORS_OF_FEED_FORWARD
    return rf"blk\.{alternatives if len(layers) == 1 else f'({alternatives})'}\.{tensors}"


class LlamaCppChain(LayerChain):
    """The layers of a model, and the parts that llama.cpp can have on devices of their own.

    P parts have numbers: layers first, then the feed-forward part of each, the output, the input,
    and what is with a cache that is on the CPU. Devices of parts are int32[P].
    """

    def __init__(
        self, problem: PlacementProblem, cpu: int | None, evaluator: EvaluatorSpec
    ) -> None:
        graph, self.cpu = problem.graph, cpu
        scopes = ModuleScopes(graph)
        layers = one_stack(scopes, "llama.cpp")
        count = len(layers)
        self.layers, self.feed_forward = slice(count), slice(count, 2 * count)
        self.output, self.input, self.cached = 2 * count, 2 * count + 1, 2 * count + 2
        self.num_parts = 2 * count + 3
        inner = [_feed_forward_part(layer, graph.scopes) for layer in layers]
        self.has_experts = [module is not None and module.endswith(EXPERTS) for module in inner]
        forward = forward_labels(scopes, layers, behind=self.output)
        label_of_module = {module: count + layer for layer, module in enumerate(inner)}
        for op, module in enumerate(scopes.outermost(module for module in inner if module)):
            if module is not None and scopes.is_forward[op]:
                forward[op] = label_of_module[module]
        self.in_layer = np.array([layer is not None for layer in scopes.outermost(layers)])
        self._label_input(scopes, forward)
        of_input = scopes.is_weight[graph.edge_producers] & (
            forward[graph.edge_producers] == self.input
        )
        self.is_tied = bool((of_input & (forward[graph.edge_consumers] == self.output)).any())
        if self.is_tied:
            forward[forward == self.input] = self.output
        if cpu is None:
            forward[forward == self.input] = 0
        self.part_of_op = labels_of_step(graph, forward, otherwise=self.output)
        if graph.cache is not None and graph.cache.on_cpu:
            self.part_of_op[tied_to_cache(graph)] = self.cached
        self.has_part = np.bincount(self.part_of_op, minlength=self.num_parts) > 0
        by_part = problem_of_labels(problem, self.part_of_op)
        self.part_of_group = np.empty(by_part.num_groups, np.int64)
        self.part_of_group[by_part.grouping.group_of] = self.part_of_op
        layer_of_part = np.array([*range(count), *range(count), count - 1, 0, 0])
        layer_of_group = layer_of_part[self.part_of_group]
        is_cached = self.part_of_group == self.cached  # wherever the layers are
        super().__init__(by_part, evaluator.make(by_part, None), layer_of_group, is_cached)

    def _label_input(self, scopes: ModuleScopes, labels: NDArray[np.int64]) -> None:
        """Label what has weights before the first layer, and what is read there alone."""
        graph = scopes.graph
        weights = np.flatnonzero(scopes.is_weight & scopes.is_forward & ~self.in_layer)
        modules = {graph.scopes[op] for op in weights.tolist()} - {ROOT}
        of_input = np.array([scope in modules for scope in graph.scopes])
        labels[of_input & ~self.in_layer & (labels == 0)] = self.input
        reads_nothing = ~np.isin(np.arange(graph.num_ops), graph.edge_consumers)
        read_by_input = labels[graph.edge_consumers] == self.input
        inputs = graph.edge_producers[read_by_input & reads_nothing[graph.edge_producers]]
        labels[inputs] = self.input

    def evaluate(self, device_of_layer: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of int32[B, N], the device of each layer, without overrides."""
        arrangements = [self.whole_layers(devices) for devices in device_of_layer]
        return self.evaluate_parts(np.stack(arrangements))

    def evaluate_parts(self, devices: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of int32[B, P], the device of each part."""
        return self.evaluator.evaluate(devices[:, self.part_of_group])

    def can_be(self, stages: Stages, devices: Sequence[int]) -> bool:
        """Return whether stages are on some devices, can run there, and have the CPU first."""
        return self.cpu not in stages.devices[1:] and super().can_be(stages, devices)

    def ranks(self, devices: Sequence[NDArray[np.int32]]) -> list[tuple[bool, float]]:
        """Return whether devices of parts lack memory, and their costs."""
        memory = self.problem.cluster.memory_bytes
        return placement_ranks(self.evaluate_parts(np.stack(devices)), memory)

    def whole_layers(self, device_of_layer: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return devices of parts: all of a layer on its device, and the output with the last."""
        last = device_of_layer[-1]
        rest = np.repeat(last, self.num_parts - self.output)
        return self.completed(np.concatenate([device_of_layer, device_of_layer, rest]))

    def feed_forward_on_cpu(self, whole: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return whole layers, if some are on the CPU, with only feed-forward parts there."""
        gpus = [device for device in whole[self.layers].tolist() if device != self.cpu]
        devices = whole.copy()
        if self.cpu is not None and 0 < len(gpus) < self.num_layers:
            devices[: self.num_layers - len(gpus)] = gpus[0]
            devices[self.feed_forward] = self.cpu
        return devices

    def nearest(self, op_devices: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the devices on which most of each part is, by the bytes that its ops access."""
        bytes_on_device = np.zeros((self.num_parts, self.problem.num_devices))
        num_bytes = 1 + self.problem.graph.bytes_accessed
        np.add.at(bytes_on_device, (self.part_of_op, op_devices), num_bytes)
        devices: NDArray[np.int32] = bytes_on_device.argmax(axis=1).astype(np.int32)
        without = ~self.has_part[self.feed_forward]
        devices[self.feed_forward][without] = devices[self.layers][without]
        return devices

    def slots(self, devices: NDArray[np.int32]) -> list[int]:
        """Return the device of each layer, and of the output: its own GPU, or the last layer's."""
        layers: list[int] = devices[self.layers].tolist()
        output = int(devices[self.output])
        on_another = self.has_part[self.output] and output != self.cpu and output not in layers
        return [*layers, output if on_another else layers[-1]]

    def neighbours(self, arrangement: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return devices of parts that differ where one device ends, or in some parts in a row."""
        layers, feed_forward = arrangement[self.layers], arrangement[self.feed_forward]
        bounds = [0, *(np.flatnonzero(np.diff(layers)) + 1).tolist(), len(layers)]
        moves: list[tuple[int, int, int]] = []  # layers that go to another device
        for begin, bound, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
            moves += [(max(bound - step, begin), bound, layers[bound]) for step in STEPS]
            moves += [(bound, min(bound + step, end), layers[bound - 1]) for step in STEPS]
        near = []
        for begin, end, device in moves:
            moved = arrangement.copy()
            moved[self.layers][begin:end] = device
            near.append(moved.copy())
            together = feed_forward[begin:end] == layers[begin:end]
            moved[self.feed_forward][begin:end][together] = device
            near.append(moved)
        feed_forward_parts = self.feed_forward
        rows = [
            slice(begin, min(begin + size, feed_forward_parts.stop))
            for size in STEPS
            for begin in range(feed_forward_parts.start, feed_forward_parts.stop, size)
        ]
        for row in [*rows, slice(self.output, self.output + 1)]:
            for device in range(self.problem.num_devices):
                moved = arrangement.copy()
                moved[row][self.has_part[row]] = device
                near.append(moved)
        return [self.completed(moved) for moved in near if not np.array_equal(moved, arrangement)]

    def completed(self, devices: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the devices with those parts where they have to be that nobody can choose."""
        devices = devices.copy()
        if self.cpu is not None:
            devices[[self.input, self.cached]] = self.cpu
        if self.is_tied or not self.has_part[self.output]:
            devices[self.output] = self.slots(devices)[-1]
        return devices


def _feed_forward_part(layer: str, scopes: Iterable[str]) -> str | None:
    """Return the feed-forward module of a layer, or the experts in it."""
    inside = {scope for scope in scopes if is_within(scope, layer) and scope != layer}
    modules = {module for scope in inside for module in path_of(scope)}
    paths = [f"{layer}.{name}" for name in FEED_FORWARD if f"{layer}.{name}" in modules]
    with_experts = [f"{module}.{EXPERTS}" for module in paths if f"{module}.{EXPERTS}" in modules]
    return next(iter(with_experts or paths), None)


def best_arrangement(
    chain: LlamaCppChain, placed: NDArray[np.int32], op_devices: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return devices of parts that llama.cpp can express, for int32[V], devices of ops.

    They are those of the ops, if these can be expressed and fit, or else the best chain of whole
    layers. Parts elsewhere have to gain more than the simulation errs, or fit where that does not.
    """
    devices, placed = range(chain.problem.num_devices), chain.completed(placed)
    start = stages_of(placed[chain.layers])
    starts = [start] if start is not None and chain.can_be(start, devices) else []
    is_whole = (placed[chain.part_of_op] == op_devices)[chain.in_layer].all()
    if starts and is_whole and not chain.ranks([placed])[0][0]:
        return placed
    best = best_chain(chain, devices, starts)
    if best is None:
        names = ", ".join(chain.problem.cluster.device_names)
        raise InputError(f"PROBLEM: expected devices that can run the layers, got {names}")
    whole = chain.whole_layers(best.device_of_layer())
    descent_starts = [whole, chain.feed_forward_on_cpu(whole)]
    if starts:
        descent_starts.append(placed)
    arrangements = [whole]
    for arrangement in descent_starts:
        end = steepest_descent([arrangement], chain.ranks, chain.neighbours, MOST_ROUNDS)
        arrangements.append(whole if end is None else end)
    ranks = chain.ranks(arrangements)
    lacks_memory, cost = ranks[0]
    best_rank = min(ranks)
    if (lacks_memory, cost / (1 + SIMULATION_ERROR)) <= best_rank:
        return whole
    return arrangements[ranks.index(best_rank)]
