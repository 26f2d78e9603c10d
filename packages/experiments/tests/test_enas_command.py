"""Tables of trainings, and the command."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from placeto import family_graph
from placeto_experiments.enas.__main__ import main
from placeto_experiments.enas.tables import RewardRow, graph_numbers, reward_table
from placeto_workloads import (
    ConvolutionalSpace,
    RecurrentSpace,
    SearchSpace,
    Trajectory,
    UniformSampler,
    family,
    load_trajectory,
    save_trajectory,
)

TINY = ["--rounds=2", "--shared-steps=2", "--controller-steps=2", "--samples=3"]
TINY_TEXT = [*TINY, "--num-nodes=3", "--units=4", "--steps=3", "--batch-size=4"]
TINY_IMAGES = [*TINY, "--num-nodes=2", "--filters=2", "--batch-size=8"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def save_uniform(space: SearchSpace, count: int, path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [space.choices(space.uniform(generator)) for _ in range(count)]
    zeros = np.zeros(count)
    trajectory = Trajectory(space, zeros.astype(np.int32), np.array(rows, np.int16), zeros, {})
    save_trajectory(trajectory, path)


def test_numbers_of_a_family_graph_are_those_of_the_graph() -> None:
    small = family("ptb", units=4, vocabulary_size=10, sampler=UniformSampler(num_nodes=2))
    member = small.training[0]
    numbers, graph = graph_numbers(member, small), family_graph(member)
    assert numbers["ops"] == graph.num_ops
    assert numbers["parameters, GB"] * 1e9 == pytest.approx(int(graph.parameter_bytes.sum()))
    assert numbers["loose ends"] == len(member.architecture.loose_ends)  # type: ignore[union-attr]
    assert 1 - 1e-9 <= numbers["parallel groups"] <= numbers["widest level"] <= small.num_groups


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


def test_the_command_tells_what_changes_in_a_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_uniform(RecurrentSpace(2), 16, tmp_path / "architectures.json")
    monkeypatch.setattr(
        "placeto_experiments.enas.__main__.UniformSampler", lambda: UniformSampler(num_nodes=2)
    )
    monkeypatch.setattr(
        "placeto_experiments.enas.__main__.family",
        lambda name, **keywords: family(name, units=4, vocabulary_size=10, **keywords),
    )
    architectures = ["--architectures", str(tmp_path / "architectures.json")]
    assert main(["families", "ptb", "--members", "1", *architectures]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ptb, uniform", "| ptb, controller"]
    assert main(["families", "ptb", "--members", "0"]) == 1
    assert "--members: expected at least 1, got 0" in capsys.readouterr().err


def test_the_command_tells_what_cells_are_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nodes 1 and 2 read the first one: two loose ends, two nodes deep. Then a chain of three.
    flat, chain = [1, 0, 2, 0, 2], [3, 0, 3, 1, 3]
    trajectory = Trajectory(
        RecurrentSpace(3),
        np.array([0, 0, 1], np.int32),
        np.array([flat, flat, chain], np.int16),
        np.zeros(3),
        {},
    )
    save_trajectory(trajectory, tmp_path / "architectures.json")
    assert main(["cells", "--architectures", str(tmp_path / "architectures.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "recurrent:"
    assert lines[5:8] == [
        "| first round | 2 | 1 | 2.00 | 2.00 | sigmoid 33%, tanh 67% |",
        "| all rounds | 3 | 2 | 1.67 | 2.33 | relu 33%, sigmoid 22%, tanh 44% |",
        "| last round | 1 | 1 | 1.00 | 3.00 | relu 100% |",
    ]
    save_uniform(ConvolutionalSpace(1), 3, tmp_path / "architectures.json")
    assert main(["cells", "--architectures", str(tmp_path / "architectures.json")]) == 0
    assert "| all rounds | 3 | 3 | " in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_that_is_killed_comes_to_the_same_end(tmp_path: Path) -> None:
    train = ["train", "text", *TINY_TEXT, "--rounds=6", "--controller-steps=8"]
    assert main([*train, "--out", str(tmp_path / "whole")]) == 0
    generator = np.random.default_rng(0)
    again = [*train, "--out", str(tmp_path / "killed")]
    kills = 0
    for _ in range(2):
        command = [sys.executable, "-m", "placeto_experiments.enas", *again]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # a round is over
        time.sleep(float(generator.uniform(0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills
    assert main(again) == 0
    whole, killed = (load_file(tmp_path / n / "search.safetensors") for n in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert [name for name in whole if not whole[name].equal(killed[name])] == []
