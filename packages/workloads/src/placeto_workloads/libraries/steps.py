"""Training steps of models of libraries, by the name of the library."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.diffusers import diffusers_step
from placeto_workloads.libraries.image_networks import timm_step, torchvision_step
from placeto_workloads.libraries.transformers import transformers_step
from placeto_workloads.models.training_step import TrainingStep

LIBRARIES: Mapping[str, Callable[..., TrainingStep]] = MappingProxyType(
    {
        "diffusers": diffusers_step,
        "timm": timm_step,
        "torchvision": torchvision_step,
        "transformers": transformers_step,
    }
)
"""Functions that build a training step of a model, by the library of the model."""


def library_step(source: str, **settings: Any) -> TrainingStep:
    """Build a training step of a model of another library.

    Parameters
    ----------
    source
        Library and name of the model: ``"transformers:gpt2"``, ``"timm:resnet50"``.
    **settings
        Further arguments of the function of the library in `LIBRARIES`.

    Raises
    ------
    WorkloadError
        When the library is not installed, or has no such model or setting.
    """
    library, _, name = source.partition(":")
    if library not in LIBRARIES:
        raise WorkloadError(f"{source}: expected a model of {', '.join(LIBRARIES)}")
    return LIBRARIES[library](name, **settings)
