"""The forms that a placement can be exported in, by name."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import networkx as nx
import pydot

from placeto.errors import InputError
from placeto.exporting.device_map import DeviceMap, device_map
from placeto.exporting.forms import (
    Exported,
    Placement,
    check_inference,
    check_one_copy,
    gpus_of_machines,
)
from placeto.exporting.layers import (
    LayerSplit,
    layer_split,
    pipeline_stages,
)
from placeto.exporting.llama_cpp import llama_cpp
from placeto.exporting.torchrun import deepspeed_zero, torchrun
from placeto.outputs import json_text
from placeto.placing.evaluators import EvaluatorSpec
from placeto.texts import counted
from placeto_graphs import DEVICE_KINDS, PlacementProblem, copies_of, groups_to_networkx

Export = Callable[[PlacementProblem, Placement, EvaluatorSpec], Exported]

ACCELERATE = "accelerate"
LEAST_BITS_OF_VLLM = 8  # of a number in its cache
VLLM_USES = 0.9  # of the memory of each GPU, its ``--gpu-memory-utilization`` by default
# Control characters and halves of surrogate pairs; a tab or a new line would come back as a space.
NOT_IN_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DEEPSPEED = '''\
from deepspeed.pipe import PipelineModule

# What PipelineModule is given as layers, in this order. Stage by stage: {devices}.
LAYERS = [
{names}]
PARTS = {parts}


class PlacedPipeline(PipelineModule):
    """Call with num_stages=len(PARTS) - 1."""

    def _partition_layers(self, method="parameters"):
        if len(self._layer_specs) != len(LAYERS):
            raise ValueError(f"expected {{len(LAYERS)}} layers, got {{len(self._layer_specs)}}")
        self.parts = PARTS
        self._set_bounds(start=PARTS[self.stage_id], stop=PARTS[self.stage_id + 1])
'''


def exported_map(map_of_modules: DeviceMap) -> Exported:
    """Return a device map as accelerate takes it."""
    modules = counted(len(map_of_modules.modules), "module")
    split = (
        f"{len(map_of_modules.split):,} that must be whole"
        if map_of_modules.split
        else "none of them"
    )
    remarks = (
        f"{modules}; the placement splits {split}",
        map_of_modules.price.remark,
        f"dispatch_model(model, device_map, main_device={map_of_modules.main_device!r})",
    )
    details = {"device_map": map_of_modules.modules, "main_device": map_of_modules.main_device}
    return Exported(
        json_text(map_of_modules.modules) + "\n", remarks, map_of_modules.price, details
    )


def _accelerate(
    problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec
) -> Exported:
    return exported_map(device_map(problem, placement, evaluator))


def _torch(problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec) -> Exported:
    if copies_of(problem.graph) is not None:
        return torchrun(problem, placement, evaluator)
    split = pipeline_stages(problem, placement, evaluator)
    content = Path(__file__).with_name("placed_stages.py").read_text()
    for name, value in (("SPLIT_POINTS", split.split_points), ("DEVICES", split.devices)):
        content = content.replace(f"{name}: list[str] = []", f"{name} = {json_text(value, 0)}", 1)
    return _split_layers(split, content, {"split_points": split.split_points})


def _vllm(problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec) -> Exported:
    """Return the command that starts vLLM with the layers of a placement in stages.

    Embeddings are on the first stage, the last norm and the head on the last one; tied weights are
    on both. ``CUDA_VISIBLE_DEVICES`` has the GPUs of the stages, if these are not the first ones in
    their order. On several machines a remark has it for each of them.
    """
    check_inference(problem.graph, "vLLM")
    cache = problem.graph.cache
    if cache is not None and (cache.on_cpu or cache.bits < LEAST_BITS_OF_VLLM):
        place = "the CPU" if cache.on_cpu else "GPUs"
        raise InputError(
            "PROBLEM: expected a cache of 8 or 16 bits on GPUs, as vLLM has no other, got one of "
            f"{cache.bits} bits on {place}; build with --cache-bits 8 and no --cache-device"
        )
    gpus = problem.cluster.accelerators.tolist()
    split = layer_split(problem, placement, gpus, evaluator, "vLLM")
    sizes = split.stages.sizes
    gpus_of_stages = gpus_of_machines(problem.cluster, split.stages.devices)
    visible = {
        name: f"CUDA_VISIBLE_DEVICES={','.join(map(str, indices))}"
        for name, indices in gpus_of_stages.items()
    }
    environment = f"VLLM_PP_LAYER_PARTITION={','.join(map(str, sizes))}"
    if len(gpus_of_stages) == 1:
        ((name, indices),) = gpus_of_stages.items()
        if indices != list(range(len(indices))):
            environment = f"{visible[name]} {environment}"
    command = (
        f"{environment} "
        f"vllm serve MODEL --pipeline-parallel-size {len(sizes)}{_vllm_memory(problem, split)}\n"
    )
    exported = _split_layers(split, command, {"partition": sizes})
    if len(gpus_of_stages) < 2:
        return exported
    starts = (f"on {name} with {variable}" for name, variable in visible.items())
    return replace(exported, remarks=(*exported.remarks, f"start Ray {', then '.join(starts)}"))


def _vllm_memory(problem: PlacementProblem, split: LayerSplit) -> str:
    """Return options where vLLM's defaults do not suit: a long context, and 90 % of each GPU."""
    cache = problem.graph.cache
    context = f" --max-model-len {cache.context}" if cache else ""
    if cache and cache.bits == LEAST_BITS_OF_VLLM:
        context += " --kv-cache-dtype fp8"
    shares = []
    for device, peak in zip(problem.cluster.devices, split.price.peak_memory, strict=True):
        kind = DEVICE_KINDS.get(device.kind)
        whole = max(device.memory_bytes, kind.memory_bytes if kind else 0)
        shares.append(math.ceil(100 * peak / whole) / 100)
    used = max(shares)
    return context + (f" --gpu-memory-utilization {used:.2f}" if VLLM_USES < used <= 1 else "")


