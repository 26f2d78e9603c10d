"""NASNet-A (Zoph et al. 2018, "Learning Transferable Architectures")."""

import torch
from torch import nn

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.cell_architecture import (
    CURRENT,
    PREVIOUS,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
)
from placeto_workloads.models.cell_network import (
    CellNetwork,
    PlannedCell,
    planned_cells,
)
from placeto_workloads.models.training_step import (
    TrainingStep,
    build_classification_step,
    of_checked_sizes,
)

_SEPARABLE_3 = Operation.SEPARABLE_CONVOLUTION_3
_SEPARABLE_5 = Operation.SEPARABLE_CONVOLUTION_5
_SEPARABLE_7 = Operation.SEPARABLE_CONVOLUTION_7
_AVERAGE = Operation.AVERAGE_POOL_3
_MAXIMUM = Operation.MAX_POOL_3
_IDENTITY = Operation.IDENTITY

# Figure 4 of the paper. States 2 to 6 are the blocks, in order.
NASNET_A = ConvolutionalArchitecture(
    normal=ConvolutionalCell(
        blocks=(
            Block(CURRENT, _SEPARABLE_5, PREVIOUS, _SEPARABLE_3),
            Block(PREVIOUS, _SEPARABLE_5, PREVIOUS, _SEPARABLE_3),
            Block(CURRENT, _AVERAGE, PREVIOUS, _IDENTITY),
            Block(PREVIOUS, _AVERAGE, PREVIOUS, _AVERAGE),
            Block(CURRENT, _SEPARABLE_3, CURRENT, _IDENTITY),
        ),
        # All blocks and the previous cell's output: the 6 parts of 176 filters that make 1056.
        outputs=(PREVIOUS, 2, 3, 4, 5, 6),
    ),
    reduction=ConvolutionalCell(
        blocks=(
            Block(CURRENT, _SEPARABLE_5, PREVIOUS, _SEPARABLE_7),
            Block(CURRENT, _MAXIMUM, PREVIOUS, _SEPARABLE_7),
            Block(CURRENT, _AVERAGE, PREVIOUS, _SEPARABLE_5),
            Block(2, _AVERAGE, 3, _IDENTITY),
            Block(2, _SEPARABLE_3, CURRENT, _MAXIMUM),
        ),
        outputs=(3, 4, 5, 6),
    ),
)
"""The cells of NASNet-A (Zoph et al. 2018, figure 4)."""
# The last stage has 4 times the filters of the first, and its cells join 6 states.
_PENULTIMATE_PER_FILTER = 4 * len(NASNET_A.normal.outputs)


@of_checked_sizes
def nasnet(
    *,
    batch_size: int = 64,
    image_size: int = 224,
    num_classes: int = 1000,
    cells_per_stage: int = 4,
    penultimate_filters: int = 1056,
    stem_filters: int = 32,
    device: torch.device | str = "meta",
    seed: int = 0,
) -> TrainingStep:
    """Return one training step of NASNet-A; by default the mobile one, 4 @ 1056.

    The network of Zoph et al. (2018), figures 2 and 4, for ImageNet. It has a convolution, two
    reduction cells, and three stages of normal cells with a reduction cell between them. It has no
    auxiliary head and no drop path, as the mobile one is trained without it: 5,289,978 parameters.

    Parameters
    ----------
    batch_size, num_classes
        Numbers of images in a step, and of classes.
    image_size
        Height and width of an image, in pixels.
    cells_per_stage
        Number N of normal cells in each of the three stages.
    penultimate_filters
        Number of channels of the features that are classified; a multiple of 96. A 24th of it is
        the number of filters of the first stage.
    stem_filters
        Number of filters of the first convolution.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.

    Raises
    ------
    WorkloadError
        If a size is no whole number of at least 1, or the sizes make no network.

    Examples
    --------
    >>> step = nasnet(batch_size=2)
    >>> sum(weights.numel() for weights in step.model.parameters())
    5289978
    """
    narrowest = 4 * _PENULTIMATE_PER_FILTER  # the first stem cell has a quarter of the filters
    if penultimate_filters % narrowest:
        raise WorkloadError(
            f"penultimate_filters: expected a multiple of {narrowest}, got {penultimate_filters}"
        )
    filters = penultimate_filters // _PENULTIMATE_PER_FILTER
    plan = [
        PlannedCell(NASNET_A.reduction, filters // 4, stride=2),
        PlannedCell(NASNET_A.reduction, filters // 2, stride=2),
        *planned_cells(NASNET_A, filters, cells_per_stage),
    ]

    def make_network() -> CellNetwork:
        convolution = nn.Conv2d(3, stem_filters, 3, stride=2, bias=False)
        return CellNetwork(convolution, plan, num_classes, dropout=0.5)

    images = batch_size, image_size, num_classes
    return build_classification_step(make_network, *images, device=device, seed=seed)
