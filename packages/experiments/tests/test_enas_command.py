"""Tables of trainings, and the command."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from placeto_experiments.enas.__main__ import main
from placeto_experiments.enas.tables import RewardRow, reward_table
from placeto_workloads import load_trajectory

TINY = ["--rounds=2", "--shared-steps=2", "--controller-steps=2", "--samples=3"]
TINY_TEXT = [*TINY, "--num-nodes=3", "--units=4", "--steps=3", "--batch-size=4"]
TINY_IMAGES = [*TINY, "--num-nodes=2", "--filters=2", "--batch-size=8"]


def test_the_gain_is_over_the_better_of_uniform_sampling() -> None:
    assert RewardRow(0, 0, 0, 0.5, 0.25, 0.375).gain == 0.125
    rows = [RewardRow(0, 0, 0, 0.5, 0.25, 0.375), RewardRow(1, 0, 0, 0.5, 0.375, 0.125)]
    last = reward_table(rows).splitlines()[-1]
    assert last == "| mean | 0.000 | 0.000 | 0.500 | 0.312 | 0.250 | +0.125 ± 0.000 |"


@pytest.mark.parametrize(("data", "sizes"), [("text", TINY_TEXT), ("images", TINY_IMAGES)])
def test_the_command_trains_and_goes_on(
    data: str, sizes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", data, "--out", str(out), "--seed", "3", *sizes]) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"12 architectures in {out / 'architectures.json'}; mean reward ")
    assert "round 2 of 2" in output.err
    assert len(load_trajectory(out / "architectures.json")) == 12
    assert main(["train", data, "--out", str(out), "--seed", "3", *sizes]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_stops_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_search: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("placeto_experiments.enas.search.Search.round", stop)
    assert main(["train", "text", "--out", str(tmp_path / "run"), *TINY_TEXT]) == 130
    assert (
        capsys.readouterr().err == "placeto_experiments.enas: stopped; the same command resumes\n"
    )


def test_the_command_compares_rewards_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rewards"
    arguments = ["rewards", "text", "--seeds", "2", "--out", str(out), *TINY_TEXT]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| 0", "| 1", "| mean"]
    assert {path.name for path in out.iterdir()} == {
        *("controller-0", "controller-1", "uniform-0", "uniform-1")
    }
    assert main(arguments) == 0
    assert capsys.readouterr().out == table


def test_the_command_reads_data_from_disk(tmp_path: Path) -> None:
    for name in ("ptb.train.txt", "ptb.valid.txt"):
        (tmp_path / name).write_text("the dog sees the cat\n" * 5)
    out = tmp_path / "run"
    arguments = ["train", "text", "--folder", str(tmp_path), "--out", str(out), *TINY_TEXT]
    assert main(arguments) == 0
    assert load_trajectory(out / "architectures.json").task["data"] == "penn treebank"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "images", "--units=4"], "--units: images have no such size"),
        (["train", "text", "--folder=no-such"], r"no-such: expected ptb\.train\.txt, found none"),
        (["train", "images", "--folder=no-such"], r"no-such: expected data_batch_1\.bin"),
        (["train", "text", "--shared-rate=0"], "shared_rate: expected a number above 0, got 0"),
        (["rewards", "text", "--seeds=0"], "--seeds: expected at least 1, got 0"),
    ],
)
def test_errors_of_the_command_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(rf"placeto_experiments\.enas: {message}.*\n", error)


@pytest.mark.slow
def test_a_training_that_is_killed_comes_to_the_same_end(tmp_path: Path) -> None:
    train = ["train", "text", *TINY_TEXT, "--rounds=12", "--controller-steps=4"]
    assert main([*train, "--out", str(tmp_path / "whole")]) == 0
    again = [*train, "--out", str(tmp_path / "killed")]
    command = [sys.executable, "-m", "placeto_experiments.enas", *again]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()  # a round is over
        time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert main(again) == 0
    whole, killed = (load_file(tmp_path / n / "search.safetensors") for n in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert [name for name in whole if not whole[name].equal(killed[name])] == []
