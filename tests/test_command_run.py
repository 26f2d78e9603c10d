"""``placeto calibrate``, ``profile`` and ``run``: steps on devices of this machine."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_runs import SMALL_NMT, build_profile, fail, succeed, succeed_json
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


def test_emulated_links_make_a_step_longer(problem: Path, tmp_path: Path) -> None:
    placement = placement_of(problem, tmp_path)
    slow = load_problem(problem)
    latency = np.where(np.eye(2, dtype=bool), 0.0, 0.1)
    slow = replace(slow, cluster=replace(slow.cluster, latency=latency))
    save_problem(slow, tmp_path / "slow.json.gz")
    run = ["run", "nmt-2", placement, *SIZES, "--steps=1", "--problem"]
    emulated = succeed_json(*run, tmp_path / "slow.json.gz", "--emulate-links")
    assert emulated["simulated_runtime"] > 1  # latencies, of which ops are a small part
    assert emulated["measured_runtime"] >= 0.9 * emulated["simulated_runtime"]
    real = succeed_json(*run, tmp_path / "slow.json.gz")
    assert real["measured_runtime"] < 0.9 * real["simulated_runtime"]


def test_what_does_not_fit_together_is_said_in_one_line(problem: Path, tmp_path: Path) -> None:
    placement = placement_of(problem, tmp_path)
    run = ["run", "nmt-2", placement, "--problem", problem]
    other_sizes = fail(*run, *(size.replace("steps=3", "steps=4") for size in SIZES))
    assert "expected a problem of the graph of nmt-2 with these sizes" in other_sizes
    one_device = fail(*run, *SIZES, "--devices=cpu:0")
    assert "--devices: expected 2, one for each of cpu:0, cpu:1, got 1" in one_device
    assert "expected cpu:NUMBER or cuda:NUMBER, got 'tpu:1'" in fail(
        *run, *SIZES, "--devices=cpu:0,tpu:1"
    )
    assert "expected one that says what cuda:0, cuda:1 are" in fail(
        "run", *STEP[:1], "cpu:0", *STEP[1:], "--devices=cuda:0,cuda:1"
    )
    assert "CUDA devices that PyTorch finds here" in fail(*run, *SIZES, "--devices=cpu:0,cuda:99")
    assert "as steps in micro-batches are not run" in fail(
        "run", *STEP[:1], "cpu:0", *STEP[1:], "--micro-batches=2"
    )
    assert "other sources have no model to run" in fail("run", build_profile(tmp_path), "cpu:0")
    assert "CUDA devices that PyTorch finds here" in fail(
        "profile", *STEP, "--devices=cuda:99", "--cluster=1xv100", "-o", tmp_path / "p.json"
    )
    assert f"{tmp_path}/no/trace.json" in fail(
        *run, *SIZES, "--steps=1", "--trace", tmp_path / "no" / "trace.json"
    )


def test_options_that_a_run_ignores_are_refused(problem: Path) -> None:
    run = ["run", "nmt-2", "cpu:0", *SIZES]
    for option in ("--cluster=2xcpu", "--groups=4", "--link=pcie", "--no-merging"):
        assert "--problem: excludes --cluster, " in fail(*run, "--problem", problem, option)
    assert "--force: needs --trace" in fail(*run, "--force")
    assert "--threads: needs a CPU in --devices, got cuda:0" in fail(
        *run, "--devices=cuda:0", "--threads=2", "--cluster=1xv100"
    )


def test_a_calibrated_cluster_can_be_used(tmp_path: Path) -> None:
    output = tmp_path / "cluster.toml"
    report = succeed_json("calibrate", "--steps=1", "--most-bytes=4096", "-o", output)
    cluster = load_cluster(output)
    assert cluster.device_names == ("cpu:0", "cpu:1")
    assert cluster.latency[0, 1] == report["links"][0]["seconds"][0] > 0
    assert cluster.bandwidth[0, 1] > 0
    assert len(report["slowdowns"]) == 3
    assert "is there already" in fail("calibrate", "-o", output)
    assert "CUDA devices that PyTorch finds here" in fail(
        "calibrate", "--devices=cuda:99,cpu:0", "-o", tmp_path / "other.toml"
    )
