"""Networks of images: those of timm and of torchvision as training steps."""

import inspect
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import build_on_device, import_library, such_as
from placeto_workloads.models.training_step import TrainingStep, seeded, whole_number

# Settings that would load weights.
TIMM_LOADING = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
TORCHVISION_LOADING = ("weights", "weights_backbone")
USUAL_CLASSES = 1000
CLASSES_OF_VIDEOS = 400

FRAMES = 16
SIDE = 224
# What is for images, or parts of them, of another size than the usual one.
TORCHVISION_SIDES = {"inception_v3": 299, "vit_h_14": 224, "segmentation": 520, "video": 112}


def timm_step(
    name: str,
    *,
    batch_size: int = 32,
    device: torch.device | str = "meta",
    seed: int = 0,
    **settings: Any,
) -> TrainingStep:
    """Build a training step of a model of the timm library, without trained weights.

    Parameters
    ----------
    name
        Name of the model in the library, such as ``"resnet50"``.
    batch_size
        Number of images in a step.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Arguments of ``timm.create_model``; none may load weights.

    Raises
    ------
    WorkloadError
        If the library is not installed, or has no such model or setting.
    """
    library = import_library("timm", "timm")
    if not library.is_model(name):  # a name with a tag is one, and not among those listed
        _check_known(f"timm:{name}", library.list_models())
    _check_no_weights(f"timm:{name}", settings, TIMM_LOADING)
    model = build_on_device(
        f"timm:{name}",
        lambda: library.create_model(name, pretrained=False, **settings),
        device,
        seed,
    )
    return _image_step(
        model.train(),
        _timm_shape(model, settings),
        batch_size,
        num_classes=getattr(model, "num_classes", None) or None,
        device=device,
        seed=seed,
    )


def _timm_shape(model: Any, settings: dict[str, Any]) -> tuple[int, ...]:
    usual = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    channels, height, width = usual.get("input_size", (3, 224, 224))
    side = settings.get("img_size")
    if isinstance(side, int):
        height = width = side
    elif isinstance(side, list | tuple) and len(side) == 2:
        height, width = side
    return settings.get("in_chans", channels), height, width


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
        Name of the model in the library, such as ``"resnet50"``.
    batch_size
        Number of images or videos in a step.
    image_size
        Height and width of an image, in pixels; by default those that the model was trained with.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.
    **settings
        Arguments of the builder of the model; none may load weights.

    Raises
    ------
    WorkloadError
        If the library is not installed, or has no such model or setting.
    """
    models = import_library("torchvision.models", "torchvision")
    _check_known(f"torchvision:{name}", models.list_models())
    _check_no_weights(f"torchvision:{name}", settings, TORCHVISION_LOADING)
    builder = models.get_model_builder(name)
    kind = builder.__module__.split(".")[2]
    if kind == "detection":
        raise WorkloadError(
            f"torchvision:{name}: expected a model of images or videos, got a detector, "
            "which does other things for other images"
        )
    no_weights = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        no_weights["weights_backbone"] = None
    model: nn.Module = build_on_device(
        f"torchvision:{name}", lambda: builder(**no_weights, **settings), device, seed
    )
    side = image_size or TORCHVISION_SIDES.get(name) or TORCHVISION_SIDES.get(kind) or SIDE
    shape: tuple[int, ...] = (3, side, side)
    num_classes = settings.get("num_classes", USUAL_CLASSES)
    if kind == "video":
        shape = (3, FRAMES, side, side)
        num_classes = settings.get("num_classes", CLASSES_OF_VIDEOS)
    if kind in {"segmentation", "optical_flow"}:
        num_classes = None
    return _image_step(
        model.train(), shape, batch_size, num_classes=num_classes, device=device, seed=seed
    )


def _check_known(source: str, names: Collection[str]) -> None:
    name = source.partition(":")[2]
    if name not in names:
        raise WorkloadError(f"{source}: expected a known model{such_as(name, names)}, got {name!r}")


def _check_no_weights(source: str, settings: Iterable[str], loading: Collection[str]) -> None:
    for setting in settings:
        if setting in loading:
            raise WorkloadError(f"{source}: expected no weights to load, got {setting!r}")


def _image_step(
    model: nn.Module,
    shape: tuple[int, ...],
    batch_size: int,
    *,
    num_classes: int | None,
    device: torch.device | str,
    seed: int,
) -> TrainingStep:
    """Return a step of a model from images of a shape to one or several scores of classes.

    Where it has no classes, the mean of what it gives is the loss.
    """
    whole_number("batch_size", batch_size)
    with seeded(seed):
        images = torch.randn(batch_size, *shape, device=device)
        labels = torch.randint(num_classes or 1, (batch_size,), device=device)
    if num_classes is None:
        return TrainingStep(model, (images,))
    return TrainingStep(model, (images,), partial(_classification, labels))


def _classification(labels: Tensor, outputs: object) -> Tensor:
    """Return the cross-entropy of scores, of which further ones count less, as in Inception."""
    scores = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if not scores:
        raise WorkloadError(f"loss_fn: expected scores, got {type(outputs).__name__}")
    loss = functional.cross_entropy(scores[0], labels)
    for auxiliary_scores in scores[1:]:
        loss = loss + 0.4 * functional.cross_entropy(auxiliary_scores, labels)
    return loss
