"""``placeto train``: stopped, killed, resumed, in two processes; the bundled pretrained policy."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from command_runs import (
    PATIENCE,
    build_profile,
    check_picture,
    environment,
    fail,
    invoke,
    profile,
    start_paused,
    succeed,
    succeed_json,
)
from placeto.placing.place_problem import PlaceSettings, place_problem, search_problem, zero_shot
from placeto.progress import PlainProgress
from placeto.trials.folder import files_digest
from placeto_baselines import CpuOnly, CriticalPathPlacer, Heft, MEtf, MSct, SingleDevice
from placeto_graphs import Placer, load_placement, load_placement_of_any_level, load_problem
from placeto_policy import (
    PlacetoPlacer,
    Settings,
    Trainer,
    UpdateSummary,
    load_policy,
    load_pretrained,
    save_policy,
)
from placeto_simulator import Simulator

UPDATES = 12
SMALL = [
    *("--hparam=message_rounds=2", "--hparam=hidden_units=8"),
    *("--hparam=minibatches=2", "--hparam=epochs=1", "--seed=5"),
]


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_profile(tmp_path_factory.mktemp("problem"))


@pytest.fixture(scope="module")
def whole(problem: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "whole"
    succeed("train", problem, f"--updates={UPDATES}", *SMALL, "-o", folder)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return what was logged of each update, but what a clock said."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for row in rows:
        del row["evaluations_per_second"]
    return rows


def checkpoint_of(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the metadata and the tensors of a checkpoint, which its file has in any order."""
    with safe_open(folder / "training.safetensors", framework="np") as file:
        tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        return file.metadata(), tensors


def check_equal(folder: Path, whole: Path) -> None:
    """Check that two trainings came to the same, to the last bit."""
    assert checkpoint_of(folder) == checkpoint_of(whole)
    name = "placement-0.json"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert log_of(folder) == log_of(whole)


def test_a_training_leaves_a_policy_logs_and_placements(
    whole: Path, problem: Path, tmp_path: Path
) -> None:
    read = load_problem(problem)
    rows = log_of(whole)
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    episodes, validations = UPDATES * 8, 2  # after the tenth update and the last one
    looked = 1 + read.num_groups
    sampled = episodes * (looked + read.num_groups) + validations * looked
    assert rows[-1]["evaluations"] == sampled
    best = load_placement(whole / "placement-0.json", read)
    assert Simulator(read).runtimes(best[None])[0] == rows[-1]["best_runtime"]
    assert list((whole / "tensorboard").iterdir())
    assert load_problem(whole / "problem-0.json.gz") == read
    assert json.loads((whole / "run.json").read_text())["problems"] == [str(problem)]
    succeed("plot", "curves", whole, "-o", tmp_path / "curves.png")
    (axes,) = check_picture(tmp_path / "curves.png", width=900).axes
    end = np.asarray(axes.lines[0].get_xydata())[-1]
    assert end.tolist() == [sampled, rows[-1]["best_runtime"]]


def test_the_policy_places_as_it_is_refined_trained_further_or_before_a_search(
    whole: Path, problem: Path, tmp_path: Path
) -> None:
    read, policy = load_problem(problem), load_policy(whole / "training.safetensors")
    placement = tmp_path / "placement.json"

    def placed(*options: str) -> Any:
        place = ["place", problem, "--policy", whole, "--force", "-o", placement]
        return succeed_json(*place, *options)

    report = placed("--rollouts=4", "--refinement-rounds=1")
    expected = PlacetoPlacer(policy=policy, num_rollouts=4, refinement_rounds=1).place(
        read, Simulator(read)
    )
    one_pass = 1 + read.num_groups
    assert report["runtime"] == expected.runtime
    assert report["evaluations"] == 5 * one_pass + read.num_groups
    assert load_placement(placement, read).tolist() == expected.placement.tolist()
    greedy, usual = placed("--refinement-rounds=0"), placed()
    assert greedy["evaluations"] == one_pass
    assert one_pass < usual["evaluations"] <= one_pass + 10 * read.num_groups
    assert usual["runtime"] <= greedy["runtime"]
    further = placed("--max-evaluations=200")
    assert usual["evaluations"] < further["evaluations"] <= 200 + usual["evaluations"] + one_pass
    searched = placed("--seconds=0.5")
    limit = 1.01 * greedy["runtime"]  # a device alone may be written if it is 1 % slower
    assert searched["lower_bound"] <= searched["runtime"] <= limit
    finer, placement_of_finer = load_placement_of_any_level(placement, read)
    assert finer.num_groups == searched["groups"]
    assert Simulator(finer).runtimes(placement_of_finer[None])[0] == searched["runtime"]
    for keeps in (True, False):  # a search after a policy is never worse, however short
        settings = PlaceSettings(
            policy=policy, refinement_rounds=0, seconds=1e-6, keeps_groups=keeps
        )
        result = place_problem(read, settings, PlainProgress(None)).result
        assert result.runtime <= limit
        assert (np.diff(result.curve, axis=0) * (1, -1) >= 0).all()


