"""Search spaces as choices, files of architectures, and the sampler of a training."""

from collections import Counter
from pathlib import Path

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
    Trajectory,
    WorkloadError,
    cell_with_loose_ends,
    family,
    load_trajectory,
    save_trajectory,
)
from placeto_workloads.families.trajectory import shipped_trajectory


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
        ([4] + [0] * 22, r"choices\[0\]: expected a number from 0 to 3, got 4"),
        ([0, 1] + [0] * 21, r"choices\[1\]: expected a number from 0 to 0, got 1"),
        ([0] * 22 + [-1], r"choices\[22\]: expected a number from 0 to 3, got -1"),
    ],
)
def test_choices_that_are_none_are_refused(choices: list[int], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        RecurrentSpace().architecture(choices)
    with pytest.raises(WorkloadError, match="num_nodes: expected an integer from 1"):
        RecurrentSpace(0)


@pytest.mark.parametrize("name", ["architectures.json", "architectures.json.gz"])
def test_a_trajectory_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    space = RecurrentSpace(3)
    choices = np.array([[2, 0, 3, 1, 0], [0, 0, 1, 0, 2], [3, 0, 0, 1, 1]], np.int16)
    rounds, rewards = np.array([0, 0, 1], np.int32), np.array([0.25, 0.5, 1.0])
    saved = Trajectory(space, rounds, choices, rewards, {"data": "none", "units": 4})
    save_trajectory(saved, tmp_path / name)
    loaded = load_trajectory(tmp_path / name)
    assert loaded.space == saved.space
    assert dict(loaded.task) == dict(saved.task)
    for field in ("rounds", "choices", "rewards"):
        np.testing.assert_array_equal(getattr(loaded, field), getattr(saved, field))
    assert loaded.architecture(2).inputs == (0, 1)  # type: ignore[union-attr]


VALID = (
    '{"format":"placeto-architectures","version":1,"space":"recurrent","num_nodes":2,"task":{},'
    '"rounds":[0],"choices":[[2,0,3]],"rewards":[0.5]}'
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("placeto-architectures", "other", "expected format 'placeto-architectures'"),
        ('"version":1', '"version":2', "version 1, got 'placeto-architectures', 2"),
        ('"recurrent"', '"macro"', "space: expected convolutional or recurrent, got 'macro'"),
        ("[2,0,3]", "[2,0]", "choices: expected as many small numbers"),
        ("[2,0,3]", "[2,0,99999]", "choices: expected as many small numbers"),
        ("[2,0,3]", "[2,1,3]", r"choices\[0\]\[1\]: expected a number from 0 to 0, got 1"),
        ("[0.5]", "[0.5, 0.25]", "expected 1 of 3 choices each"),
        ('"rounds":[0],', "", "missing required field `rounds`"),
        ('"task":{}', '"task":{},"more":1', "unknown field `more`"),
        (VALID, "no JSON", "expected a placeto-architectures file"),
        (VALID, "", "expected a placeto-architectures file"),
    ],
)
def test_files_of_architectures_that_are_none_are_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "architectures.json"
    path.write_text(VALID)
    assert len(load_trajectory(path)) == 1
    assert old in VALID
    path.write_text(VALID.replace(old, new))
    with pytest.raises(WorkloadError, match=message) as caught:
        load_trajectory(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_packed_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "architectures.json.gz"
    with pytest.raises(WorkloadError, match="No such file"):
        load_trajectory(path)
    path.write_text(VALID)
    with pytest.raises(WorkloadError, match=r"architectures\.json\.gz: expected a packed file"):
        load_trajectory(path)


def test_a_trajectory_checks_what_it_holds() -> None:
    rounds, rewards = np.zeros(1, np.int32), np.zeros(1)
    with pytest.raises(WorkloadError, match=r"choices\[0\]\[2\]: expected .* 0 to 3, got 4"):
        Trajectory(RecurrentSpace(2), rounds, np.array([[0, 0, 4]], np.int16), rewards, {})


def uniform(space: SearchSpace, count: int, repeated: int = 1) -> Trajectory:
    generator = np.random.default_rng(0)
    rows = [generator.integers(space.counts) for _ in range(count)]
    rows += [rows[0]] * (repeated - 1)
    return Trajectory(
        space,
        np.zeros(len(rows), np.int32),
        np.array(rows, np.int16).reshape(len(rows), -1),
        np.zeros(len(rows)),
        {},
    )


def test_families_are_of_architectures_that_a_training_passed_through() -> None:
    sampler = ControllerSampler(
        uniform(ConvolutionalSpace(), 40, 40),
        uniform(RecurrentSpace(), 40, 40),
    )
    for name, trajectory in (("ptb", sampler.recurrent), ("cifar10", sampler.convolutional)):
        assert trajectory is not None
        passed = {trajectory.architecture(index) for index in range(40)}
        chosen = family(name, seed=1, sampler=sampler)
        found = [member.architecture for member in (*chosen.training, *chosen.test)]
        assert set(found) <= passed
        assert len(set(found)) == 32  # none is in both halves, though every other one is the first
        assert family(name, seed=1, sampler=sampler) == chosen


def test_an_architecture_comes_again_only_where_there_is_no_other() -> None:
    sampler = ControllerSampler(recurrent=uniform(RecurrentSpace(), 31))
    chosen = family("ptb", sampler=sampler)
    assert len({member.architecture for member in (*chosen.training, *chosen.test)}) == 31


@pytest.mark.parametrize("base", ["ptb", "cifar10"])
def test_a_family_of_a_controller_has_a_name_of_its_own(base: str) -> None:
    named, meant = family(f"{base}-enas", seed=2), family(base, seed=2, sampler=ControllerSampler())
    for ours, theirs in ((named.training, meant.training), (named.test, meant.test)):
        assert [each.architecture for each in ours] == [each.architecture for each in theirs]
        assert [each.sizes for each in ours] == [each.sizes for each in theirs]
        numbers = [each.name.rpartition("-")[2] for each in theirs]
        assert [each.name for each in ours] == [f"{base}-enas-{number}" for number in numbers]


def test_an_architecture_that_was_sampled_often_is_drawn_often() -> None:
    sampler = ControllerSampler(recurrent=uniform(RecurrentSpace(), 4, repeated=5))
    generator = np.random.default_rng(0)
    drawn = Counter(sampler.recurrent_cell(generator) for _ in range(2_000))
    assert sorted(count / 2_000 for count in drawn.values()) == pytest.approx(
        [1 / 8, 1 / 8, 1 / 8, 5 / 8], abs=0.04
    )


@pytest.mark.parametrize("space", [ConvolutionalSpace(), RecurrentSpace()])
def test_the_shipped_trainings_are_of_the_families_spaces(space: SearchSpace) -> None:
    trajectory = shipped_trajectory(space.name)
    assert trajectory.space == space
    rows = trajectory.choices.tolist()
    assert len({tuple(row) for row in rows}) > 100
    assert trajectory.rewards[-100:].mean() > trajectory.rewards[:100].mean()
    sampler, generator = ControllerSampler(), np.random.default_rng(0)
    is_recurrent = space.name == "recurrent"
    draw = sampler.recurrent_cell if is_recurrent else sampler.convolutional_cells
    assert draw(generator) in map(trajectory.architecture, range(len(trajectory)))


def test_samplers_refuse_trainings_that_do_not_fit() -> None:
    recurrent, empty = (
        uniform(RecurrentSpace(), 2),
        uniform(RecurrentSpace(), 1),
    )
    empty = Trajectory(RecurrentSpace(), empty.rounds[:0], empty.choices[:0], empty.rewards[:0], {})
    with pytest.raises(WorkloadError, match=r"convolutional: expected .* space, got recurrent"):
        ControllerSampler(convolutional=recurrent)
    with pytest.raises(WorkloadError, match="recurrent: expected architectures, got none"):
        ControllerSampler(recurrent=empty)
