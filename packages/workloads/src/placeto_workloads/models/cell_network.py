"""Networks that repeat convolutional cells."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, cat, nn

from placeto_workloads.models.cell_architecture import (
    CURRENT,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
)
from placeto_workloads.models.image_layers import adjustment, operation_layer


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
        self,
        stem: nn.Module,
        stem_channels: int,
        plan: Sequence[PlannedCell],
        num_classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.cells = nn.ModuleDict()
        previous, current, stride = stem_channels, stem_channels, 1
        for index, planned in enumerate(plan):
            filters = planned.filters
            before = nn.Identity() if index == 0 else adjustment(previous, filters, stride)
            cell = Cell(
                planned,
                previous=before,
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
        return cat([layer(states[state]) for state, layer in outputs], dim=1)


class Addition(nn.Module):
    """The sum of two layers on two inputs."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left = left
        self.right = right

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        total: Tensor = self.left(left) + self.right(right)
        return total
