"""The models by name: those of the paper, and those of libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from placeto_graphs import (
    DEFAULT_RULES,
    Grouping,
    OpGraph,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
)
from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.diffusers import diffusers_step
from placeto_workloads.libraries.image_networks import timm_step, torchvision_step
from placeto_workloads.libraries.transformers import transformers_step
from placeto_workloads.models.inception_v3 import inception_v3
from placeto_workloads.models.nasnet import nasnet
from placeto_workloads.models.nmt import nmt
from placeto_workloads.models.training_step import TrainingStep, default_sizes, whole_number

ColocationRule = Callable[[OpGraph], Grouping]

# In an unrolled network most gradients are read by one op, the next one back in time, so the rule
# of single consumers joins all steps: of some 2,500 groups of ptb it leaves 20, and of 1,600 of nmt
# 100, fewer than a placer is to see.
RULES_OF_UNROLLED_NETWORKS = (colocate_by_id, colocate_gradients, colocate_updates)


@dataclass(frozen=True)
class RegisteredModel:
    """A model that has a name, with the sizes that its name fixes."""

    name: str
    description: str
    build: Callable[..., TrainingStep]
    fixed: Mapping[str, int] = field(default_factory=dict)
    colocation_rules: tuple[ColocationRule, ...] = DEFAULT_RULES

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that may be changed, with their defaults."""
        return default_sizes(self.build, self.fixed)


def checked_sizes(
    owner: str, defaults: Mapping[str, int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the defaults with the given sizes in their place."""
    for name in given:
        if name not in defaults:
            raise WorkloadError(
                f"{owner}: expected sizes among {', '.join(defaults)}, got {name!r}"
            )
    return {name: whole_number(name, given.get(name, defaults[name])) for name in defaults}


_MODELS = (
    RegisteredModel("inception-v3", "Inception-V3 (Szegedy et al. 2015)", inception_v3),
    RegisteredModel("nasnet", "NASNet-A mobile, 4 @ 1056 (Zoph et al. 2018)", nasnet),
    *(
        RegisteredModel(
            f"nmt-{layers}",
            f"translation, {layers} LSTM layers, attention (Wu et al. 2016)",
            nmt,
            {"layers": layers},
            RULES_OF_UNROLLED_NETWORKS,
        )
        for layers in (2, 4)
    ),
)
MODELS: Mapping[str, RegisteredModel] = MappingProxyType({model.name: model for model in _MODELS})
"""The models of the paper by name."""


def training_step(
    name: str, *, device: torch.device | str = "meta", seed: int = 0, **sizes: int
) -> TrainingStep:
    """Build a training step of a model, to capture or to run.

    Parameters
    ----------
    name
        One of `MODELS`.
    device
        Device of the weights; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **sizes
        Other sizes than the published ones; ``MODELS[name].sizes`` says which there are.

    Raises
    ------
    WorkloadError
        When there is no such model or size, or the sizes make no network.

    Examples
    --------
    >>> step = training_step("nmt-2", steps=4, units=8)
    >>> [tuple(words.shape) for words in step.example_inputs]
    [(4, 128), (5, 128)]
    """
    if name not in MODELS:
        raise WorkloadError(f"name: expected one of {', '.join(MODELS)}, got {name!r}")
    model = MODELS[name]
    checked = checked_sizes(name, model.sizes, sizes)
    return model.build(**model.fixed, **checked, device=device, seed=seed)


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