def _deepspeed(
    problem: PlacementProblem, placement: Placement, evaluator: EvaluatorSpec
) -> Exported:
    """Return a ``PipelineModule`` that sets ``parts``, as no ``partition_method`` has bounds."""
    check_one_copy(problem.graph, "PipelineModule", "--to torch or deepspeed-zero")
    gpus = problem.cluster.accelerators.tolist()
    split = layer_split(problem, placement, gpus, evaluator)
    bounds = split.stages.bounds
    content = DEEPSPEED.format(
        names="".join(f"    {name!r},\n" for name in split.layers),
        parts=list(bounds),
        devices=", ".join(split.devices),
    )
    return _split_layers(split, content, {"layers": split.layers, "parts": bounds})


def _split_layers(split: LayerSplit, content: str, details: Mapping[str, object]) -> Exported:
    stages = zip(split.stages.sizes, split.devices, strict=True)
    where = ", ".join(f"{counted(size, 'layer')} on {name}" for size, name in stages)
    origin = "as placed" if split.as_placed else "the best split found"
    remarks = (f"{where}: {origin}", split.price.remark)
    named = {"devices": split.devices, **details}
    return Exported(content, remarks, split.price, named, split.op_devices)


def _graphml(
    problem: PlacementProblem, placement: Placement, _evaluator: EvaluatorSpec
) -> Exported:
    """Return the groups of a placement, int32[G], as GraphML; see `groups_to_networkx`."""
    for name in (*problem.grouping.group_names, *problem.cluster.device_names):
        if NOT_IN_XML.search(name):
            raise InputError(f"PROBLEM: expected names that XML can hold, got {name!r}")
    lines = nx.generate_graphml(groups_to_networkx(problem, placement))
    return Exported("\n".join(lines) + "\n")


def _dot(problem: PlacementProblem, placement: Placement, _evaluator: EvaluatorSpec) -> Exported:
    """Return the groups of a placement, int32[G], in Graphviz's language."""
    graph = groups_to_networkx(problem, placement)
    # A colon in a name would else begin what Graphviz calls a port.
    escaped = {name: name.replace("\\", "\\\\").replace('"', '\\"') for name in graph}
    quoted = nx.relabel_nodes(graph, {name: f'"{text}"' for name, text in escaped.items()})
    drawn: pydot.Dot = nx.nx_pydot.to_pydot(quoted)
    return Exported(drawn.to_string())


@dataclass(frozen=True)
class Format:
    """A form that a placement can be exported in."""

    suffixes: tuple[str, ...]  # of its files
    export: Export  # of a placement int32[G], as an evaluator prices it
    is_priced: bool = True  # whether an evaluator chooses among placements that it can express


FORMATS = {
    ACCELERATE: Format((".json",), _accelerate),
    "torch": Format((".py",), _torch),
    "vllm": Format((".sh",), _vllm),
    "deepspeed": Format((".py",), _deepspeed),
    "deepspeed-zero": Format((".json",), deepspeed_zero),
    "llama.cpp": Format((".sh",), llama_cpp),
    "dot": Format((".dot", ".gv"), _dot, is_priced=False),
    "graphml": Format((".graphml",), _graphml, is_priced=False),
}
