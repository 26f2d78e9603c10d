"""Image networks of cells from the ENAS micro search space (Pham et al. 2018, section 2.4)."""

from collections import OrderedDict

import torch
from torch import nn

from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture
from placeto_workloads.models.cell_network import CellNetwork, planned_cells
from placeto_workloads.models.image_layers import batch_normalisation
from placeto_workloads.models.training_step import (
    TrainingStep,
    build_classification_step,
    whole_number,
    whole_numbers,
)

STEM_FILTERS_PER_FILTER = 3


def enas_image_network(
    architecture: ConvolutionalArchitecture,
    *,
    batch_size: int = 144,
    image_size: int = 32,
    num_classes: int = 10,
    cells_per_stage: int = 5,
    filters: int = 36,
    device: torch.device | str = "meta",
    seed: int = 0,
) -> TrainingStep:
    """Return one training step of a network of convolutional cells.

    The network that Pham et al. (2018) train on CIFAR-10: a convolution, and three stages of
    normal cells with a reduction cell between them. The defaults are those of the authors' final
    training (15 normal cells, 36 filters, batches of 144, dropout 0.2). Without the auxiliary head
    and without drop path.

    Parameters
    ----------
    architecture
        The normal and the reduction cell.
    batch_size, num_classes
        Numbers of images in a step, and of classes.
    image_size
        Height and width of an image, in pixels.
    cells_per_stage
        Number of normal cells in each of the three stages.
    filters
        Number of filters of each operation in the first stage.
    device, seed
        As of `training_step`.

    Raises
    ------
    WorkloadError
        When a size is not an integer of at least 1, or 2 for the filters, or the images are too
        small for a layer.

    Examples
    --------
    >>> from placeto_workloads.models.nasnet import NASNET_A
    >>> step = enas_image_network(NASNET_A, batch_size=2)
    >>> step.model.network(step.example_inputs[0]).shape
    torch.Size([2, 10])
    """
    sizes = whole_numbers(
        batch_size=batch_size,
        image_size=image_size,
        num_classes=num_classes,
        cells_per_stage=cells_per_stage,
    )
    sizes["filters"] = whole_number("filters", filters, minimum=2)

    def make_network() -> CellNetwork:
        own = {name: sizes[name] for name in ("num_classes", "cells_per_stage", "filters")}
        return image_network(architecture, **own)

    return build_classification_step(make_network, sizes, device=device, seed=seed)


def image_network(
    architecture: ConvolutionalArchitecture, *, num_classes: int, cells_per_stage: int, filters: int
) -> CellNetwork:
    """Return the network that `enas_image_network` trains, from images to logits."""
    stem_filters = STEM_FILTERS_PER_FILTER * filters
    stem = nn.Sequential(
        OrderedDict[str, nn.Module](
            convolution=nn.Conv2d(3, stem_filters, 3, padding=1, bias=False),
            normalisation=batch_normalisation(stem_filters),
        )
    )
    plan = planned_cells(architecture, filters, cells_per_stage)
    return CellNetwork(stem, stem_filters, plan, num_classes, dropout=0.2)
