"""The forms that a placement can be exported in, by name."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError, not_among
from placeto.exporting.device_map import device_map
from placeto.exporting.graph_files import dot_text, graphml_text
from placeto.exporting.pipeline_stages import pipeline_stages
from placeto.exporting.restriction import Price
from placeto.placing.costs import overflow_text
from placeto.texts import seconds_text
from placeto_graphs import PlacementProblem


@dataclass(frozen=True)
class Exported:
    """A placement in another form."""

    content: str  # of the file
    remarks: tuple[str, ...] = ()  # lines about it for the user
    price: Price | None = None  # where the form cannot express every placement


@dataclass(frozen=True)
class Format:
    """A form that a placement can be exported in."""

    suffixes: tuple[str, ...]  # of its files
    export: Callable[[PlacementProblem, NDArray[np.int32]], Exported]


def _device_map(problem: PlacementProblem, placement: NDArray[np.int32]) -> Exported:
    found = device_map(problem, placement)
    modules = _count(len(found.modules), "module")
    split = f"the placement splits {len(found.split):,} of those that have to be whole"
    use = f"dispatch_model(model, device_map, main_device={found.main_device!r})"
    remarks = (f"{modules}; {split}", _in_words(problem, found.price, "whole modules"), use)
    return Exported(_json(found.modules), remarks, found.price)


def _pipeline(problem: PlacementProblem, placement: NDArray[np.int32]) -> Exported:
    found = pipeline_stages(problem, placement)
    content = {"split_points": found.split_points, "devices": found.devices}
    stages = f"{_count(len(found.devices), 'stage')}, on {', '.join(found.devices)}"
    remarks = (stages, _in_words(problem, found.price, "stages of whole modules"))
    return Exported(_json(content), remarks, found.price)


FORMATS = {
    "device-map": Format((".json",), _device_map),
    "pipeline": Format((".json",), _pipeline),
    "dot": Format((".dot", ".gv"), lambda *placed: Exported(dot_text(*placed))),
    "graphml": Format((".graphml",), lambda *placed: Exported(graphml_text(*placed))),
}


def format_named(name: str) -> Format:
    """Return a form by its name."""
    if name not in FORMATS:
        raise InputError(f"to: {not_among(name, FORMATS)}")
    return FORMATS[name]


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _json(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _in_words(problem: PlacementProblem, price: Price, what: str) -> str:
    overflow = overflow_text(problem.cluster, price.peak_memory)
    return (
        f"a step takes {seconds_text(price.runtime)} with {what}, simulated, and "
        f"{seconds_text(price.runtime_as_placed)} as placed{overflow}"
    )