@pytest.mark.slow
def test_a_killed_training_is_resumed_as_if_nothing_had_happened(
    problem: Path, whole: Path, tmp_path: Path
) -> None:
    folder, only_problems = tmp_path / "killed", tmp_path / "begun"
    train = ["train", problem, f"--updates={UPDATES}", *SMALL, "--checkpoint-every=3"]
    paused = start_paused(tmp_path / "pause", 4, *train, "-o", folder)
    for forced in ([], ["--force"]):
        assert f"{folder}: another process uses it" in fail(*train, "-o", folder, *forced)
    paused.send(signal.SIGKILL)
    assert paused.process.returncode == -signal.SIGKILL
    assert len(log_of(folder)) == 4
    # Killed before that, it may have left problems alone.
    only_problems.mkdir()
    shutil.copy(folder / "problem-0.json.gz", only_problems)
    succeed(*train, "-o", only_problems)
    check_equal(only_problems, whole)
    report = succeed_json(*train, "-o", folder)
    assert report["updates"] == report["of_updates"] == UPDATES
    check_equal(folder, whole)
    assert succeed_json(*train, "-o", folder) == report  # nothing is left to do


def test_ctrl_c_stops_at_a_checkpoint(problem: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    train = ["train", problem, f"--updates={UPDATES}", *SMALL, "-o", folder]
    update = Trainer.update

    def update_and_stop(trainer: Trainer) -> UpdateSummary:
        summary = update(trainer)
        if trainer.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return summary

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "update", update_and_stop)
        result = invoke(*train)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == (
        f"placeto: error: stopped after update 3 of {UPDATES}; run the same command again to resume"
    )
    assert len(log_of(folder)) == 3
    text = succeed(*train)
    assert f"{UPDATES} updates" in text
    check_equal(folder, whole)


@pytest.mark.parametrize(
    "devices", [["--cluster=3xv100"], ["--cluster=2xv100", "--what-if=+1xv100"]]
)
def test_a_policy_of_other_devices_is_refused_by_its_name(
    devices: list[str], whole: Path, problem: Path, tmp_path: Path
) -> None:
    graph = problem.with_name("graph.txt")
    error = fail("place", graph, *devices, "--policy", whole, "-o", tmp_path / "placement.json")
    assert (
        f"{whole}: policy: expected a problem of 2 devices, for which it was made, got 3" in error
    )


