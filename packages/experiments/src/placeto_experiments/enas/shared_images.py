"""The super-network of the micro search space: every network of it, with shared weights."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from placeto_workloads.families.sampler import MICRO_OPERATIONS
from placeto_workloads.models.cell_architecture import (
    CURRENT,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
)
from placeto_workloads.models.cell_layers import FactorisedReduction, Projection, operation_layer
from placeto_workloads.models.cell_network import Addition, Cell, CellNetwork
from placeto_workloads.models.enas_convolutional import enas_image_network
from placeto_workloads.models.normalisation import batch_normalisation

STAGES = 3
STEM_FILTERS_PER_FILTER = 3
STEM: tuple[int, ...] = (0,)  # the one part of the stem's output


class SharedImageNetwork(nn.Module):
    """All networks that `enas_image_network` makes of one size, with weights that they share.

    Each operation on each earlier state, on each side of each block, has weights of its own, and
    every architecture that chooses it uses these. Batches are normalised by their own statistics:
    averages over batches would be averages over architectures.

    Parameters
    ----------
    num_blocks
        Of a cell.
    num_classes
        How many classes there are.
    cells_per_stage
        Normal cells in each of the three stages.
    filters
        Of each operation in the first stage.
    seed
        Of the weights. The state of PyTorch's random numbers is left as it was.

    Examples
    --------
    >>> from placeto_workloads import UniformSampler
    >>> import numpy as np
    >>> cells = UniformSampler(num_blocks=2).convolutional_cells(np.random.default_rng(0))
    >>> network = SharedImageNetwork(num_blocks=2, num_classes=4, filters=2)
    >>> network(cells, torch.zeros(3, 3, 8, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        *,
        num_blocks: int = 5,
        num_classes: int = 10,
        cells_per_stage: int = 5,
        filters: int = 36,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_blocks = num_blocks
        self.sizes = {
            "num_classes": num_classes,
            "cells_per_stage": cells_per_stage,
            "filters": filters,
        }
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._build()
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = None

    def _build(self) -> None:
        filters = self.sizes["filters"]
        stem_filters = STEM_FILTERS_PER_FILTER * filters
        self.stem = nn.Sequential(
            OrderedDict[str, nn.Module](
                convolution=nn.Conv2d(3, stem_filters, 3, padding=1, bias=False),
                normalisation=batch_normalisation(stem_filters),
            )
        )
        self.cells = nn.ModuleDict()
        num_states = CURRENT + 1 + self.num_blocks
        previous, current, shrunk = (stem_filters, 1), (stem_filters, 1), 1
        for index, stride in enumerate(strides(self.sizes["cells_per_stage"])):
            filters *= stride  # a reduction cell has twice the filters
            self.cells[f"cell{index}"] = SharedCell(
                self.num_blocks,
                filters,
                stride,
                previous=None if index == 0 else SharedAdjustment(*previous, filters, shrunk),
                previous_channels=stem_filters if index == 0 else filters,
                current=SharedAdjustment(*current, filters, 1),
            )
            previous, current, shrunk = current, (filters, num_states), stride
        self.classifier = SharedClassifier(filters, num_states, self.sizes["num_classes"])

    def forward(self, architecture: ConvolutionalArchitecture, images: Tensor) -> Tensor:
        """Return the logits of one architecture, float32[batch, classes].

        Parameters
        ----------
        architecture
            Its cells.
        images
            float32[batch, 3, height, width].
        """
        features = self.stem(images)
        previous, current = (features, STEM), (features, STEM)
        for cell in self._cells():
            chosen = cell.of(architecture)
            previous, current = current, (cell(chosen, previous, current), chosen.outputs)
        logits: Tensor = self.classifier(*current)
        return logits

    def network_of(self, architecture: ConvolutionalArchitecture) -> CellNetwork:
        """Return a network of one architecture alone, with copies of the shared weights.

        It is that of `enas_image_network`, in training mode.
        """
        step = enas_image_network(architecture, batch_size=1, device="cpu", **self.sizes)
        network = step.model.network
        assert isinstance(network, CellNetwork)  # noqa: S101
        with torch.no_grad():
            network.stem.load_state_dict(self.stem.state_dict(), strict=False)
            previous, current = STEM, STEM
            for cell, plain in zip(self._cells(), network.cells.values(), strict=True):
                assert isinstance(plain, Cell)  # noqa: S101
                cell.copy_to(plain, previous, current)
                previous, current = current, plain.architecture.outputs
            network.classifier.load_state_dict(self.classifier.weights_of(current))
        return network

    def _cells(self) -> Iterator["SharedCell"]:
        for cell in self.cells.values():
            assert isinstance(cell, SharedCell)  # noqa: S101
            yield cell


class SharedCell(nn.Module):
    """One cell of the super-network: a layer for every choice.

    Parameters
    ----------
    num_blocks
        How many there are.
    filters
        Of each operation.
    stride
        2 for a reduction cell.
    previous, current
        What makes both inputs of one size; nothing stands before the first input of the network.
    previous_channels
        The channels that ``previous`` gives.
    """

    def __init__(
        self,
        num_blocks: int,
        filters: int,
        stride: int,
        *,
        previous: "SharedAdjustment | None",
        previous_channels: int,
        current: "SharedAdjustment",
    ) -> None:
        super().__init__()
        self.stride = stride
        self.previous = previous
        self.current = current
        inputs = (previous_channels, filters)

        def layer(state: int, operation: Operation) -> nn.Module:
            if state <= CURRENT:
                return operation_layer(operation, inputs[state], filters, stride)
            return operation_layer(operation, filters, filters, 1)

        self.layers = nn.ModuleDict(
            {
                layer_name(block, side, state, operation): layer(state, operation)
                for block in range(num_blocks)
                for side in ("left", "right")
                for state in range(CURRENT + 1 + block)
                for operation in MICRO_OPERATIONS
            }
        )
        self.outputs = nn.ModuleDict(
            {
                f"state{state}": layer(state, Operation.IDENTITY)
                for state in range(CURRENT + 1 + num_blocks)
            }
        )

    def of(self, architecture: ConvolutionalArchitecture) -> ConvolutionalCell:
        """Return which of the two cells of an architecture this one is."""
        return architecture.reduction if self.stride == 2 else architecture.normal

    def forward(
        self,
        chosen: ConvolutionalCell,
        previous: tuple[Tensor, Sequence[int]],
        current: tuple[Tensor, Sequence[int]],
    ) -> Tensor:
        """Return the output of a chosen cell.

        Parameters
        ----------
        chosen
            The cell.
        previous, current
            The outputs of the cell before the last and of the last one, and which states of these
            cells they are made of.
        """
        before = previous[0] if self.previous is None else self.previous(*previous)
        states = [before, self.current(*current)]
        for index, block in enumerate(chosen.blocks):
            left, right = self._sides(index, block)
            states.append(left(states[block.left]) + right(states[block.right]))
        return torch.cat(
            [self.outputs[f"state{state}"](states[state]) for state in chosen.outputs], dim=1
        )

    def copy_to(self, plain: Cell, previous: Sequence[int], current: Sequence[int]) -> None:
        """Copy the weights that a cell uses into a cell without choices.

        Parameters
        ----------
        plain
            The other cell.
        previous, current
            The states that its inputs are made of.
        """
        if self.previous is not None:
            _copy(self.previous.weights_of(previous), plain.previous)
        _copy(self.current.weights_of(current), plain.current)
        for index, (block, addition) in enumerate(
            zip(plain.architecture.blocks, plain.blocks.values(), strict=True)
        ):
            assert isinstance(addition, Addition)  # noqa: S101
            left, right = self._sides(index, block)
            _copy(left.state_dict(), addition.left)
            _copy(right.state_dict(), addition.right)
        for name, layer in plain.outputs.items():
            _copy(self.outputs[name].state_dict(), layer)

    def _sides(self, index: int, block: Block) -> tuple[nn.Module, nn.Module]:
        left = layer_name(index, "left", block.left, block.left_operation)
        right = layer_name(index, "right", block.right, block.right_operation)
        return self.layers[left], self.layers[right]


class SharedAdjustment(nn.Module):
    """Other channels, or half the size, for any choice of states side by side.

    Each state has columns of its own in the weights. A single state of the right width passes
    through, as it does in a network of one architecture.

    Parameters
    ----------
    channels
        Of one state.
    num_states
        How many there are to choose from.
    outputs
        The channels that come out.
    stride
        1, or 2 for half the height and width.
    """

    def __init__(self, channels: int, num_states: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.outputs = outputs
        self.stride = stride
        make = FactorisedReduction if stride == 2 else Projection
        self.layer = make(channels * num_states, outputs)

    def forward(self, features: Tensor, states: Sequence[int]) -> Tensor:
        """Return float32[batch, outputs, height / stride, width / stride]."""
        if self.stride == 1 and features.shape[1] == self.outputs:
            return features
        adjusted: Tensor = functional_call(self.layer, self.weights_of(states), (features,))
        return adjusted

    def weights_of(self, states: Sequence[int]) -> dict[str, Tensor]:
        """Return the weights of the layer, with the columns of these states alone."""
        columns = columns_of(states, self.channels)
        return {
            name: weight[:, columns] if weight.dim() == 4 else weight
            for name, weight in self.layer.named_parameters()
        }


class SharedClassifier(nn.Module):
    """From the output of the last cell to logits, for any choice of its states.

    Parameters
    ----------
    channels
        Of one state.
    num_states
        How many there are to choose from.
    num_classes
        How many logits there are.
    """

    def __init__(self, channels: int, num_states: int, num_classes: int) -> None:
        super().__init__()
        self.channels = channels
        self.layer = nn.Linear(channels * num_states, num_classes)

    def forward(self, features: Tensor, states: Sequence[int]) -> Tensor:
        """Return float32[batch, classes]."""
        pooled = torch.relu(features).mean(dim=(2, 3))
        logits: Tensor = functional_call(self.layer, self.weights_of(states), (pooled,))
        return logits

    def weights_of(self, states: Sequence[int]) -> dict[str, Tensor]:
        """Return the weights with the columns of these states alone."""
        columns = columns_of(states, self.channels)
        return {"weight": self.layer.weight[:, columns], "bias": self.layer.bias}


def strides(cells_per_stage: int) -> tuple[int, ...]:
    """Return the stride of each cell of a network; 2 is a reduction cell."""
    stage = (1,) * cells_per_stage
    return (*stage, *((2, *stage) * (STAGES - 1)))


def layer_name(block: int, side: str, state: int, operation: Operation) -> str:
    """Return the name of the layer of one choice."""
    return f"block{block}_{side}_state{state}_{operation.name.lower()}"


def columns_of(states: Sequence[int], channels: int) -> list[int]:
    """Return which columns of a weight belong to some states.

    Examples
    --------
    >>> columns_of([0, 2], channels=2)
    [0, 1, 4, 5]
    """
    return [
        column for state in states for column in range(state * channels, (state + 1) * channels)
    ]


def _copy(weights: dict[str, Tensor], layer: nn.Module) -> None:
    if any(True for _ in layer.parameters()):  # an identity takes none
        layer.load_state_dict(weights, strict=False)
