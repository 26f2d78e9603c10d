"""Search spaces as choices, and the sampler of a training."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from placeto_workloads import (
    Activation,
    Block,
    ControllerSampler,
    ConvolutionalSpace,
    Operation,
    RecurrentCell,
    RecurrentSpace,
    SearchSpace,
    WorkloadError,
    cell_with_loose_ends,
    family,
)
from placeto_workloads.families.trajectory import shipped_choices


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
        chosen = family(name, seed=1, sampler=sampler)
        found = [member.architecture for member in (*chosen.training, *chosen.test)]
        assert set(found) <= set(sampler.architectures[space])
        assert len(set(found)) == 32  # none is in both halves, though every other one is the first
        assert family(name, seed=1, sampler=sampler) == chosen


def test_an_architecture_comes_again_only_where_there_is_no_other() -> None:
    chosen = family("ptb", sampler=Repeated(31))
    assert len({member.architecture for member in (*chosen.training, *chosen.test)}) == 31


@pytest.mark.parametrize("base", ["ptb", "cifar10"])
def test_a_family_of_a_controller_has_a_name_of_its_own(base: str) -> None:
    named, meant = family(f"{base}-enas", seed=2), family(base, seed=2, sampler=ControllerSampler())
    for ours, theirs in ((named.training, meant.training), (named.test, meant.test)):
        assert [each.architecture for each in ours] == [each.architecture for each in theirs]
        assert [each.sizes for each in ours] == [each.sizes for each in theirs]
        numbers = [each.name.rpartition("-")[2] for each in theirs]
        assert [each.name for each in ours] == [f"{base}-enas-{number}" for number in numbers]


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
