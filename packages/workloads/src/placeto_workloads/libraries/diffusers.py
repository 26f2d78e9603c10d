"""Networks of the diffusers library, which take noise out of pictures."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import (
    build_on_device,
    first_number,
    import_library,
    such_as,
)
from placeto_workloads.models.training_step import TrainingStep, seeded

DEFAULT_SIDE = 32
DEFAULT_WORDS = 77
NUM_SIZES = 6  # of the picture before, where it was cut, and after: height and width of each
KINDS = ("Model", "Autoencoder", "VQ")


def diffusers_step(
    name: str,
    *,
    batch_size: int = 4,
    sequence_length: int = DEFAULT_WORDS,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a training step of a network of the diffusers library, without trained weights.

    The loss is the mean of what it gives, and that of its distance from a codebook if it has one.

    Parameters
    ----------
    name
        Class of the library, such as ``"UNet2DConditionModel"``.
    batch_size
        Number of pictures in a step.
    sequence_length
        Number of words of the text that a picture is made of.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Arguments of the class.

    Raises
    ------
    WorkloadError
        If the library is not installed, or has no such model or setting.
    """
    library = import_library("diffusers", "diffusers")
    names = [key for key in dir(library) if any(kind in key for kind in KINDS)]
    model_class = getattr(library, name, None) if name in names else None
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise WorkloadError(
            f"diffusers:{name}: expected a known network{such_as(name, names)}, got {name!r}"
        )
    parameters = inspect.signature(model_class.__init__).parameters
    for key in settings:
        if key not in parameters:
            raise WorkloadError(
                f"diffusers:{name}: expected a setting{such_as(key, list(parameters))}, got {key!r}"
            )
    model = build_on_device(
        f"diffusers:{name}", lambda: model_class(**settings), device, seed
    ).train()
    with seeded(seed):
        inputs = _inputs(model, batch_size, sequence_length)
    inputs_on_device = pytree.tree_map(lambda value: value.to(device), inputs)
    return TrainingStep(model, inputs_on_device, _sum_of_means)


def _sum_of_means(outputs: Any) -> torch.Tensor:
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return torch.stack([leaf.mean() for leaf in leaves if leaf.is_floating_point()]).sum()


def _inputs(model: Any, batch_size: int, words: int) -> dict[str, Any]:
    config: Mapping[str, Any] = model.config
    parameters = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    main_input = "hidden_states" if "hidden_states" in parameters else next(iter(parameters))
    inputs[main_input] = torch.randn(batch_size, *_shape(config))
    if "timestep" in parameters:
        inputs["timestep"] = torch.randint(1000, (batch_size,))
    if "encoder_hidden_states" in parameters:
        width = first_number(
            config, "caption_channels", "cross_attention_dim", "joint_attention_dim"
        )
        if width:
            inputs["encoder_hidden_states"] = torch.randn(batch_size, words, width)
    if "pooled_projections" in parameters:
        width = first_number(config, "pooled_projection_dim")
        inputs["pooled_projections"] = torch.randn(batch_size, width or 1)
    if "class_labels" in parameters:
        num_classes = first_number(config, "num_embeds_ada_norm")
        if num_classes:
            inputs["class_labels"] = torch.randint(num_classes, (batch_size,))
    if "added_cond_kwargs" in parameters:
        conditions = _conditions(model, batch_size)
        if conditions:
            inputs["added_cond_kwargs"] = conditions
    return inputs


def _conditions(model: Any, batch_size: int) -> dict[str, Tensor]:
    """Return what a network is told besides text: the size of the picture, what all of it says."""
    if getattr(model, "use_additional_conditions", False):
        return {"resolution": torch.rand(batch_size, 2), "aspect_ratio": torch.rand(batch_size, 1)}
    if model.config.get("addition_embed_type") == "text_time":
        width = model.config["projection_class_embeddings_input_dim"]
        size_width = NUM_SIZES * model.config["addition_time_embed_dim"]
        return {
            "text_embeds": torch.randn(batch_size, width - size_width),
            "time_ids": torch.rand(batch_size, NUM_SIZES),
        }
    return {}


def _shape(config: Mapping[str, Any]) -> tuple[int, ...]:
    channels = first_number(config, "in_channels", "out_channels") or 3
    side = config.get("sample_size")
    if isinstance(side, list | tuple):
        return (channels, *side)
    return channels, side or DEFAULT_SIDE, side or DEFAULT_SIDE
