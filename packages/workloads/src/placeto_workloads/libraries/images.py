"""Steps of models that sort images into classes."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.importing import nearest
from placeto_workloads.models.training_step import TrainingStep


def check_known(source: str, known: Collection[str]) -> None:
    """Raise a `WorkloadError` if the model of a source, such as ``timm:resnet50``, is not known."""
    name = source.partition(":")[2]
    if name not in known:
        raise WorkloadError(
            f"{source}: expected a known model, such as {nearest(name, known)}, got {name!r}"
        )


def check_no_weights(source: str, settings: Iterable[str], loading: Collection[str]) -> None:
    """Raise a `WorkloadError` if one of some settings would load weights."""
    for setting in settings:
        if setting in loading:
            raise WorkloadError(f"{source}: expected no weights to load, got {setting!r}")


def image_step(
    model: nn.Module,
    shape: tuple[int, ...],
    batch_size: int,
    *,
    num_classes: int | None,
    device: torch.device | str,
    seed: int,
) -> TrainingStep:
    """Return a step of a model of images.

    Parameters
    ----------
    model
        From images to scores of classes, as a tensor or as the first or only one of several.
    shape
        Of an image: channels, height and width; of a video also frames.
    batch_size
        How many there are.
    num_classes
        How many scores there are; None where they are no scores, so that their mean is the loss.
    device
        Where the images are to be.
    seed
        Of their values on any device but meta.
    """
    if batch_size < 1:
        raise WorkloadError(f"batch_size: expected at least 1, got {batch_size}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        images = torch.randn(batch_size, *shape, device=device)
        labels = torch.randint(num_classes or 1, (batch_size,), device=device)
    if num_classes is None:
        return TrainingStep(model, (images,))
    return TrainingStep(model, (images,), _Classification(labels))


class _Classification:
    """Cross-entropy, averaged over the batch, of one or several scores."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels

    def __call__(self, outputs: object) -> Tensor:
        """Return the loss of what a model gives: further scores count less, as in Inception."""
        scores = _tensors(outputs)
        loss = F.cross_entropy(scores[0], self._labels)
        for further in scores[1:]:
            loss = loss + 0.4 * F.cross_entropy(further, self._labels)
        return loss


def _tensors(outputs: object) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, dict) else outputs
    if not isinstance(outputs, dict | list | tuple):
        raise WorkloadError(f"loss_fn: expected scores, got {type(outputs).__name__}")
    return [value for value in values if isinstance(value, Tensor)]  # type: ignore[attr-defined]
