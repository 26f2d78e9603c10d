"""Splits of layers in the forms that vLLM and DeepSpeed take."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.exporting.device_map import CPU, targets_of
from placeto.exporting.exported import Exported, price_text
from placeto.exporting.layer_split import LayerSplit, all_layers, layer_split, one_stack
from placeto.exporting.module_scopes import ModuleScopes
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.texts import counted
from placeto_graphs import Cluster, PlacementProblem

WHOLE_LAYERS = "whole layers in a row"


def vllm(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> Exported:
    """Return the command that starts vLLM with the layers of a placement in stages.

    ``VLLM_PP_LAYER_PARTITION`` has the number of layers of each stage: as many as
    ``--pipeline-parallel-size``, with the layers of the model as their sum. Embeddings are on the
    first stage, the last norm and the head on the last one; tied weights are on both.
    ``CUDA_VISIBLE_DEVICES`` has the GPUs of the stages, if these are not the first ones in their
    order. On several machines a remark has it for each of them.
    """
    layers = one_stack(ModuleScopes(problem.graph), "vLLM")
    gpus = problem.cluster.accelerators.tolist()
    split = layer_split(problem, placement, layers, gpus, evaluator=evaluator)
    partition = ",".join(map(str, split.sizes))
    are_gpus = CPU not in targets_of(problem.cluster).values()
    numbers = _numbers_on_machines(problem.cluster, gpus, split.devices) if are_gpus else {}
    visible = ""
    if len(numbers) == 1:
        (own,) = numbers.values()
        visible = "" if own == list(range(len(own))) else f"{_visible(own)} "
    command = (
        f"{visible}VLLM_PP_LAYER_PARTITION={partition} "
        f"vllm serve MODEL --pipeline-parallel-size {len(split.sizes)}\n"
    )
    exported = _exported(problem, split, evaluator, command, {"partition": split.sizes})
    if len(numbers) < 2:
        return exported
    each = (f"on {machine} with {_visible(own)}" for machine, own in numbers.items())
    return replace(exported, remarks=(*exported.remarks, f"start Ray {', then '.join(each)}"))


def _visible(numbers: Sequence[int]) -> str:
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, numbers))}"


def _numbers_on_machines(
    cluster: Cluster, gpus: Sequence[int], devices: Sequence[int]
) -> dict[str, list[int]]:
    """Return the numbers of some GPUs on each machine, by name; machines in the order of the GPUs.

    Machines are those of `parse_cluster`, which names the network card of each. All devices of any
    other cluster count as one machine.
    """
    machine_of = []
    for row in cluster.link.tolist():
        names = [cluster.link_names[link] for link in row if link >= 0]
        networks = [name for name in names if re.fullmatch(r"machine \d+ network", name)]
        machine_of.append(networks[0].removesuffix(" network") if networks else "")
    own = {
        machine: [gpu for gpu in gpus if machine_of[gpu] == machine]
        for machine in dict.fromkeys(machine_of[device] for device in devices)
    }
    return {
        machine: [here.index(device) for device in devices if device in here]
        for machine, here in own.items()
    }


def deepspeed(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> Exported:
    """Return a ``PipelineModule`` of DeepSpeed whose ``parts`` are those of a placement.

    No ``partition_method`` takes bounds: ``uniform``, ``parameters`` and ``type:REGEX`` balance
    what they count. So the class sets ``parts`` where PipelineModule does.
    """
    layers = all_layers(ModuleScopes(problem.graph))
    gpus = problem.cluster.accelerators.tolist()
    split = layer_split(problem, placement, layers, gpus, evaluator=evaluator)
    names = "".join(f"    {name!r},\n" for name in split.layers)
    content = DEEPSPEED.format(
        names=names, parts=list(split.bounds), devices=", ".join(_device_names(problem, split))
    )
    return _exported(
        problem, split, evaluator, content, {"layers": split.layers, "parts": split.bounds}
    )


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


def _device_names(problem: PlacementProblem, split: LayerSplit) -> list[str]:
    return [problem.cluster.device_names[device] for device in split.devices]


def _exported(
    problem: PlacementProblem,
    split: LayerSplit,
    evaluator: EvaluatorSpec,
    content: str,
    details: dict[str, object],
) -> Exported:
    names = _device_names(problem, split)
    stages = zip(split.sizes, names, strict=True)
    where = ", ".join(f"{counted(size, 'layer')} on {name}" for size, name in stages)
    found = "as placed" if split.as_placed else "the fastest split found, as the placement is none"
    return Exported(
        content,
        (f"{where}: {found}", price_text(problem, split.price, WHOLE_LAYERS, evaluator)),
        split.price,
        {"devices": names, **details},
    )
