"""A placement as arguments of llama.cpp: which device has which layers and tensors."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.exported import Exported, price_text
from placeto.exporting.llama_cpp_parts import LlamaCppParts, nearest_arrangement
from placeto.exporting.restriction import Price, price, problem_of_labels
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.texts import counted
from placeto_graphs import Cluster, PlacementProblem

# Names of devices in llama.cpp begin with that of the backend; what none of these is runs CUDA.
BACKENDS = {"mi[0-9]+.*": "ROCm", "m[0-9]+.*": "MTL"}
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


def llama_cpp(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> Exported:
    """Return the arguments of llama.cpp for a placement, see `llama_cpp_arguments`."""
    found = llama_cpp_arguments(problem, placement, evaluator)
    moved = f"{counted(len(found.moved), 'layer')} on another device than in the placement"
    what = "whole layers, on the CPU first and then on one GPU after another"
    return Exported(
        f"llama-server --model MODEL {found.command_line}\n",
        (moved, price_text(problem, found.price, what, evaluator)),
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
    """Return arguments for a placement of a language model.

    llama.cpp puts the first layers on the CPU, and the next ones on one GPU after another. It
    keeps the embedding of tokens on the CPU, if there is one, and the output with the last layer.
    The output, and the feed-forward part or the experts of a layer, may be elsewhere. All else of a
    layer goes to the device that has most of it in the placement. If layers are then out of order,
    they change places, so that each device has as many as before. After that, boundaries between
    devices and single parts move as long as a step costs less.

    Parameters
    ----------
    problem
        The problem, with a graph whose scopes are names of modules.
    placement : int32[G]
        The device of each group.
    evaluator
        Evaluator of arrangements.

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
    parts = LlamaCppParts(problem.graph, has_cpu=cpu is not None)
    restricted = problem_of_labels(problem, parts.labels)
    placed = parts.devices(problem.expand(placement), len(names))
    found = nearest_arrangement(parts, placed, cpu, evaluator.make(restricted, None))
    layers, output, slots = found[parts.layers], int(found[parts.output]), parts.slots(found, cpu)
    overrides = _overrides(parts, names, found[parts.feed_forward], layers)
    if output != slots[-1]:
        overrides[TENSORS_OF_OUTPUT] = names[output]
    gpus = [device for device in slots if device != cpu]
    after = restricted.placement_of_ops(found[parts.labels])
    return LlamaCppArguments(
        gpu_layers=len(gpus),
        devices=tuple(names[device] for device in dict.fromkeys(gpus)),
        tensor_split=tuple(gpus.count(device) for device in dict.fromkeys(gpus)),
        overrides=overrides,
        moved=tuple(np.flatnonzero(layers != placed[parts.layers]).tolist()),
        op_devices=restricted.expand(after),
        price=price(problem, placement, restricted, after, evaluator),
    )


def device_names(cluster: Cluster) -> list[str]:
    """Return what llama.cpp calls the devices of a cluster, see its ``--list-devices``.

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
    parts: LlamaCppParts,
    names: Sequence[str],
    devices: NDArray[np.int32],
    layers: NDArray[np.int32],
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
