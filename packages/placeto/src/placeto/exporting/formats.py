"""The forms that a placement can be exported in, by name."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, not_among
from placeto.exporting.device_map import DeviceMap, device_map
from placeto.exporting.exported import Exported, counted, price_text
from placeto.exporting.graph_files import dot_text, graphml_text
from placeto.exporting.layer_formats import deepspeed, exo, vllm
from placeto.exporting.llama_cpp import llama_cpp
from placeto.exporting.pipeline_stages import NoChainError, nearest_stages, pipeline_stages
from placeto.json_files import json_text
from placeto_graphs import PlacementProblem

ACCELERATE = "accelerate"


@dataclass(frozen=True)
class Format:
    """A form that a placement can be exported in."""

    suffixes: tuple[str, ...]  # of its files
    export: Callable[[PlacementProblem, NDArray[np.int32]], Exported]


def exported_map(problem: PlacementProblem, found: DeviceMap) -> Exported:
    """Return a device map as accelerate takes it."""
    modules = counted(len(found.modules), "module")
    split = f"the placement splits {len(found.split):,} of those that have to be whole"
    use = f"dispatch_model(model, device_map, main_device={found.main_device!r})"
    remarks = (f"{modules}; {split}", price_text(problem, found.price, "whole modules"), use)
    details = {"device_map": found.modules, "main_device": found.main_device}
    return Exported(json_text(found.modules) + "\n", remarks, found.price, details)


def _torch(problem: PlacementProblem, placement: NDArray[np.int32]) -> Exported:
    try:
        found, note = pipeline_stages(problem, placement), ""
    except NoChainError:
        found, note = nearest_stages(problem, placement), ": the fastest chain of layers found"
    content: dict[str, object] = {"split_points": found.split_points, "devices": found.devices}
    stages = f"{counted(len(found.devices), 'stage')}, on {', '.join(found.devices)}{note}"
    remarks = (stages, price_text(problem, found.price, "stages of whole modules"))
    return Exported(json_text(content) + "\n", remarks, found.price, content)


FORMATS = {
    ACCELERATE: Format((".json",), lambda *placed: exported_map(placed[0], device_map(*placed))),
    "torch": Format((".json",), _torch),
    "vllm": Format((".sh",), vllm),
    "deepspeed": Format((".py",), deepspeed),
    "exo": Format((".json",), exo),
    "llama.cpp": Format((".sh",), llama_cpp),
    "dot": Format((".dot", ".gv"), lambda *placed: Exported(dot_text(*placed))),
    "graphml": Format((".graphml",), lambda *placed: Exported(graphml_text(*placed))),
}


def format_named(name: str) -> Format:
    """Return a form by its name."""
    if name not in FORMATS:
        raise InputError(f"to: {not_among(name, FORMATS)}")
    return FORMATS[name]
