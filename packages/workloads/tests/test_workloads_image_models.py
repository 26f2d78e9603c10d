"""Networks of images: what the papers say of them, and what their cells compute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from model_checks import parameter_count, parameters_without_gradient
from placeto_workloads import (
    NASNET_A,
    Block,
    ConvolutionalArchitecture,
    ConvolutionalCell,
    Operation,
    TrainingStep,
    UniformSampler,
    WorkloadError,
    enas_image_network,
    inception_v3,
    nasnet,
)
from placeto_workloads.models.cell_network import Cell, FactorisedReduction, PlannedCell


def multiply_adds_per_image(step: TrainingStep) -> float:
    images, _ = step.example_inputs
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(step)(images)
    return float(counter.get_total_flops()) / 2 / len(images)


def network(step: TrainingStep) -> nn.Module:
    return step.model.get_submodule("network")


def output_shapes(step: TrainingStep, names: list[str]) -> list[tuple[int, ...]]:
    """Return the shapes that modules of the network give, without the batch."""
    shapes: list[tuple[int, ...]] = []
    for name in names:
        module = network(step).get_submodule(name)
        module.register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape[1:])))
    step.model(*step.example_inputs)
    return shapes


def small_inception() -> TrainingStep:
    return inception_v3(batch_size=2, image_size=75, num_classes=5, device="cpu")


def small_nasnet() -> TrainingStep:
    return nasnet(
        batch_size=3,
        image_size=32,
        num_classes=5,
        cells_per_stage=1,
        penultimate_filters=96,
        stem_filters=4,
        device="cpu",
    )


def small_network(architecture: ConvolutionalArchitecture, seed: int) -> TrainingStep:
    return enas_image_network(
        architecture,
        batch_size=4,
        image_size=8,
        cells_per_stage=1,
        filters=4,
        device="cpu",
        seed=seed,
    )


# Inception-V3 (Szegedy et al. 2015): 23.8 million parameters, and 5 billion multiply-adds, of which
# the released network has 5.7. NASNet-A (Zoph et al. 2018): table 3, 5.3 million parameters and 564
# million multiply-adds; table 1, for CIFAR-10 (6 @ 768), 3.3 million.
def test_networks_have_the_published_numbers_of_parameters() -> None:
    assert parameter_count(inception_v3()) == 23_834_568
    assert parameter_count(nasnet()) == 5_289_978
    for_cifar = enas_image_network(NASNET_A, cells_per_stage=6, filters=768 // 24)
    assert round(parameter_count(for_cifar) / 1e6, 1) == 3.3


def test_networks_cost_what_the_papers_say() -> None:
    assert multiply_adds_per_image(inception_v3(batch_size=2)) == pytest.approx(5.7e9, rel=0.01)
    assert multiply_adds_per_image(nasnet(batch_size=2)) == pytest.approx(564e6, rel=0.001)


def test_inception_v3_has_the_grid_sizes_of_table_1() -> None:
    names = ["stem", "modules_35x35", "modules_17x17", "modules_8x8"]
    assert output_shapes(inception_v3(batch_size=1), names) == [
        (192, 35, 35),
        (288, 35, 35),
        (768, 17, 17),
        (2048, 8, 8),
    ]


def test_nasnet_mobile_has_three_stages_of_four_normal_cells() -> None:
    names = [f"cells.cell{index}" for index in range(2 + 3 * 4 + 2)]
    shapes = output_shapes(nasnet(batch_size=1), names)
    stem = [(4 * 11, 56, 56), (4 * 22, 28, 28)]  # reduction cells join 4 states, normal cells 6
    first, second, third = (6 * 44, 28, 28), (6 * 88, 14, 14), (1056, 7, 7)
    reductions = (4 * 88, 14, 14), (4 * 176, 7, 7)
    assert shapes == [
        *stem,
        *[first] * 4,
        reductions[0],
        *[second] * 4,
        reductions[1],
        *[third] * 4,
    ]


@pytest.mark.parametrize("make_step", [small_inception, small_nasnet])
def test_a_small_network_gives_logits_and_learns_with_all_its_weights(
    make_step: Callable[[], TrainingStep],
) -> None:
    step = make_step()
    images, labels = step.example_inputs
    logits = network(step)(images)
    assert logits.shape == (len(images), 5)
    assert bool(torch.isfinite(logits).all())
    assert step.model(images, labels).shape == ()
    assert parameters_without_gradient(step) == []


def test_the_seed_decides_weights_and_inputs_and_nothing_else_is_touched() -> None:
    state = torch.random.get_rng_state()
    first, same_seed, other_seed = (small_network(NASNET_A, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(first.model.parameters(), same_seed.model.parameters(), strict=True)
    for first_weights, same_weights in pairs:
        assert torch.equal(first_weights, same_weights)

    assert torch.equal(first.example_inputs[0], same_seed.example_inputs[0])
    assert not torch.equal(first.example_inputs[0], other_seed.example_inputs[0])


def test_steps_are_built_without_memory_unless_a_device_is_named() -> None:
    step = nasnet()
    assert {tensor.device.type for tensor in step.example_inputs} == {"meta"}
    assert {weights.device.type for weights in step.model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        (inception_v3, {"image_size": 74}, "image_size=74, .*sizes that make a network, got"),
        (nasnet, {"image_size": 2}, "image_size=2, .*sizes that make a network, got"),
        (inception_v3, {"image_size": 2**24, "batch_size": 2**24}, "sizes that make a network"),
        (nasnet, {"penultimate_filters": 1000}, "penultimate_filters: expected a multiple of 96"),
        *(
            (
                inception_v3,
                {"batch_size": size},
                "batch_size: expected an integer from 1 to 1677721",
            )
            for size in (0, 1.5, "64", None, True, 2**40)
        ),
    ],
)
def test_sizes_that_make_no_network_are_refused(
    build: Callable[..., Any], sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        build(**sizes)


def test_a_cell_adds_and_joins_the_states_that_its_architecture_names() -> None:
    architecture = ConvolutionalCell(
        blocks=(
            Block(0, Operation.IDENTITY, 1, Operation.MAX_POOL_3),
            Block(2, Operation.AVERAGE_POOL_3, 0, Operation.IDENTITY),
        ),
        outputs=(1, 3),
    )
    cell = Cell(
        PlannedCell(architecture, filters=2, stride=1),
        previous=nn.Identity(),
        previous_channels=2,
        current=nn.Identity(),
    )
    generator = torch.Generator().manual_seed(0)
    previous, current = torch.rand(2, 1, 2, 3, 3, generator=generator)
    # An image of 3x3: the pools see all of it from the middle, and only what is there at a corner.
    output = cell(previous, current)
    assert output.shape == (1, 4, 3, 3)
    torch.testing.assert_close(output[:, :2], current)
    first = previous[0, :, 1, 1] + current[0].amax(dim=(1, 2))
    block = previous + functional.max_pool2d(current, 3, 1, 1)
    torch.testing.assert_close(block[0, :, 1, 1], first)
    torch.testing.assert_close(
        output[0, 2:, 1, 1], block[0].mean(dim=(1, 2)) + previous[0, :, 1, 1]
    )
    torch.testing.assert_close(
        output[0, 2:, 0, 0], block[0, :, :2, :2].mean(dim=(1, 2)) + previous[0, :, 0, 0]
    )


def test_a_reduction_cell_strides_on_its_inputs_only() -> None:
    architecture = ConvolutionalCell(
        blocks=(
            Block(0, Operation.IDENTITY, 1, Operation.SEPARABLE_CONVOLUTION_3),
            Block(2, Operation.IDENTITY, 2, Operation.AVERAGE_POOL_3),
        ),
        outputs=(0, 2, 3),
    )
    cell = Cell(
        PlannedCell(architecture, filters=4, stride=2),
        previous=nn.Identity(),
        previous_channels=6,
        current=nn.Identity(),
    )
    assert cell(torch.rand(2, 6, 8, 8), torch.rand(2, 4, 8, 8)).shape == (2, 12, 4, 4)


@pytest.mark.parametrize(
    ("states", "outputs", "message"),
    [
        ([], (0,), "blocks: expected at least one, got none"),
        ([(0, 1)], (), "outputs: expected at least one state"),
        ([(0, 2)], (2,), r"blocks\[0\].right: expected an index from 0 to 1, got 2"),
        ([(-1, 0)], (2,), r"blocks\[0\].left: expected an index from 0 to 1, got -1"),
        ([(0, 1)], (2, 3), r"outputs\[1\]: expected an index from 0 to 2, got 3"),
    ],
)
def test_a_cell_reads_only_states_that_are_there(
    states: list[tuple[int, int]], outputs: tuple[int, ...], message: str
) -> None:
    same = Operation.IDENTITY
    with pytest.raises(WorkloadError, match=message):
        ConvolutionalCell(tuple(Block(left, same, right, same) for left, right in states), outputs)


@pytest.mark.parametrize("side", [4, 5])
def test_a_factorised_reduction_reads_even_and_odd_pixels(side: int) -> None:
    layer = FactorisedReduction(2, 5).eval()
    image = torch.rand(1, 2, side, side).requires_grad_()
    reduced = layer(image)
    assert reduced.shape == (1, 5, (side + 1) // 2, (side + 1) // 2)
    reduced.sum().backward()
    assert image.grad is not None
    both_even_or_both_odd = [
        [row, column] for row in range(side) for column in range(row % 2, side, 2)
    ]
    assert torch.nonzero(image.grad[0, 0]).tolist() == both_even_or_both_odd


@settings(max_examples=15, deadline=None)
@given(seed=strategies.integers(0, 2**32))
def test_every_sampled_architecture_learns_with_all_its_weights(seed: int) -> None:
    architecture = UniformSampler(num_blocks=3).convolutional_cells(np.random.default_rng(seed))
    step = small_network(architecture, seed)
    assert network(step)(step.example_inputs[0]).shape == (4, 10)
    assert parameters_without_gradient(step) == []
