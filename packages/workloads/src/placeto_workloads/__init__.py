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
_MODULES = (
    "models.training_step",
    "models.cell_architecture",
    "models.cell_network",
    "models.enas_recurrent",
    "models.inception_v3",
    "models.nasnet",
    "models.nmt",
    "families.search_spaces",
    "families.trajectory",
    "families.family",
    "libraries.steps",
    "libraries.transformers_inference",
)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `MODELS` need no PyTorch, which takes seconds."""
    for module in _MODULES if name in __all__ else ():
        found = import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