def test_a_general_policy_learns_on_some_devices_and_places_on_others(tmp_path: Path) -> None:
    problems = []
    for count in (2, 3, 4):
        problems.append(tmp_path / f"problem-{count}.json")
        build = ["build", tmp_path / "graph.txt", f"--cluster={count}xv100"]
        (tmp_path / "graph.txt").write_text(profile(6 + 4 * count))
        succeed(*build, "-o", problems[-1])
    folder, placement = tmp_path / "general", tmp_path / "placement.json"
    train = ["train", *problems[:2], *SMALL]
    report = succeed_json(*train, "--preset=general", "--updates=1", "-o", folder)
    # Several graphs have more granularities.
    counts = ((problems[0], 10), (problems[0], 13), (problems[1], 13), (problems[1], 16))
    coarser_problems = [f"{path} in {groups} groups" for path, groups in counts]
    assert list(report["best"]) == [*map(str, problems[:2]), *coarser_problems]
    assert report["fits"] == dict.fromkeys(report["best"], True)
    for index, path in enumerate(problems[:2]):
        read = load_problem(path)
        best = load_placement(folder / f"placement-{index}.json", read)
        assert Simulator(read).runtimes(best[None])[0] == report["best"][str(path)]
    report = succeed_json("place", problems[2], "--policy", folder, "-o", placement)
    read = load_problem(problems[2])
    best_placement = load_placement(placement, read)
    assert Simulator(read).runtimes(best_placement[None])[0] == report["runtime"]
    line = fail(*train, "-o", tmp_path / "fixed")
    assert f"problem-3.json: expected 2 devices, as {problems[0]} has, got 3; --preset gen" in line
    assert not (tmp_path / "fixed").exists()


def test_other_problems_choose_the_policy(problem: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("files", "more")]
    for layers, folder in zip((6, 7), folders, strict=True):
        folder.mkdir()
        build_profile(folder, layers)
        (folder / "graph.txt").unlink()
    files = [str(folder / "problem.json") for folder in folders]
    train = ["train", problem, *SMALL, "--updates=10"]
    run = tmp_path / "run"
    succeed(*train, "--validation", *files, "-o", run)
    validation = [Simulator(load_problem(Path(file))) for file in files]
    assert [evaluator.problem.num_groups for evaluator in validation] == [6, 7]
    read = load_problem(problem)
    sampled = 10 * 8 * (1 + 2 * read.num_groups)
    assert log_of(run)[-1]["evaluations"] == sampled + (1 + 6) + (1 + 7)  # after the tenth update
    stored = json.loads((run / "run.json").read_text())
    assert stored["validation"] == files
    settings = Settings(message_rounds=2, hidden_units=8, minibatches=2, epochs=1, updates=10)
    trainer = Trainer([Simulator(read)], settings, seed=5, validation=validation)
    for _ in range(10):
        trainer.update()
    expected = trainer.trained_policy.state_dict()
    weights = load_policy(run / "training.safetensors").state_dict()
    assert all(weights[name].equal(weight) for name, weight in expected.items())
    before = checkpoint_of(run)
    succeed(*train, "--validation", *folders, "-o", run)  # the same, as folders name them
    assert checkpoint_of(run) == before
    for others in ([], [f"--validation={files[0]}"]):
        assert "one of other PROBLEMS, validation" in fail(*train, *others, "-o", run)
    other = ["-o", tmp_path / "other"]
    copy = shutil.copy(problem, tmp_path / "copy.json")
    for same in (problem, copy):  # by whatever name
        line = fail(*train, "--validation", files[0], same, *other)
        assert f"--validation {same}: expected other problems than PROBLEMS" in line
    line = fail(*train, "--validation", files[0], "--preset=paper", *other)
    assert "--validation: needs --hparam selection=best" in line
    assert not (tmp_path / "other").exists()


