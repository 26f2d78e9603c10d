"""The policy in the box: `place` starts from it, `train` goes on from it."""

from pathlib import Path

import numpy as np
import pytest

from command_runs import build_profile, fail, succeed, succeed_json
from placeto.placing.placements import PlaceSettings, place_problem, search_problem, zero_shot
from placeto.progress import PlainProgress
from placeto_baselines import CriticalPathPlacer, Heft, MEtf, MSct, SingleDevice
from placeto_graphs import load_problem
from placeto_policy import PlacetoPlacer, load_policy, load_pretrained
from placeto_simulator import Simulator


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return build_profile(tmp_path)


@pytest.mark.parametrize("cluster", ["1xcpu+2xk80", "12xa100"])
def test_it_places_on_any_number_and_kind_of_devices(cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    sizes = ["--batch-size=4", "--set=steps=2", "--set=units=8", "--set=vocabulary_size=9"]
    succeed("build", "nmt-2", *sizes, "--groups=12", "--cluster", cluster, "-o", path)
    read = load_problem(path)
    report = succeed_json(
        "place", path, "--placer", "pretrained", "-o", tmp_path / "placement.json"
    )
    starts = (SingleDevice(), CriticalPathPlacer(), Heft(), MEtf(), MSct())
    placer = PlacetoPlacer(
        policy=load_pretrained(), num_rollouts=15, starts=starts, refinement_rounds=2
    )
    expected = placer.place(read, Simulator(read))
    passes = PlacetoPlacer(policy=load_pretrained(), num_rollouts=15).place(read, Simulator(read))
    others = [each.place(read, Simulator(read)).runtime for each in starts]
    assert report["runtime"] == expected.runtime <= min(passes.runtime, *others)
    assert report["evaluations"] == expected.evaluations


def test_a_search_starts_from_it_if_told_so(problem: Path, tmp_path: Path) -> None:
    finest = search_problem(load_problem(problem))
    place = ["place", problem, "--force", "-o", tmp_path / "placement.json"]
    usual, named, nothing = (
        succeed_json(*place, "--max-evaluations=300", *more)
        for more in ([], ["--start=pretrained"], ["--start=nothing"])
    )
    progress = PlainProgress(None)
    from_policy, alone, few, few_alone = (
        place_problem(finest, PlaceSettings(max_evaluations=count, start=start), progress).result
        for count in (300, 50)  # few are left to the search
        for start in ("pretrained", "nothing")
    )
    assert few.placement.tolist() == few_alone.placement.tolist()
    coarse, placed = zero_shot(finest, progress) or pytest.fail("expected a placement")
    assert named["runtime"] == from_policy.runtime
    assert named["evaluations"] == from_policy.evaluations <= 300
    assert named["placer"] == "pretrained, multilevel"
    for report in (usual, nothing):
        assert report["runtime"] == alone.runtime
        assert report["placer"] == "multilevel"
    assert from_policy.runtime <= placed.runtime
    assert coarse.num_groups <= 128


def test_a_training_begins_with_it(problem: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    train = ["train", problem, "--updates=1", "--hparam=workers=2"]
    succeed(*train, "--from", "pretrained", "-o", folder)
    first = load_policy(folder / "first-policy.safetensors").state_dict()
    pretrained = load_pretrained().state_dict()
    assert all(np.array_equal(first[name], pretrained[name]) for name in pretrained)
    learned = load_policy(folder / "training.safetensors").state_dict()
    largest = max(float((learned[name] - first[name]).abs().max()) for name in first)
    assert largest < 0.01  # it went on from there: another seed's weights are far from these
    succeed(*train, "--from", folder, "-o", other)
    again = load_policy(other / "first-policy.safetensors").state_dict()
    assert all(np.array_equal(again[name], learned[name]) for name in learned)


def test_what_it_cannot_begin_with_is_said_in_one_line(problem: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = ["train", problem, "--updates=1", "-o", folder]
    assert "missing: No such file" in fail(*train, "--from", "missing")
    assert "expected a placeto-policy file" in fail(*train, "--from", problem)
    assert "--hparam hidden_units: expected 96, as in the policy of --from, got 8" in fail(
        *train, "--from", "pretrained", "--hparam=hidden_units=8"
    )
    succeed(*train, "--hparam=message_rounds=2", "--hparam=hidden_units=8")
    three, other = tmp_path / "three.json", tmp_path / "other"
    succeed("build", problem, "--cluster=3xv100", "-o", three)
    message = "expected 2 devices, as the policy of --from is for, got 3"
    assert message in fail("train", three, "--updates=1", "--from", folder, "-o", other)
    place = ["place", problem, "-o", tmp_path / "placement.json"]
    assert "--start: excludes --placer and --policy" in fail(
        *place, "--start=nothing", "--placer=single"
    )
    assert not (tmp_path / "placement.json").exists()
    assert not other.exists()
