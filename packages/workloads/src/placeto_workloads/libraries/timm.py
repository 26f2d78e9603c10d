"""Models of the timm library."""

from typing import Any

import torch

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.images import check_known, check_no_weights, image_step
from placeto_workloads.libraries.importing import import_library, offline, one_line
from placeto_workloads.libraries.weightless import built
from placeto_workloads.models.training_step import TrainingStep

LOADING = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")


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
        What ``timm.create_model`` knows, such as ``"resnet50"``.
    batch_size
        Images in a step, of the size that the model is for.
    device
        Where the weights and images are; on the default, meta, weights take no memory.
    seed
        Of weights and images on any other device.
    **settings
        Further arguments of ``timm.create_model``, such as ``num_classes`` or ``img_size``.

    Raises
    ------
    WorkloadError
        When there is no such model, or the library refuses a setting.
    """
    library = import_library("timm", "timm")
    if not library.is_model(name):  # a name with a tag is one, and not among those listed
        check_known(f"timm:{name}", library.list_models())
    check_no_weights(f"timm:{name}", settings, LOADING)
    with offline():
        try:
            model = built(
                lambda: library.create_model(name, pretrained=False, **settings), device, seed
            )
        except Exception as error:
            raise WorkloadError(f"timm:{name}: {one_line(error)}") from error
    return image_step(
        model.train(),
        _shape(model, settings),
        batch_size,
        num_classes=getattr(model, "num_classes", None) or None,
        device=device,
        seed=seed,
    )


def _shape(model: Any, settings: dict[str, Any]) -> tuple[int, ...]:
    usual = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    channels, height, width = usual.get("input_size", (3, 224, 224))
    side = settings.get("img_size")
    if isinstance(side, int):
        height = width = side
    elif isinstance(side, list | tuple) and len(side) == 2:
        height, width = side
    return settings.get("in_chans", channels), height, width