def test_policies_are_compared_as_place_uses_them(
    copied: Path, problem: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    compare = ["compare", problem, "--placers=heft", "--policy", copied, "-o", results]
    (report,) = succeed_json(*compare)["problems"]
    heft, policy = report["placers"]
    assert (heft["name"], policy["title"]) == ("heft", f"Policy {copied}")
    placed = succeed_json("place", problem, "--policy", copied, "-o", tmp_path / "placement.json")
    assert policy["runs"][0]["runtime"] == placed["runtime"]
    trials = (results / "trials.jsonl").read_bytes().splitlines()
    succeed(*compare)
    assert (results / "trials.jsonl").read_bytes().splitlines() == trials
    other = load_policy(copied / "training.safetensors")
    next(other.parameters()).data += 1
    save_policy(other, copied / "training.safetensors")
    files_digest.cache_clear()  # as in another process
    succeed(*compare)  # another policy in the same folder places anew
    assert len((results / "trials.jsonl").read_bytes().splitlines()) == len(trials) + 1
    line = fail("compare", problem, "--policy", tmp_path / "missing")
    assert f"{tmp_path / 'missing'}: No such file or directory" in line


def test_the_preset_of_the_paper_has_one_granularity_and_what_does_not_fit_is_called_so(
    problem: Path, tmp_path: Path
) -> None:
    large, folder = tmp_path / "graph.txt", tmp_path / "run"
    large.write_text(profile(4, parameter_bytes=10**11))
    options = ["--updates=1", "--preset=paper", "--hparam=hidden_units=8", "--hparam=workers=2"]
    train = ["train", problem, large, *options, "-o", folder]
    lines = succeed(*train).splitlines()
    assert [line.endswith(" s, out of memory") for line in lines[:2]] == [False, True]
    assert succeed_json(*train)["fits"] == {str(problem): True, str(large): False}
    settings = json.loads((folder / "run.json").read_text())["settings"]
    assert (settings["discount"], settings["hidden_units"], settings["updates"]) == (1.0, 8, 1)


@pytest.mark.slow
def test_two_processes_of_torchrun_learn_what_one_does(problem: Path, tmp_path: Path) -> None:
    together, alone = tmp_path / "together", tmp_path / "alone"
    train: list[str | Path] = ["train", problem, "--updates=3", *SMALL, "-o"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", "placeto_tools", *train, together],
        env=environment(),
        timeout=PATIENCE,
        check=True,
    )
    succeed(*train, alone)
    # Sums over processes are rounded in another order, which draws do not see in three updates.
    for of_one_process, of_two_processes in zip(log_of(alone), log_of(together), strict=True):
        for field in ("evaluations", "best_runtime"):
            assert of_two_processes[field] == of_one_process[field]
        for field in ("entropy", "gradient_norm"):
            assert of_two_processes[field] == pytest.approx(of_one_process[field], rel=1e-3)
    assert (together / "placement-0.json").read_bytes() == (alone / "placement-0.json").read_bytes()


def test_another_training_is_only_overwritten_by_force(
    problem: Path, copied: Path, tmp_path: Path
) -> None:
    other_problem, policy = build_profile(tmp_path, num_layers=11), tmp_path / "policy.safetensors"
    begin_with = load_policy(copied / "training.safetensors")
    next(begin_with.parameters()).data += 1
    save_policy(begin_with, policy)
    train = ["train", problem, *SMALL, f"--updates={UPDATES}", "-o", copied]
    training_bytes = (copied / "training.safetensors").read_bytes()
    succeed(*train)
    first_policy = ["--preset=default", f"--from={copied}"]
    succeed(*train[:-1], tmp_path / "given", *first_policy, "--updates=1")
    again = [*train[:-1], tmp_path / "given", "--preset=default", "--updates=1"]
    different = [again, [*again, f"--from={policy}"], [*train, *first_policy], [*train, "--seed=6"]]
    different += [[*train, "--updates=2"], [*train, "--granularities=2"]]
    different += [["train", copied / "problem-0.json.gz", *train[2:]]]
    for another in different:
        assert "seed or first policy; --force replaces it" in fail(*another)
    succeed(*again, f"--from={copied}")
    assert (copied / "training.safetensors").read_bytes() == training_bytes
    surplus = [copied / "problem-7.json.gz", copied / "placement-7.json"]  # of more problems then
    for path in surplus:
        path.write_bytes(b"older")
    again = ["train", other_problem, "--updates=2", *SMALL, "-o", copied]
    succeed(*again, "--force")
    assert not any(path.exists() for path in surplus)
    assert [row["update"] for row in log_of(copied)] == [1, 2]
    (copied / "training.safetensors").write_bytes(b"x" * 100)
    assert "expected a placeto-policy file" in fail(*again)
    # The same name, and another problem in it.
    succeed("build", tmp_path / "graph.txt", "--cluster=3xv100", "--force", "-o", other_problem)
    assert "expected the training that the command describes" in fail(*again)
    (copied / "log.jsonl").write_text("{}\n")
    line = fail("plot", "curves", copied, "-o", tmp_path / "a.png")
    assert "expected what `placeto train` writes" in line
    (copied / "run.json").write_bytes(b'{"format": "x"}')
    assert "run.json: expected" in fail(*again)


def test_a_disk_that_is_full_is_a_failed_run(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("placeto.outputs.write_atomically", full)
    result = invoke("train", problem, "--updates=2", "-o", tmp_path / "run")
    assert result.exit_code == 1
    assert "run.json: No space left on device" in result.stderr
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:  # a disk that is full before the work
        line = fail("train", "missing.json", "-o", tmp_path / "other")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert line == f"placeto: error: {tmp_path / 'other'}: File too large\n"


@pytest.mark.parametrize("cluster", ["1xcpu+2xk80", "12xa100"])
def test_the_bundled_policy_places_on_any_devices(cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    sizes = ["--batch-size=4", "--set=steps=2", "--set=units=8", "--set=vocabulary_size=9"]
    succeed("build", "nmt-2", *sizes, "--groups=12", "--cluster", cluster, "-o", path)
    read = load_problem(path)
    report = succeed_json(
        "place", path, "--placer", "pretrained", "-o", tmp_path / "placement.json"
    )
    starts: list[Placer] = [SingleDevice(), CriticalPathPlacer(), Heft(), MEtf(), MSct()]
    if "cpu" in cluster:
        starts.append(CpuOnly())
    placer = PlacetoPlacer(
        policy=load_pretrained(), num_rollouts=15, starts=starts, refinement_rounds=2
    )
    expected = placer.place(read, Simulator(read))
    passes = PlacetoPlacer(policy=load_pretrained(), num_rollouts=15).place(read, Simulator(read))
    runtimes_of_starts = [start.place(read, Simulator(read)).runtime for start in starts]
    assert report["runtime"] == expected.runtime <= min(passes.runtime, *runtimes_of_starts)
    assert report["evaluations"] == expected.evaluations


def test_a_search_starts_from_the_bundled_policy(problem: Path, tmp_path: Path) -> None:
    finest = search_problem(load_problem(problem))
    place = ["place", problem, "--force", "-o", tmp_path / "placement.json"]
    usual, named, nothing = (
        succeed_json(*place, "--max-evaluations=300", *options)
        for options in ([], ["--start=pretrained"], ["--start=nothing"])
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


def test_a_training_begins_with_a_policy(problem: Path, tmp_path: Path) -> None:
    folder, resumed = tmp_path / "run", tmp_path / "other"
    train = ["train", problem, "--updates=1", "--hparam=workers=2"]
    succeed(*train, "--from", "pretrained", "-o", folder)
    first = load_policy(folder / "first-policy.safetensors").state_dict()
    pretrained = load_pretrained().state_dict()
    assert all(np.array_equal(first[name], pretrained[name]) for name in pretrained)
    learned = load_policy(folder / "training.safetensors").state_dict()
    largest = max(float((learned[name] - first[name]).abs().max()) for name in first)
    assert largest < 0.01  # it went on from there: another seed's weights are far from these
    succeed(*train, "--from", folder, "-o", resumed)
    again = load_policy(resumed / "first-policy.safetensors").state_dict()
    assert all(np.array_equal(again[name], learned[name]) for name in learned)


def test_what_cannot_be_begun_with_is_said_in_one_line(
    problem: Path, whole: Path, tmp_path: Path
) -> None:
    output = ["--updates=1", "-o", tmp_path / "run"]
    assert "missing: No such file" in fail("train", problem, *output, "--from=missing")
    wrong = ["--from=pretrained", "--hparam=hidden_units=8"]
    line = fail("train", problem, *output, *wrong)
    assert "--hparam hidden_units: expected 96, as in the policy of --from, got 8" in line
    three = tmp_path / "three.json"
    succeed("build", problem, "--cluster=3xv100", "-o", three)
    message = "expected 2 devices, as the policy of --from is for, got 3"
    assert message in fail("train", three, *output, f"--from={whole}")
    assert not (tmp_path / "run").exists()
