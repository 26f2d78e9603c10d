"""Families: what is drawn, how it is split, and what its graphs are like."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placeto_workloads import (
    Activation,
    Block,
    ControllerSampler,
    ConvolutionalSpace,
    Family,
    FamilyMember,
    Operation,
    RecurrentCell,
    RecurrentSpace,
    SearchSpace,
    UniformSampler,
    WorkloadError,
    cell_with_loose_ends,
    family,
    family_names,
    training_step,
)
from placeto_workloads.families.trajectory import shipped_choices

RANGES = {
    "nmt": {"steps": (16, 32), "batch_size": (64, 128)},
    "ptb": {"steps": (25, 40), "batch_size": (1536, 3072)},
    "cifar10": {"batch_size": (240, 360)},
}
FIXED = {
    "nmt": {"layers": 2, "units": 1024, "vocabulary_size": 32_000},
    "ptb": {"units": 748, "vocabulary_size": 10_000},
    "cifar10": {"image_size": 32, "num_classes": 10, "cells_per_stage": 5, "filters": 36},
}
SMALL: dict[str, dict[str, Any]] = {
    "nmt": {"units": 4, "vocabulary_size": 10},
    "ptb": {"units": 4, "vocabulary_size": 10},
    "cifar10": {"filters": 4},
}


def members(models: Family) -> list[FamilyMember]:
    return sorted((*models.training, *models.test), key=lambda member: member.name)


@pytest.mark.parametrize("name", family_names())
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_family_is_32_different_models_half_of_them_for_training(name: str, seed: int) -> None:
    chosen = family(name, seed=seed)
    assert (len(chosen.training), len(chosen.test)) == (16, 16)
    models = {(str(dict(member.sizes)), member.architecture) for member in members(chosen)}
    assert len(models) == len({member.name for member in members(chosen)}) == 32


@pytest.mark.parametrize("name", family_names())
def test_the_seed_decides_the_models_and_the_split(name: str) -> None:
    assert family(name, seed=5) == family(name, seed=5)
    first, second = family(name, seed=5), family(name, seed=6)
    first_sizes = [member.sizes for member in members(first)]
    assert first_sizes != [member.sizes for member in members(second)]
    first_names = {member.name for member in first.training}
    assert first_names != {member.name for member in second.training}


@pytest.mark.parametrize("name", sorted(RANGES))
def test_sizes_are_uniform_over_the_whole_range(name: str) -> None:
    sampled_sizes = [
        member.sizes for seed in range(40) for member in members(family(name, seed=seed))
    ]
    for size, (minimum, maximum) in RANGES[name].items():
        values = np.array([sizes[size] for sizes in sampled_sizes])
        assert (minimum, maximum) == (values.min(), values.max()) or maximum - minimum > 100
        assert minimum <= values.min()
        assert values.max() <= maximum
        spread = maximum - minimum
        quarters = np.histogram(values, bins=4, range=(minimum - 0.5, maximum + 0.5))[0]
        # 1,280 draws: a quarter is 320 of them, with a standard deviation of about 15.
        assert np.abs(quarters - 320).max() < 75 + 1280 / spread
    for sizes in sampled_sizes:
        assert {size: sizes[size] for size in FIXED[name]} == FIXED[name]
        assert set(sizes) == {*FIXED[name], *RANGES[name]}


@pytest.mark.parametrize("name", family_names())
def test_a_family_graph_runs(name: str) -> None:
    member = family(name, **SMALL[name.removesuffix("-enas")]).test[0]
    small = replace(member, sizes={**member.sizes, "batch_size": 2})
    step = small.training_step(device="cpu", seed=1)
    loss = step.model(*step.example_inputs)
    assert loss.shape == ()
    assert bool(loss.detach().isfinite())


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("imagenet", {}, "one of nmt, ptb, cifar10, ptb-enas, cifar10-enas, got 'imagenet'"),
        ("nmt", {"steps": 3}, "nmt: expected sizes among units, vocabulary_size, got 'steps'"),
        ("nmt", {"layers": 3}, "nmt: expected sizes among units, vocabulary_size, got 'layers'"),
    ],
)
def test_what_is_not_known_is_refused(name: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        family(name, **sizes)


def test_the_uniform_sampler_draws_every_choice_equally_often() -> None:
    sampler, generator = UniformSampler(), np.random.default_rng(0)
    cells = [sampler.recurrent_cell(generator) for _ in range(500)]
    activations = Counter(activation for cell in cells for activation in cell.activations)
    assert [activations[choice] / 6000 for choice in Activation] == pytest.approx(
        [0.25] * 4, abs=0.03
    )
    last_inputs = Counter(cell.inputs[-1] for cell in cells)
    assert [last_inputs[node] / 500 for node in range(11)] == pytest.approx([1 / 11] * 11, abs=0.06)
    networks = [sampler.convolutional_cells(generator) for _ in range(250)]
    blocks = [block for network in networks for block in network.reduction.blocks]
    operations = Counter(block.left_operation for block in blocks)
    assert sorted(operations.values()) == pytest.approx([250] * 5, abs=60)
    assert Counter(block.right for block in blocks[4::5]).keys() == set(range(6))


# Search spaces as choices, and the sampler of a training.


def test_choices_are_states_and_operations_in_order() -> None:
    cells = ConvolutionalSpace(1).architecture([0, 1, 0, 4, 1, 1, 2, 2])
    assert cells.normal == cell_with_loose_ends(
        (Block(0, Operation.IDENTITY, 1, Operation.MAX_POOL_3),)
    )
    assert cells.reduction.blocks[0].right_operation is Operation.SEPARABLE_CONVOLUTION_5
    cell = RecurrentSpace(3).architecture([2, 0, 3, 1, 0])
    chosen = (Activation.TANH, Activation.RELU, Activation.IDENTITY)
    assert cell == RecurrentCell(chosen, inputs=(0, 1))


def test_the_spaces_have_the_sizes_of_the_publication() -> None:
    # Pham et al. (2018): 4 to the 12th times 11! cells, and for each of two convolutional cells
    # (5 operations, twice) for 5 blocks with 2, 3, 4, 5, 6 states to read, twice.
    recurrent = np.prod(np.array(RecurrentSpace().counts, float))
    assert recurrent == 4.0**12 * np.prod(np.arange(1.0, 12.0))
    cells = np.prod(np.array(ConvolutionalSpace().counts, float))
    assert cells == pytest.approx((25.0**5 * 720.0**2) ** 2)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([0, 0, 0, 0], "choices: expected 23, got 4"),
        ([0, 1] + [0] * 21, r"choices\[1\]: expected an index from 0 to 0, got 1"),
        ([0] * 22 + [-1], r"choices\[22\]: expected an index from 0 to 3, got -1"),
    ],
)
def test_choices_that_are_none_are_refused(choices: list[int], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        RecurrentSpace().architecture(choices)
    with pytest.raises(WorkloadError, match="num_nodes: expected an integer from 1"):
        RecurrentSpace(0)


class Repeated:
    """Samples some architectures of each space, of which one stands there often."""

    def __init__(self, count: int, repeated: int = 1) -> None:
        generator = np.random.default_rng(0)
        self.architectures: dict[str, list[Any]] = {}
        for space in (RecurrentSpace(), ConvolutionalSpace()):
            rows = [generator.integers(space.counts).tolist() for _ in range(count)]
            rows += [rows[0]] * (repeated - 1)
            self.architectures[space.name] = [space.architecture(row) for row in rows]

    def recurrent_cell(self, generator: np.random.Generator) -> Any:
        cells = self.architectures["recurrent"]
        return cells[generator.integers(len(cells))]

    def convolutional_cells(self, generator: np.random.Generator) -> Any:
        cells = self.architectures["convolutional"]
        return cells[generator.integers(len(cells))]


def test_families_are_of_architectures_that_the_sampler_has() -> None:
    sampler = Repeated(40, repeated=40)
    for name, space in (("ptb", "recurrent"), ("cifar10", "convolutional")):
        sampled_family = family(name, seed=1, sampler=sampler)
        architectures = {member.architecture for member in members(sampled_family)}
        assert architectures <= set(sampler.architectures[space])
        # None is in both halves, though every other one is the first.
        assert len(architectures) == 32
        assert family(name, seed=1, sampler=sampler) == sampled_family


def test_an_architecture_comes_again_only_where_there_is_no_other() -> None:
    chosen = family("ptb", sampler=Repeated(31))
    assert len({member.architecture for member in members(chosen)}) == 31


@pytest.mark.parametrize("base", ["ptb", "cifar10"])
def test_a_family_of_a_controller_has_a_name_of_its_own(base: str) -> None:
    named_family = family(f"{base}-enas", seed=2)
    expected_family = family(base, seed=2, sampler=ControllerSampler())
    for half in ("training", "test"):
        pairs = zip(getattr(named_family, half), getattr(expected_family, half), strict=True)
        for member, expected in pairs:
            assert member.architecture == expected.architecture
            assert member.sizes == expected.sizes
            assert member.name == expected.name.replace(base, f"{base}-enas")


@pytest.mark.parametrize("space", [ConvolutionalSpace(), RecurrentSpace()])
def test_an_architecture_of_a_training_is_drawn_as_often_as_it_was_evaluated(
    space: SearchSpace,
) -> None:
    choices = shipped_choices(space.name)
    assert choices.shape[1] == len(space.counts)
    often = Counter(space.architecture(row.tolist()) for row in choices)
    assert len(often) > 100
    sampler, generator = ControllerSampler(), np.random.default_rng(0)
    draw = sampler.recurrent_cell if space.name == "recurrent" else sampler.convolutional_cells
    drawn: Counter[Any] = Counter(draw(generator) for _ in range(4_000))
    assert drawn.keys() <= often.keys()
    cell, count = often.most_common(1)[0]
    assert drawn[cell] / 4_000 == pytest.approx(count / len(choices), abs=0.02)


# Models by name.


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("resnet", {}, "name: expected one of inception-v3, nasnet, nmt-2, nmt-4, got 'resnet'"),
        ("nmt-2", {"image_size": 3}, "nmt-2: expected sizes among steps, batch_size, units, voc"),
        ("nmt-2", {"layers": 3}, "nmt-2: expected sizes among .*, got 'layers'"),  # its name has it
        ("nmt-2", {"steps": 1.5}, "steps: expected an integer from 1 to"),
    ],
)
def test_sizes_of_a_model_that_are_not_known_are_refused(
    name: str, sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        training_step(name, **sizes)
