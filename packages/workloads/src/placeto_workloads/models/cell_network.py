"""Networks of convolutional cells, and their layers (Zoph et al. 2018, section 3 and A.4)."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_workloads.models.cell_architecture import (
    CURRENT,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
)
from placeto_workloads.models.training_step import (
    TrainingStep,
    build_classification_step,
    of_checked_sizes,
    whole_number,
)

EPSILON = 1e-3  # of the published networks, Inception-V3 and NASNet-A
_KERNELS = {
    Operation.SEPARABLE_CONVOLUTION_3: 3,
    Operation.SEPARABLE_CONVOLUTION_5: 5,
    Operation.SEPARABLE_CONVOLUTION_7: 7,
}
STEM_FILTERS_PER_FILTER = 3  # of the networks of ENAS


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a network: what it is, how wide, and by how much it shrinks its input."""

    architecture: ConvolutionalCell
    filters: int
    stride: int


def planned_cells(
    architecture: ConvolutionalArchitecture, filters: int, cells_per_stage: int
) -> list[PlannedCell]:
    """Return three stages of normal cells, with a reduction cell and twice the filters between."""
    plan = []
    for stage in range(3):
        width = filters * 2**stage
        if stage:
            plan.append(PlannedCell(architecture.reduction, width, stride=2))
        plan += [PlannedCell(architecture.normal, width, stride=1)] * cells_per_stage
    return plan


