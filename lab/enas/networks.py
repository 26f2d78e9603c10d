"""The super-networks: all networks of a search space, with weights that they share.

Every choice of an architecture has weights of its own; the architectures that make it use them.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from placeto_workloads import ConvolutionalArchitecture, Operation, RecurrentCell
from placeto_workloads.families.search_spaces import MICRO_OPERATIONS
from placeto_workloads.models.cell_architecture import CURRENT
from placeto_workloads.models.cell_network import (
    STEM_FILTERS_PER_FILTER,
    CellNetwork,
    FactorisedReduction,
    Projection,
    batch_normalisation,
    image_network,
    operation_layer,
)
from placeto_workloads.models.enas_recurrent import RecurrentStep
from placeto_workloads.models.unrolled import uniform_weight

STAGES = 3


class SharedImageNetwork(nn.Module):
    """Weights of all networks that `enas_image_network` makes of one size.

    Each operation on each earlier state, on each side of each block, has a layer. A layer that
    reads several states side by side has columns for each of them. Batches are normalised by their
    own statistics: averages over batches would be averages over architectures. The state of
    PyTorch's random numbers is left as it was.
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
        stage = (1,) * cells_per_stage
        self.strides = (*stage, *((2, *stage) * (STAGES - 1)))  # 2 is a reduction cell
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._build()

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
        # Of the inputs of a cell: the channels of a state, and the number of states.
        previous, current, shrunk = (stem_filters, 1), (stem_filters, 1), 1
        for index, stride in enumerate(self.strides):
            filters *= stride  # a reduction cell has twice the filters
            cell = nn.ModuleDict()
            if index:  # nothing stands before the first input of the network
                cell["previous"] = _adjustment(*previous, filters, shrunk)
            cell["current"] = _adjustment(*current, filters, 1)
            channels = (filters if index else stem_filters, filters)
            cell["layers"], cell["outputs"] = self._layers(channels, filters, stride)
            self.cells[f"cell{index}"] = cell
            previous, current, shrunk = current, (filters, num_states), stride
        classes = self.sizes["num_classes"]
        self.classifier = nn.ModuleDict({"layer": nn.Linear(filters * num_states, classes)})

    def _layers(
        self, channels: tuple[int, int], filters: int, stride: int
    ) -> tuple[nn.ModuleDict, nn.ModuleDict]:
        """Return the layers of all choices of a cell, and those before its output."""

        def layer(state: int, operation: Operation) -> nn.Module:
            if state <= CURRENT:
                return operation_layer(operation, channels[state], filters, stride)
            return operation_layer(operation, filters, filters, 1)

        layers = {
            _layer_name(block, side, state, operation): layer(state, operation)
            for block in range(self.num_blocks)
            for side in ("left", "right")
            for state in range(CURRENT + 1 + block)
            for operation in MICRO_OPERATIONS
        }
        states = range(CURRENT + 1 + self.num_blocks)
        outputs = {f"state{state}": layer(state, Operation.IDENTITY) for state in states}
        return nn.ModuleDict(layers), nn.ModuleDict(outputs)

    def forward(self, architecture: ConvolutionalArchitecture, images: Tensor) -> Tensor:
        """Return the logits of an architecture for images, float32[batch, 3, height, width]."""
        with torch.device("meta"):  # the shared weights take the place of its own
            network = image_network(architecture, **self.sizes).eval()  # without dropout
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = None
        logits: Tensor = functional_call(network, self._weights(architecture, network), (images,))
        return logits

    def _weights(
        self, architecture: ConvolutionalArchitecture, network: CellNetwork
    ) -> dict[str, Tensor]:
        """Return the shared weights by the names that they have in a network of its own."""
        weights = dict(self._named_weights(architecture))
        return {name: weights[name] for name, _ in network.named_parameters()}

    def _named_weights(self, cells: ConvolutionalArchitecture) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of all layers that a network of the architecture may have."""
        yield from _named("stem", self.stem)
        filters = self.sizes["filters"]
        # The columns of the states that the outputs of the last two cells hold side by side.
        previous = current = _columns((0,), STEM_FILTERS_PER_FILTER * filters)
        for (name, cell), stride in zip(self.cells.named_children(), self.strides, strict=True):
            prefix, filters = f"cells.{name}", filters * stride
            if name != "cell0":
                layer = cell.get_submodule("previous.layer")
                yield from _named(f"{prefix}.previous", layer, previous)
            yield from _named(f"{prefix}.current", cell.get_submodule("current.layer"), current)
            chosen = cells.reduction if stride == 2 else cells.normal
            for index, block in enumerate(chosen.blocks):
                for side, state, operation in (
                    ("left", block.left, block.left_operation),
                    ("right", block.right, block.right_operation),
                ):
                    layer = cell.get_submodule(
                        f"layers.{_layer_name(index, side, state, operation)}"
                    )
                    yield from _named(f"{prefix}.blocks.block{index}.{side}", layer)
            for output in (f"outputs.state{state}" for state in chosen.outputs):
                yield from _named(f"{prefix}.{output}", cell.get_submodule(output))
            previous, current = current, _columns(chosen.outputs, filters)
        yield from _named("classifier", self.classifier["layer"], current)


def _adjustment(channels: int, num_states: int, outputs: int, stride: int) -> nn.ModuleDict:
    """Return what gives any choice of states other channels, and with stride 2 half the size."""
    make = FactorisedReduction if stride == 2 else Projection
    return nn.ModuleDict({"layer": make(channels * num_states, outputs)})


def _layer_name(block: int, side: str, state: int, operation: Operation) -> str:
    return f"block{block}_{side}_state{state}_{operation.name.lower()}"


def _columns(states: Sequence[int], channels: int) -> list[int]:
    """Return the columns of a weight that belong to some states."""
    return [
        column for state in states for column in range(state * channels, (state + 1) * channels)
    ]


def _named(
    prefix: str, layer: nn.Module, columns: list[int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    for name, weight in layer.named_parameters():
        is_whole = columns is None or weight.dim() == 1
        yield f"{prefix}.{name}", weight if is_whole else weight[:, columns]


class SharedLanguageModel(nn.Module):
    """Weights of all language models that `enas_language_model` makes of one size.

    Each pair of a node and an earlier one that it may read has a weight of its own. The state of
    PyTorch's random numbers is left as it was.
    """

    def __init__(
        self, *, num_nodes: int = 12, units: int = 748, vocabulary_size: int = 10_000, seed: int = 0
    ) -> None:
        super().__init__()
        self.units = units
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary_size, units)
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
            self.first = uniform_weight(2 * units, 2 * units)
            self.weights = nn.ParameterDict(
                {
                    f"node{node}_reads{earlier}": uniform_weight(units, 2 * units)
                    for node in range(1, num_nodes)
                    for earlier in range(node)
                }
            )

    def forward(self, cell: RecurrentCell, words: Tensor) -> Tensor:
        """Return the loss of a cell, averaged over words, int64[steps + 1, batch].

        The first word is only read, the last only predicted.
        """
        step, weights = RecurrentStep(cell), self.weights_of(cell)
        inputs = self.embedding(words[:-1])
        states = [torch.zeros_like(inputs[0])]
        for word in inputs.unbind():
            states.append(step(word, states[-1], weights))
        scores = functional.linear(torch.stack(states[1:]), self.embedding.weight)
        return functional.cross_entropy(scores.flatten(0, 1), words[1:].flatten())

    def weights_of(self, cell: RecurrentCell) -> list[Tensor]:
        """Return the weights of the nodes of a cell, in order."""
        reads = enumerate(cell.inputs, start=1)
        return [self.first, *(self.weights[f"node{node}_reads{read}"] for node, read in reads)]
