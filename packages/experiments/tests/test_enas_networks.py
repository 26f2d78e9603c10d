"""Super-networks against networks of one architecture."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_experiments.enas.shared_networks import SharedImageNetwork, SharedLanguageModel
from placeto_workloads import (
    Activation,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalSpace,
    Operation,
    RecurrentCell,
    RecurrentSpace,
    cell_with_loose_ends,
)
from placeto_workloads.models.cell_network import CellNetwork
from placeto_workloads.models.enas_recurrent import LanguageModel

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def gradients(shared: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in shared.named_parameters() if weight.grad is not None
    }


def plain_network(shared: SharedImageNetwork, cells: ConvolutionalArchitecture) -> CellNetwork:
    network = shared.network_of(cells)
    network.dropout.p = 0.0
    return network


@pytest.mark.parametrize("seed", range(2))
def test_a_super_network_restricted_to_an_architecture_is_its_network(seed: int) -> None:
    generator = np.random.default_rng(seed)
    cells = ConvolutionalSpace(3).uniform(generator)
    shared = SharedImageNetwork(
        num_blocks=3, num_classes=4, cells_per_stage=1 + seed % 2, filters=4, seed=seed
    )
    plain = plain_network(shared, cells)
    torch_generator = torch.Generator().manual_seed(seed)
    images = torch.randn(5, 3, 12, 12, generator=torch_generator)
    expected, found = plain(images), shared(cells, images)
    assert_close(found, expected)
    (expected**2).sum().backward()
    (found**2).sum().backward()
    # What an architecture uses of a weight has the gradient of its own network, the rest has none.
    of_shared = sum(float((gradient**2).sum()) for gradient in gradients(shared).values())
    of_plain = sum(float((gradient**2).sum()) for gradient in gradients(plain).values())
    assert of_shared == pytest.approx(of_plain, rel=1e-3)
    assert_close(
        shared.get_parameter("stem.convolution.weight").grad,
        plain.get_parameter("stem.convolution.weight").grad,
    )


def padded_logits(
    shared: SharedImageNetwork, cells: ConvolutionalArchitecture, images: Tensor
) -> Tensor:
    """Run the shared layers one by one; where states are side by side, those left out are zeros."""
    filters, normal = shared.sizes["filters"], shared.sizes["cells_per_stage"]
    reductions = {f"cell{normal}", f"cell{2 * normal + 1}"}

    def padded(joined: Tensor, states: Sequence[int], width: int) -> Tensor:
        channels = joined.shape[1] // len(states)
        wide = joined.new_zeros(joined.shape[0], width, *joined.shape[2:])
        for part, state in zip(torch.split(joined, channels, dim=1), states, strict=True):
            wide[:, state * channels : (state + 1) * channels] = part
        return wide

    def adjusted(name: str, part: str, before: tuple[Tensor, Sequence[int]], side: int) -> Tensor:
        layer = shared.get_submodule(f"cells.{name}.{part}.layer")
        if before[0].shape[1:] == (filters, side, side):
            return before[0]
        read = next(weight for weight in layer.parameters() if weight.dim() == 4).shape[1]
        result: Tensor = layer(padded(*before, width=read))
        return result

    features: Tensor = shared.stem(images)
    previous: tuple[Tensor, Sequence[int]] = (features, [0])
    current = previous
    for name, _ in shared.cells.named_children():
        side = current[0].shape[-1]
        is_reduction = name in reductions
        cell = cells.reduction if is_reduction else cells.normal
        filters *= 2 if is_reduction else 1
        first = previous[0] if name == "cell0" else adjusted(name, "previous", previous, side)
        states = [first, adjusted(name, "current", current, side)]
        for index, block in enumerate(cell.blocks):
            total = torch.zeros(())
            for place, state, operation in (
                ("left", block.left, block.left_operation),
                ("right", block.right, block.right_operation),
            ):
                chosen = f"block{index}_{place}_state{state}_{operation.name.lower()}"
                total = total + shared.get_submodule(f"cells.{name}.layers.{chosen}")(states[state])
            states.append(total)
        outputs = [
            shared.get_submodule(f"cells.{name}.outputs.state{state}")(states[state])
            for state in cell.outputs
        ]
        previous, current = current, (torch.cat(outputs, dim=1), cell.outputs)
    classifier = shared.get_submodule("classifier.layer")
    assert isinstance(classifier, nn.Linear)
    joined = torch.relu(current[0]).mean(dim=(2, 3), keepdim=True)
    logits: Tensor = classifier(padded(joined, current[1], classifier.in_features).flatten(1))
    return logits


@pytest.mark.parametrize("seed", range(6))
def test_an_architecture_runs_the_layers_of_its_choices(seed: int) -> None:
    cells = ConvolutionalSpace(3).uniform(np.random.default_rng(seed))
    shared = SharedImageNetwork(
        num_blocks=3, num_classes=4, cells_per_stage=1 + seed % 2, filters=4, seed=seed
    )
    images = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    assert_close(shared(cells, images), padded_logits(shared, cells, images))


def test_cells_with_one_loose_end_need_no_projection_and_agree_too() -> None:
    chain = tuple(
        Block(state, Operation.IDENTITY, state + 1, Operation.MAX_POOL_3) for state in range(3)
    )
    cell = cell_with_loose_ends(chain)
    assert cell.outputs == (4,)
    cells = ConvolutionalArchitecture(cell, cell)
    shared = SharedImageNetwork(num_blocks=3, num_classes=4, cells_per_stage=2, filters=4)
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = plain_network(shared, cells)(images)
    assert_close(shared(cells, images), expected)


def test_only_the_chosen_layers_are_trained_and_others_are_shared() -> None:
    one, other = (ConvolutionalSpace(2).uniform(np.random.default_rng(seed)) for seed in (0, 1))
    shared = SharedImageNetwork(num_blocks=2, num_classes=4, cells_per_stage=1, filters=2)
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    touched = []
    for cells in (one, other):
        shared.zero_grad()
        shared(cells, images).sum().backward()
        touched.append(set(gradients(shared)))
    assert touched[0] != touched[1]
    assert {"stem.convolution.weight", "classifier.layer.weight"} <= touched[0] & touched[1]
    everything = {name for name, _ in shared.named_parameters()}
    assert touched[0] | touched[1] < everything
    block = one.normal.blocks[0]
    expected = f"block0_left_state{block.left}_{block.left_operation.name.lower()}"
    names = {name.split(".layers.")[1] for name in everything if ".cell0.layers." in name}
    if any(name.startswith(f"{expected}.") for name in names):
        assert any(f"cell0.layers.{expected}." in name for name in touched[0])


def plain_state(cell: RecurrentCell, word: Tensor, state: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the next state, one row at a time and written from the publication."""
    functions: dict[Activation, Callable[[Tensor], Tensor]] = {
        Activation.IDENTITY: lambda value: value,
        Activation.SIGMOID: lambda value: 1 / (1 + torch.exp(-value)),
        Activation.TANH: lambda value: 2 / (1 + torch.exp(-2 * value)) - 1,
        Activation.RELU: lambda value: value * (value > 0),
    }
    units = state.shape[0]
    nodes: list[Tensor] = []
    for node, activation in enumerate(cell.activations):
        read = torch.cat([word, state]) if node == 0 else nodes[cell.inputs[node - 1]]
        carried = state if node == 0 else read
        value = functions[activation](read @ weights[node][:, :units])
        gate = 1 / (1 + torch.exp(-(read @ weights[node][:, units:])))
        nodes.append(gate * value + (1 - gate) * carried)
    ends = [nodes[node] for node in range(cell.num_nodes) if node not in cell.inputs]
    return torch.stack(ends).mean(dim=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_shared_language_model_is_that_of_its_cell(seed: int) -> None:
    cell = RecurrentSpace(5).uniform(np.random.default_rng(seed))
    shared = SharedLanguageModel(num_nodes=5, units=6, vocabulary_size=9, seed=seed)
    words = torch.randint(9, (5, 3), generator=torch.Generator().manual_seed(seed))
    losses = []
    for sequence in words.unbind(1):
        state = torch.zeros(6)
        for read, predicted in pairwise(sequence):
            state = plain_state(cell, shared.embedding.weight[read], state, shared.weights_of(cell))
            scores = shared.embedding.weight @ state
            losses.append(functional.cross_entropy(scores, predicted))
    found = shared(cell, words)
    assert_close(found, torch.stack(losses).mean())
    model = shared.network_of(cell, steps=4)
    assert isinstance(model, LanguageModel)
    assert_close(model(words), found)
    found.backward()
    used = {f"weights.node{node}_reads{read}" for node, read in enumerate(cell.inputs, start=1)}
    assert set(gradients(shared)) == used | {"first", "embedding.weight"}


def test_the_seed_decides_the_weights_and_leaves_other_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    one, same = (SharedLanguageModel(num_nodes=2, units=3, vocabulary_size=4) for _ in range(2))
    assert torch.equal(one.first, same.first)
    networks = [SharedImageNetwork(num_blocks=1, filters=2, seed=seed) for seed in (1, 1, 2)]
    weights = [network.get_parameter("classifier.layer.weight") for network in networks]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    networks[0].network_of(ConvolutionalSpace(1).uniform(np.random.default_rng(0)))
    assert torch.equal(torch.random.get_rng_state(), before)
