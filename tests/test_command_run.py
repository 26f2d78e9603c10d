"""``placeto calibrate``, ``profile`` and ``run``: steps on devices of this machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_runs import SMALL_NMT, fail, succeed, succeed_json
from placeto_graphs import load_cluster, load_problem, save_placement, save_problem
from placeto_simulator import Simulator

STEP = ["nmt-2", *SMALL_NMT]
SIZES = SMALL_NMT[:-1]  # without the number of groups, which a problem file has


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "problem.json.gz"
    report = succeed_json("profile", *STEP, "--steps=3", "-o", path)
    (measured,) = report["kinds"].values()
    # Medians of three steps each: those of ops may add up to more than that of whole steps.
    assert 0 < measured["op_seconds"] < 10 * measured["runtime"]
    return path


def placement_of(problem: Path, folder: Path) -> Path:
    read = load_problem(problem)
    placement = np.arange(read.num_groups, dtype=np.int32) % 2
    save_placement(placement, read, folder / "placement.json")
    return folder / "placement.json"


def test_a_profile_measures_every_op_that_computes(problem: Path) -> None:
    read = load_problem(problem)
    seconds = read.graph.measured_time["cpu"]
    assert (seconds[read.graph.bytes_accessed > 0] > 0).all()
    assert (seconds[read.graph.bytes_accessed == 0] == 0).all()
    np.testing.assert_array_equal(read.compute_time, np.stack([seconds, seconds], axis=1))
    assert all(0 < device.op_overhead < 1 for device in read.cluster.devices)


def test_a_run_is_shown_beside_the_simulation(problem: Path, tmp_path: Path) -> None:
    placement = placement_of(problem, tmp_path)
    trace = tmp_path / "trace.json"
    options = ["--problem", problem, "--steps=2", "--trace", trace]
    report = succeed_json("run", "nmt-2", placement, *SIZES, *options)
    read = load_problem(problem)
    expected = Simulator(read).evaluate(np.arange(read.num_groups, dtype=np.int32)[None] % 2)
    assert report["simulated_runtime"] == expected.runtime[0]
    assert report["error"] == pytest.approx(
        report["simulated_runtime"] / report["measured_runtime"] - 1
    )
    for row, peak in zip(report["devices"], expected.peak_memory[0].tolist(), strict=True):
        assert row["simulated_peak_memory"] == peak
        assert row["measured_peak_memory"] == pytest.approx(peak, rel=0.5)
        assert 0 < row["measured_busy"] < 1
    assert sum(row["ops"] for row in report["devices"]) == read.graph.num_ops
    differences = [abs(row["measured"] - row["simulated"]) for row in report["ops"]]
    assert differences == sorted(differences, reverse=True)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {read.graph.op_names[-1]} <= {event["name"] for event in events}
    shown = succeed("run", *STEP[:1], "cpu:0", *STEP[1:], "--steps=1")  # of a problem made anew
    assert "Ops whose seconds differ most" in shown

    latency = np.where(np.eye(2, dtype=bool), 0.0, 0.1)
    slow = replace(read, cluster=replace(read.cluster, latency=latency))
    save_problem(slow, tmp_path / "slow.json.gz")
    run = ["run", "nmt-2", placement, *SIZES, "--steps=1", "--problem", tmp_path / "slow.json.gz"]
    emulated = succeed_json(*run, "--emulate-links")
    assert emulated["simulated_runtime"] > 1  # latencies, of which ops are a small part
    assert emulated["measured_runtime"] >= 0.9 * emulated["simulated_runtime"]
    assert succeed_json(*run)["measured_runtime"] < 0.9 * emulated["simulated_runtime"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run nmt-2 P --problem Q OTHERS", "expected a problem of the graph of nmt-2 with these"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0", "expected 2, one for each of cpu:0, c"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0,tpu:1", "or cuda:NUMBER, got 'tpu:1'"),
        ("run nmt-2 cpu:0 SIZES --devices=cuda:0,cuda:1", "one that says what cuda:0, cuda:1 are"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0,cuda:99", "devices that PyTorch finds"),
        ("run nmt-2 cpu:0 SIZES --micro-batches=2", "as steps in micro-batches are not run"),
        ("run nmt-2 P --problem Q SIZES --trace no/trace.json", "the folder no is not there"),
        ("run nmt-2 P --problem Q SIZES --groups=4", "--problem: excludes --cluster, "),
        ("run nmt-2 cpu:0 SIZES --force", "--force: needs --trace"),
        ("run nmt-2 cpu:0 --threads=2 --devices=cuda:0", "needs a CPU in --devices, got cuda:0"),
        ("profile nmt-2 SIZES --devices=cuda:99 --cluster=1xv100 -o p.json", "that PyTorch finds"),
        ("calibrate -o c.toml --devices=cuda:99,cpu:0", "CUDA devices that PyTorch finds here"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_line(
    line: str, message: str, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, list[Any]] = {
        "P": [placement_of(problem, tmp_path)],
        "Q": [problem],
        "SIZES": SIZES,
        "OTHERS": [*SIZES[:-1], "--set=vocabulary_size=9"],
    }
    assert message in fail(*(each for word in line.split() for each in given.get(word, [word])))


def test_a_calibrated_cluster_can_be_used(tmp_path: Path) -> None:
    output = tmp_path / "cluster.toml"
    report = succeed_json("calibrate", "--steps=1", "--most-bytes=4096", "-o", output)
    cluster = load_cluster(output)
    assert cluster.device_names == ("cpu:0", "cpu:1")
    assert cluster.latency[0, 1] == report["links"][0]["seconds"][0] > 0
    assert cluster.bandwidth[0, 1] > 0
