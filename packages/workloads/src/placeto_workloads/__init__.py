"""Models to place: those of the paper, families of generated ones, and those of libraries.

Each is a factory of a training step: a model, example inputs, and how outputs become a loss.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from placeto_workloads.errors import WorkloadError
from placeto_workloads.registry import MODELS, RegisteredModel, training_step

if TYPE_CHECKING:
    from placeto_workloads.families.family import Family, FamilyMember, family, family_names
    from placeto_workloads.families.search_spaces import (
        ArchitectureSampler,
        ConvolutionalSpace,
        RecurrentSpace,
        SearchSpace,
        UniformSampler,
    )
    from placeto_workloads.families.trajectory import ControllerSampler
    from placeto_workloads.libraries.steps import LIBRARIES, library_step
    from placeto_workloads.libraries.transformers_inference import inference_step
    from placeto_workloads.models.cell_architecture import (
        Activation,
        Block,
        ConvolutionalArchitecture,
        ConvolutionalCell,
        Operation,
        RecurrentCell,
        cell_with_loose_ends,
    )
    from placeto_workloads.models.cell_network import enas_image_network
    from placeto_workloads.models.enas_recurrent import enas_language_model
    from placeto_workloads.models.inception_v3 import inception_v3
    from placeto_workloads.models.nasnet import NASNET_A, nasnet
    from placeto_workloads.models.nmt import nmt
    from placeto_workloads.models.training_step import TrainingStep

__version__ = "0.3.0"

__all__ = [
    "LIBRARIES",
    "MODELS",
    "NASNET_A",
    "Activation",
    "ArchitectureSampler",
    "Block",
    "ControllerSampler",
    "ConvolutionalArchitecture",
    "ConvolutionalCell",
    "ConvolutionalSpace",
    "Family",
    "FamilyMember",
    "Operation",
    "RecurrentCell",
    "RecurrentSpace",
    "RegisteredModel",
    "SearchSpace",
    "TrainingStep",
    "UniformSampler",
    "WorkloadError",
    "cell_with_loose_ends",
    "enas_image_network",
    "enas_language_model",
    "family",
    "family_names",
    "inception_v3",
    "inference_step",
    "library_step",
    "nasnet",
    "nmt",
    "training_step",
]
_MODULES = {
    "Activation": "models.cell_architecture",
    "ArchitectureSampler": "families.search_spaces",
    "Block": "models.cell_architecture",
    "ControllerSampler": "families.trajectory",
    "ConvolutionalArchitecture": "models.cell_architecture",
    "ConvolutionalCell": "models.cell_architecture",
    "ConvolutionalSpace": "families.search_spaces",
    "Family": "families.family",
    "FamilyMember": "families.family",
    "LIBRARIES": "libraries.steps",
    "NASNET_A": "models.nasnet",
    "Operation": "models.cell_architecture",
    "RecurrentCell": "models.cell_architecture",
    "RecurrentSpace": "families.search_spaces",
    "SearchSpace": "families.search_spaces",
    "TrainingStep": "models.training_step",
    "UniformSampler": "families.search_spaces",
    "cell_with_loose_ends": "models.cell_architecture",
    "enas_image_network": "models.cell_network",
    "enas_language_model": "models.enas_recurrent",
    "family": "families.family",
    "family_names": "families.family",
    "inception_v3": "models.inception_v3",
    "inference_step": "libraries.transformers_inference",
    "library_step": "libraries.steps",
    "nasnet": "models.nasnet",
    "nmt": "models.nmt",
}  # of the names that are imported when they are first used


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `MODELS` need no PyTorch, which takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
