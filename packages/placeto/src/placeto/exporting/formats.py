"""The forms that a placement can be exported in, by name."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, not_among
from placeto.exporting.device_map import DeviceMap, device_map
from placeto.exporting.exported import Exported, price_text
from placeto.exporting.graph_files import dot_text, graphml_text
from placeto.exporting.layer_formats import deepspeed, vllm
from placeto.exporting.llama_cpp import llama_cpp
from placeto.exporting.pipeline_stages import NoChainError, nearest_stages, pipeline_stages
from placeto.json_files import json_text
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto.texts import counted
from placeto_graphs import PlacementProblem

ACCELERATE = "accelerate"


class Export(Protocol):
    """A function that returns a placement in another form, as an evaluator prices it."""

    def __call__(
        self,
        problem: PlacementProblem,
        placement: NDArray[np.int32],
        evaluator: EvaluatorSpec = STEP,
        /,
    ) -> Exported:
        """Return a placement int32[G] in the form."""


@dataclass(frozen=True)
class Format:
    """A form that a placement can be exported in."""

    suffixes: tuple[str, ...]  # of its files
    export: Export
    is_priced: bool = True  # whether an evaluator chooses among placements that it can express


def exported_map(
    problem: PlacementProblem, found: DeviceMap, evaluator: EvaluatorSpec = STEP
) -> Exported:
    """Return a device map as accelerate takes it."""
    modules = counted(len(found.modules), "module")
    split = f"{len(found.split):,} that must be whole" if found.split else "none of them"
    use = f"dispatch_model(model, device_map, main_device={found.main_device!r})"
    remarks = (
        f"{modules}; the placement splits {split}",
        price_text(problem, found.price, "whole modules", evaluator),
        use,
    )
    details = {"device_map": found.modules, "main_device": found.main_device}
    return Exported(json_text(found.modules) + "\n", remarks, found.price, details)


def _accelerate(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> Exported:
    return exported_map(problem, device_map(problem, placement, evaluator), evaluator)


def _torch(
    problem: PlacementProblem, placement: NDArray[np.int32], evaluator: EvaluatorSpec = STEP
) -> Exported:
    try:
        found, note = pipeline_stages(problem, placement, evaluator), ""
    except NoChainError:
        found = nearest_stages(problem, placement, evaluator)
        note = ": the fastest chain of layers found"
    content: dict[str, object] = {"split_points": found.split_points, "devices": found.devices}
    stages = f"{counted(len(found.devices), 'stage')}, on {', '.join(found.devices)}{note}"
    remarks = (stages, price_text(problem, found.price, "stages of whole modules", evaluator))
    return Exported(json_text(content) + "\n", remarks, found.price, content)


FORMATS = {
    ACCELERATE: Format((".json",), _accelerate),
    "torch": Format((".json",), _torch),
    "vllm": Format((".sh",), vllm),
    "deepspeed": Format((".py",), deepspeed),
    "llama.cpp": Format((".sh",), llama_cpp),
    "dot": Format((".dot", ".gv"), lambda *placed: Exported(dot_text(*placed[:2])), False),
    "graphml": Format((".graphml",), lambda *placed: Exported(graphml_text(*placed[:2])), False),
}


def format_named(name: str) -> Format:
    """Return a form by its name."""
    if name not in FORMATS:
        raise InputError(f"to: {not_among(name, FORMATS)}")
    return FORMATS[name]
