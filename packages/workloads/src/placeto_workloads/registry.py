"""The models of the paper by name; PyTorch is imported where one is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from placeto_graphs import (
    DEFAULT_RULES,
    Grouping,
    OpGraph,
    colocate_by_id,
    colocate_gradients,
    colocate_updates,
)
from placeto_workloads.errors import WorkloadError

if TYPE_CHECKING:
    import torch

    from placeto_workloads.models.training_step import TrainingStep

ColocationRule = Callable[[OpGraph], Grouping]

# In an unrolled network most gradients are read by one op, the next one back in time, so the rule
# of single consumers joins all steps: of some 2,500 groups of ptb it leaves 20, and of 1,600 of nmt
# 100, fewer than a placer is to see.
RULES_OF_UNROLLED_NETWORKS = (colocate_by_id, colocate_gradients, colocate_updates)


@dataclass(frozen=True)
class RegisteredModel:
    """A model that has a name, with the sizes that its name fixes.

    Attributes
    ----------
    name
        Name of the model, such as ``"nmt-2"``.
    description
        Kind of network with its reference, in one line.
    function
        Name of the function of this package that builds its training step.
    fixed
        Sizes that its name fixes, by name.
    colocation_rules
        Co-location rules for its ops.
    """

    name: str
    description: str
    function: str
    fixed: Mapping[str, int] = field(default_factory=dict)
    colocation_rules: tuple[ColocationRule, ...] = DEFAULT_RULES

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that may be changed, with their defaults."""
        from placeto_workloads.models.training_step import default_sizes  # noqa: PLC0415 (torch)

        return default_sizes(self.build, self.fixed)

    @property
    def build(self) -> "Callable[..., TrainingStep]":
        """The function that builds its training step."""
        factory: Callable[..., TrainingStep] = getattr(
            import_module("placeto_workloads"), self.function
        )
        return factory


_MODELS = (
    RegisteredModel("inception-v3", "Inception-V3 (Szegedy et al. 2015)", "inception_v3"),
    RegisteredModel("nasnet", "NASNet-A mobile, 4 @ 1056 (Zoph et al. 2018)", "nasnet"),
    *(
        RegisteredModel(
            f"nmt-{layers}",
            f"translation, {layers} LSTM layers, attention (Wu et al. 2016)",
            "nmt",
            {"layers": layers},
            RULES_OF_UNROLLED_NETWORKS,
        )
        for layers in (2, 4)
    ),
)
MODELS: Mapping[str, RegisteredModel] = MappingProxyType({model.name: model for model in _MODELS})
"""The models of the paper by name."""


def training_step(
    name: str, *, device: "torch.device | str" = "meta", seed: int = 0, **sizes: int
) -> "TrainingStep":
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
    from placeto_workloads.models.training_step import checked_sizes  # noqa: PLC0415 (torch)

    if name not in MODELS:
        raise WorkloadError(f"name: expected one of {', '.join(MODELS)}, got {name!r}")
    model = MODELS[name]
    checked = checked_sizes(name, model.sizes, sizes)
    return model.build(**model.fixed, **checked, device=device, seed=seed)
