"""Models of the torchvision library."""

import inspect
from typing import Any

import torch
from torch import nn

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.images import check_known, check_no_weights, image_step
from placeto_workloads.libraries.importing import import_library, one_line
from placeto_workloads.libraries.weightless import built
from placeto_workloads.models.training_step import TrainingStep

LOADING = ("weights", "weights_backbone")
USUAL_CLASSES = 1000
FRAMES = 16
SIDE = 224
# What is for images, or parts of them, of another size than the usual one.
SIDES = {"inception_v3": 299, "vit_h_14": 224, "segmentation": 520, "video": 112}


def torchvision_step(
    name: str,
    *,
    batch_size: int = 32,
    image_size: int | None = None,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a training step of a model of the torchvision library, without trained weights.

    Parameters
    ----------
    name
        What ``torchvision.models.get_model`` knows, such as ``"resnet50"``, but no detector: what
        those do depends on what they see.
    batch_size
        Images, or videos of 16 frames, in a step.
    image_size
        Their height and width; by default what suits the model.
    device
        Where the weights and images are; on the default, meta, weights take no memory.
    seed
        Of weights and images on any other device.
    **settings
        Further arguments of the model, such as ``num_classes``.

    Raises
    ------
    WorkloadError
        When there is no such model, or the library refuses a setting.
    """
    models = import_library("torchvision.models", "torchvision")
    check_known(f"torchvision:{name}", models.list_models())
    check_no_weights(f"torchvision:{name}", settings, LOADING)
    maker = models.get_model_builder(name)
    kind = maker.__module__.split(".")[2]
    if kind == "detection":
        raise WorkloadError(
            f"torchvision:{name}: expected a model of images or videos, got a detector, "
            "which does other things for other images"
        )
    without = {"weights": None}
    if "weights_backbone" in inspect.signature(maker).parameters:
        without["weights_backbone"] = None
    try:
        model: nn.Module = built(lambda: maker(**without, **settings), device, seed)
    except Exception as error:
        raise WorkloadError(f"torchvision:{name}: {one_line(error)}") from error
    side = image_size or SIDES.get(name) or SIDES.get(kind) or SIDE
    has_classes = kind not in {"segmentation", "optical_flow"}
    return image_step(
        model.train(),
        (3, FRAMES, side, side) if kind == "video" else (3, side, side),
        batch_size,
        num_classes=settings.get("num_classes", 400 if kind == "video" else USUAL_CLASSES)
        if has_classes
        else None,
        device=device,
        seed=seed,
    )
