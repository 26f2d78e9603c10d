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
from placeto_workloads.libraries.loading import built, import_library, seeded, such_as
from placeto_workloads.models.training_step import TrainingStep, whole_number

# Settings that would load weights.
TIMM_LOADING = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
TORCHVISION_LOADING = ("weights", "weights_backbone")
USUAL_CLASSES = 1000
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
    """Build a training step of a model of the timm library, without trained weights."""
    library = import_library("timm", "timm")
    if not library.is_model(name):  # a name with a tag is one, and not among those listed
        _check_known(f"timm:{name}", library.list_models())
    _check_no_weights(f"timm:{name}", settings, TIMM_LOADING)
    model = built(
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
    """Build a training step of a model of the torchvision library, without trained weights."""
    models = import_library("torchvision.models", "torchvision")
    _check_known(f"torchvision:{name}", models.list_models())
    _check_no_weights(f"torchvision:{name}", settings, TORCHVISION_LOADING)
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
    model: nn.Module = built(
        f"torchvision:{name}", lambda: maker(**without, **settings), device, seed
    )
    side = image_size or TORCHVISION_SIDES.get(name) or TORCHVISION_SIDES.get(kind) or SIDE
    has_classes = kind not in {"segmentation", "optical_flow"}
    return _image_step(
        model.train(),
        (3, FRAMES, side, side) if kind == "video" else (3, side, side),
        batch_size,
        num_classes=settings.get("num_classes", 400 if kind == "video" else USUAL_CLASSES)
        if has_classes
        else None,
        device=device,
        seed=seed,
    )


def _check_known(source: str, known: Collection[str]) -> None:
    name = source.partition(":")[2]
    if name not in known:
        raise WorkloadError(f"{source}: expected a known model{such_as(name, known)}, got {name!r}")


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
    for further in scores[1:]:
        loss = loss + 0.4 * functional.cross_entropy(further, labels)
    return loss
