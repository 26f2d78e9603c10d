"""Families: what is drawn, how it is split, and what its graphs are like."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placeto_workloads import (
    Activation,
    Family,
    FamilyMember,
    UniformSampler,
    WorkloadError,
    family,
    family_names,
)

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


def members(of: Family) -> list[FamilyMember]:
    return sorted((*of.training, *of.test), key=lambda member: member.name)


@pytest.mark.parametrize("name", family_names())
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_family_is_32_different_models_half_of_them_for_training(name: str, seed: int) -> None:
    chosen = family(name, seed=seed)
    assert (len(chosen.training), len(chosen.test)) == (16, 16)
    models = {(str(dict(m.sizes)), m.architecture) for m in members(chosen)}
    assert len(models) == len({m.name for m in members(chosen)}) == 32


@pytest.mark.parametrize("name", family_names())
def test_the_seed_decides_the_models_and_the_split(name: str) -> None:
    assert family(name, seed=5) == family(name, seed=5)
    one, other = family(name, seed=5), family(name, seed=6)
    assert [m.sizes for m in members(one)] != [m.sizes for m in members(other)]
    assert {m.name for m in one.training} != {m.name for m in other.training}


@pytest.mark.parametrize("name", sorted(RANGES))
def test_sizes_are_uniform_over_the_whole_range(name: str) -> None:
    drawn = [member.sizes for seed in range(40) for member in members(family(name, seed=seed))]
    for size, (least, most) in RANGES[name].items():
        values = np.array([sizes[size] for sizes in drawn])
        assert (least, most) == (values.min(), values.max()) or most - least > 100
        assert least <= values.min()
        assert values.max() <= most
        spread = most - least
        quarters = np.histogram(values, bins=4, range=(least - 0.5, most + 0.5))[0]
        # 1,280 draws: a quarter is 320 of them, with a standard deviation of about 15.
        assert np.abs(quarters - 320).max() < 75 + 1280 / spread
    for sizes in drawn:
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
