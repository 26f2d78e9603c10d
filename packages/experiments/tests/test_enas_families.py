"""The sampler of what trainings passed through, the tables, and the command."""

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from safetensors.torch import load_file

from placeto_experiments.enas import (
    ControllerSampler,
    ConvolutionalSpace,
    RecurrentSpace,
    SearchSpace,
    Trajectory,
    load_trajectory,
    save_trajectory,
)
from placeto_experiments.enas.__main__ import main
from placeto_experiments.enas.family_table import longest_paths, member_numbers
from placeto_experiments.enas.reward_table import RewardRow, reward_table
from placeto_graphs import GroupGraph
from placeto_workloads import UniformSampler, WorkloadError, family
from placeto_workloads.families.controller_sampler import shipped_trajectory
from placeto_workloads.families.search_spaces import Architecture

TINY = ["--rounds=2", "--shared-steps=2", "--controller-steps=2", "--samples=3"]
TINY_TEXT = [*TINY, "--num-nodes=3", "--units=4", "--steps=3", "--batch-size=4"]
TINY_IMAGES = [*TINY, "--num-nodes=2", "--filters=2", "--batch-size=8"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACETO_CACHE_DIR", str(tmp_path))


def drawn_evenly(space: SearchSpace, count: int, repeated: int = 1) -> Trajectory:
    generator = np.random.default_rng(0)
    rows = [space.choices(space.uniform(generator)) for _ in range(count)]
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
        drawn_evenly(ConvolutionalSpace(), 40, 40), drawn_evenly(RecurrentSpace(), 40, 40)
    )
    for name, trajectory in (("ptb", sampler.recurrent), ("cifar10", sampler.convolutional)):
        assert trajectory is not None
        passed = {trajectory.architecture(index) for index in range(40)}
        chosen = family(name, seed=1, sampler=sampler)
        found = [member.architecture for member in (*chosen.training, *chosen.test)]
        assert set(found) <= passed
        assert len(set(found)) == 32  # none is in both halves, though every other draw is the first
        assert family(name, seed=1, sampler=sampler) == chosen


def test_an_architecture_comes_again_only_where_there_is_no_other() -> None:
    sampler = ControllerSampler(recurrent=drawn_evenly(RecurrentSpace(), 31))
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
    sampler = ControllerSampler(recurrent=drawn_evenly(RecurrentSpace(), 4, repeated=5))
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
    means = trajectory.round_means()
    assert means[-1] > means[0]
    sampler = ControllerSampler()
    generator = np.random.default_rng(0)
    draws: dict[str, Callable[[np.random.Generator], Architecture]] = {
        "convolutional": sampler.convolutional_cells,
        "recurrent": sampler.recurrent_cell,
    }
    assert list(space.choices(draws[space.name](generator))) in rows


def test_samplers_refuse_files_that_do_not_fit(tmp_path: Path) -> None:
    recurrent, empty = drawn_evenly(RecurrentSpace(), 2), drawn_evenly(RecurrentSpace(), 1)
    empty = Trajectory(RecurrentSpace(), empty.rounds[:0], empty.choices[:0], empty.rewards[:0], {})
    with pytest.raises(WorkloadError, match=r"convolutional: expected .* space, got recurrent"):
        ControllerSampler(convolutional=recurrent)
    with pytest.raises(WorkloadError, match="recurrent: expected architectures, got none"):
        ControllerSampler(recurrent=empty)
    save_trajectory(recurrent, tmp_path / "one.json")
    with pytest.raises(WorkloadError, match=r"one\.json: expected one file of recurrent"):
        ControllerSampler.load(tmp_path / "one.json", tmp_path / "one.json")


def test_longest_paths_are_those_of_networkx() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 2, 9, 30):
        upper = np.argwhere(np.triu(generator.random((size, size)) < 0.2, k=1))
        seconds = generator.random(size)
        groups = GroupGraph(
            compute_time=seconds[:, None],
            output_bytes=np.zeros(size, np.int64),
            parameter_bytes=np.zeros(size, np.int64),
            edges=upper.reshape(-1, 2).astype(np.int32),
            edge_bytes=np.ones(len(upper), np.int64),
        )
        graph = nx.DiGraph()
        graph.add_nodes_from(range(size + 1))
        graph.add_edges_from((one, other, {"weight": seconds[one]}) for one, other in upper)
        # A last node behind all others: the heaviest path to it is the heaviest one that there is.
        graph.add_edges_from((node, size, {"weight": seconds[node]}) for node in range(size))
        heaviest = nx.dag_longest_path_length(graph)
        assert longest_paths(groups, seconds).max() == pytest.approx(heaviest)


def test_numbers_of_a_member_are_those_of_its_graph() -> None:
    small = family("ptb", units=4, vocabulary_size=10, sampler=UniformSampler(num_nodes=2))
    member = small.training[0]
    numbers, graph = member_numbers(member, small), member.graph()
    assert numbers.ops == graph.num_ops
    assert numbers.parameter_gigabytes * 1e9 == pytest.approx(int(graph.parameter_bytes.sum()))
    assert numbers.loose_ends == len(member.architecture.loose_ends)  # type: ignore[union-attr]
    assert 1 <= numbers.parallel_groups <= numbers.widest_level <= small.num_groups


def test_the_gain_is_over_the_better_of_even_draws() -> None:
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
        capsys.readouterr().err == "placeto_experiments.enas: stopped; the same command goes on\n"
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
        *("controller-0", "controller-1", "even-0", "even-1")
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
    assert re.fullmatch(rf"placeto_workloads\.enas: {message}.*\n", error)


def test_the_command_tells_what_changes_in_a_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_trajectory(drawn_evenly(RecurrentSpace(2), 16), tmp_path / "architectures.json")
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
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ptb, even", "| ptb, controller"]
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
    convolutional = drawn_evenly(ConvolutionalSpace(1), 3)
    save_trajectory(convolutional, tmp_path / "architectures.json")
    assert main(["cells", "--architectures", str(tmp_path / "architectures.json")]) == 0
    assert "| all rounds | 3 | 3 | " in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_that_is_killed_comes_to_the_same_end(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "placeto_experiments.enas", "train", "text", *TINY_TEXT]
    arguments += ["--rounds=6", "--controller-steps=8"]
    subprocess.run([*arguments, "--out", str(tmp_path / "whole")], check=True)
    generator = np.random.default_rng(0)
    again = [*arguments, "--out", str(tmp_path / "killed")]
    kills = 0
    for _ in range(2):
        process = subprocess.Popen(again, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # a round is over
        time.sleep(float(generator.uniform(0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills
    subprocess.run(again, check=True)
    whole, killed = (load_file(tmp_path / n / "search.safetensors") for n in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert [name for name in whole if not whole[name].equal(killed[name])] == []