class CellNetwork(nn.Module):
    """A stem, cells that each read the outputs of the two before them, and a classifier.

    The first cell reads the stem's output as both; no projection stands before its first input.
    """

    def __init__(
        self, stem: nn.Conv2d, plan: Sequence[PlannedCell], num_classes: int, dropout: float
    ) -> None:
        super().__init__()
        channels = stem.out_channels
        normalisation = batch_normalisation(channels)
        self.stem = nn.Sequential(OrderedDict(convolution=stem, normalisation=normalisation))
        self.cells = nn.ModuleDict()
        previous, current, stride = channels, channels, 1
        for index, planned in enumerate(plan):
            filters = planned.filters
            previous_adjustment = (
                nn.Identity() if index == 0 else adjustment(previous, filters, stride)
            )
            cell = Cell(
                planned,
                previous=previous_adjustment,
                previous_channels=previous if index == 0 else filters,
                current=adjustment(current, filters, 1),
            )
            self.cells[f"cell{index}"] = cell
            previous, current, stride = current, cell.channels, planned.stride
        self.activation = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(current, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, float32[batch, classes], of float32[batch, 3, height, width]."""
        features = self.stem(images)
        previous, current = features, features
        for cell in self.cells.values():
            previous, current = current, cell(previous, current)
        pooled = self.pool(self.activation(current)).flatten(1)
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class Cell(nn.Module):
    """One cell; its output has ``channels``."""

    def __init__(
        self,
        planned: PlannedCell,
        *,
        previous: nn.Module,
        previous_channels: int,
        current: nn.Module,
    ) -> None:
        super().__init__()
        filters = planned.filters
        inputs = (previous_channels, filters)

        def layer(state: int, operation: Operation) -> nn.Module:
            if state <= CURRENT:
                return operation_layer(operation, inputs[state], filters, planned.stride)
            return operation_layer(operation, filters, filters, 1)

        self.previous = previous
        self.current = current
        self.architecture = planned.architecture
        self.blocks = nn.ModuleDict(
            {
                f"block{index}": Addition(
                    layer(block.left, block.left_operation),
                    layer(block.right, block.right_operation),
                )
                for index, block in enumerate(self.architecture.blocks)
            }
        )
        self.outputs = nn.ModuleDict(
            {
                f"state{state}": layer(state, Operation.IDENTITY)
                for state in self.architecture.outputs
            }
        )
        self.channels = filters * len(self.architecture.outputs)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        states = [self.previous(previous), self.current(current)]
        for block, addition in zip(self.architecture.blocks, self.blocks.values(), strict=True):
            states.append(addition(states[block.left], states[block.right]))
        outputs = zip(self.architecture.outputs, self.outputs.values(), strict=True)
        return torch.cat([layer(states[state]) for state, layer in outputs], dim=1)


class Addition(nn.Module):
    """The sum of two layers on two inputs."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left = left
        self.right = right

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        total: Tensor = self.left(left) + self.right(right)
        return total


def batch_normalisation(channels: int) -> nn.BatchNorm2d:
    """Return batch normalisation that keeps moving averages, and no count of batches.

    PyTorch reads the count only where there is no momentum. In a graph of ops it would be one op
    per layer that nothing else is joined to, and that no grouping could put anywhere.
    """
    layer = nn.BatchNorm2d(channels, eps=EPSILON)
    layer.num_batches_tracked = None
    return layer


def projection(inputs: int, outputs: int) -> nn.Sequential:
    """Return ReLU, a convolution of 1x1 and batch normalisation: other channels, the same size."""
    layers = OrderedDict[str, nn.Module](
        activation=nn.ReLU(),
        convolution=nn.Conv2d(inputs, outputs, 1, bias=False),
        normalisation=batch_normalisation(outputs),
    )
    return nn.Sequential(layers)


class FactorisedReduction(nn.Module):
    """Half the height and width: two convolutions of 1x1 with stride 2, side by side.

    One reads the even rows and columns, the other the odd ones; each makes half of the channels.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.normalisation = batch_normalisation(outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[batch, outputs, height / 2, width / 2], rounded up."""
        active = self.activation(features)
        shifted = functional.pad(active, (-1, 1, -1, 1))
        reduced: Tensor = self.normalisation(
            torch.cat([self.even(active), self.odd(shifted)], dim=1)
        )
        return reduced


def separable_convolutions(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    """Return a depthwise-separable convolution, applied twice; the first time with the stride.

    Each time ReLU, a convolution of each channel, one of 1x1 and batch normalisation.
    """
    layers = OrderedDict[str, nn.Module](
        first=_separable_convolution(inputs, outputs, kernel, stride),
        second=_separable_convolution(outputs, outputs, kernel, 1),
    )
    return nn.Sequential(layers)


def operation_layer(operation: Operation, inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the layer that does an operation.

    Pools and the identity do not change the channels. A projection follows them if inputs and
    outputs differ.
    """
    if operation in _KERNELS:
        return separable_convolutions(inputs, outputs, _KERNELS[operation], stride)
    if operation is Operation.IDENTITY:
        return adjustment(inputs, outputs, stride)
    pool: nn.Module
    if operation is Operation.MAX_POOL_3:
        pool = nn.MaxPool2d(3, stride, padding=1)
    else:
        pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    return pool if inputs == outputs else nn.Sequential(pool, projection(inputs, outputs))


def adjustment(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the layer that gives features other channels or half the size, as far as needed."""
    if stride == 2:
        return FactorisedReduction(inputs, outputs)
    return nn.Identity() if inputs == outputs else projection(inputs, outputs)


def _separable_convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    depthwise = nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False)
    layers = OrderedDict[str, nn.Module](
        activation=nn.ReLU(),
        depthwise=depthwise,
        pointwise=nn.Conv2d(inputs, outputs, 1, bias=False),
        normalisation=batch_normalisation(outputs),
    )
    return nn.Sequential(layers)


@of_checked_sizes
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
        Number of filters of each operation in the first stage, at least 2.
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
    >>> from placeto_workloads.models.nasnet import NASNET_A
    >>> step = enas_image_network(NASNET_A, batch_size=2, cells_per_stage=1)
    >>> step.model.network(step.example_inputs[0]).shape
    torch.Size([2, 10])
    """
    whole_number("filters", filters, minimum=2)
    images = batch_size, image_size, num_classes
    return build_classification_step(
        lambda: image_network(
            architecture, num_classes=num_classes, cells_per_stage=cells_per_stage, filters=filters
        ),
        *images,
        device=device,
        seed=seed,
    )


def image_network(
    architecture: ConvolutionalArchitecture, *, num_classes: int, cells_per_stage: int, filters: int
) -> CellNetwork:
    """Return the network that `enas_image_network` trains, from images to logits."""
    convolution = nn.Conv2d(3, STEM_FILTERS_PER_FILTER * filters, 3, padding=1, bias=False)
    plan = planned_cells(architecture, filters, cells_per_stage)
    return CellNetwork(convolution, plan, num_classes, dropout=0.2)
