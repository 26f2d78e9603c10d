"""``placeto place``, ``profile``, ``run`` and ``calibrate``: by search, and on this machine."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import placeto
from command_runs import (
    SMALL_NMT,
    fail,
    invoke,
    profile,
    succeed,
    succeed_json,
    write_module,
)
from exported_models import with_memory
from gpipe_pipelines import Pipeline
from placeto.errors import InputError
from placeto_graphs import (
    PlacementProblem,
    from_networkx,
    load_cluster,
    load_placement,
    load_problem,
    parse_cluster,
    save_cluster,
    save_placement,
    save_problem,
)
from placeto_graphs.testing import example_problem
from placeto_simulator import Simulator


@pytest.mark.parametrize("placer", ["--max-evaluations=50", "--placer=heft"])
def test_a_placement_that_does_not_fit_is_written_and_has_an_exit_code(
    tmp_path: Path, placer: str
) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    save_problem(with_memory(example_problem(), 1), path)
    result = invoke("place", path, placer, "--json", "-o", output)
    assert result.exit_code == 3, result.output
    assert not json.loads(result.stdout)["fits"]
    assert "no placement found fits the memory: group " in result.stderr
    assert output.is_file()


def test_what_would_need_less_memory_is_tried(tmp_path: Path) -> None:
    """Of 8 GB of activations, eight micro-batches hold one part at a time."""
    ops = nx.DiGraph()
    ops.add_node("weights", parameter_bytes=10**9)
    ops.add_node("gradient", phase=1)
    ops.add_node("update", phase=2)
    ops.add_edge("layer", "gradient", bytes=8 * 10**9)
    ops.add_edges_from([("weights", "layer"), ("batch", "layer"), ("gradient", "update")])
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    for memory, tried in ((10**9, "lacks 7.0 GB less"), (2 * 10**9, "fits")):
        cluster = with_memory(example_problem(), memory).cluster
        seconds = np.array([[np.inf, 1, np.inf]] * 5)
        problem = PlacementProblem(graph=from_networkx(ops), cluster=cluster, compute_time=seconds)
        save_problem(problem, path)
        error = invoke("place", path, "--max-evaluations=9", "--force", "-o", output).stderr
        assert f"; with --micro-batches 8 this one {tried}; more micro-batches, a smaller" in error


def test_a_file_without_rules_says_how_to_make_one_with_finer_groups(tmp_path: Path) -> None:
    path, finer, output = (tmp_path / f"{name}.json" for name in ("problem", "finer", "placement"))
    save_problem(replace(example_problem(), rules=None, hierarchy=None), path)
    options = ["--max-evaluations=50", "--force", "-o", output]
    hint = invoke("place", path, *options).stderr
    assert "has no co-location rules, so a search stays at its 8 groups" in hint
    succeed(*hint.partition("placeto ")[2].replace("FILE", str(finer)).split())
    assert load_problem(finer).rules is not None
    problem, single_ops = example_problem(), tmp_path / "single_ops.json"
    of_ops = PlacementProblem(
        graph=problem.graph, cluster=problem.cluster, compute_time=problem.compute_time
    )
    save_problem(of_ops, single_ops)
    heft = ["--placer=heft", *options[1:]]
    for source, arguments in ((finer, options), (path, heft), (single_ops, options)):
        assert "rules" not in invoke("place", source, *arguments).stderr


def test_a_placement_is_compared_with_fewer_devices(tmp_path: Path) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    save_problem(with_memory(example_problem(), 10**12), path)
    place: list[object] = ["place", path, "--max-evaluations=2000", "--force", "-o", output]
    report = succeed_json(*place)
    names = load_problem(path).cluster.device_names
    alone = [choice for choice in report["choices"] if choice["how"] == "alone"]
    assert {choice["devices"][0] for choice in alone} == {names[0], names[1]}  # of equal ones one
    for choice in alone:
        simulated = succeed_json("simulate", path, choice["devices"][0])
        assert choice["runtime"] == simulated["runtime"]
        assert choice["relative"] == simulated["runtime"] / report["runtime"]
    assert all(choice["relative"] >= 1 for choice in report["choices"])
    ways = {"alone", "in-order", "balanced", "chain", "searched"}
    assert {choice["how"] for choice in report["choices"]} == ways
    table = succeed(*place)
    assert f"{names[0]} alone" in table
    assert "in order of memory" in table
    throughput = succeed_json(*place, "--objective=throughput")
    assert (report["evaluator"], throughput["evaluator"]) == ("latency", "throughput")
    assert throughput["runtime"] <= report["runtime"]
    assert "lower_bound" not in throughput


OWN_MODEL = """
import torch
from torch import nn

def make():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    return model, torch.ones(16, 64), lambda output: output.square().mean()
"""


def test_python_and_the_command_give_one_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_name = write_module(tmp_path, monkeypatch, OWN_MODEL)
    output, model = tmp_path / "placement.json", importlib.import_module(module_name).make()
    devices = parse_cluster("2xv100+1xk80")
    save_cluster(devices, tmp_path / "devices.toml")
    clusters: list[Any] = [tmp_path / "devices.toml", devices]
    for placer, cluster in zip((None, "local-search"), clusters, strict=True):
        named = [f"--placer={placer}"] if placer else []
        same = ["--cluster=2xv100+1xk80", "--max-evaluations=400", "--seed=5", *named]
        report = succeed_json("place", f"{module_name}:make", *same, "--force", "-o", output)
        settings: dict[str, Any] = {"max_evaluations": 400, "seed": 5, "placer": placer}
        placed = placeto.place(*model, cluster=cluster, quiet=True, **settings)
        assert load_placement(output, placed.problem).tolist() == placed.placement.tolist()
        assert report["runtime"] == placed.runtime
        assert report["evaluations"] == placed.result.evaluations
    wrong: Any = ["2xv100"]
    with pytest.raises(InputError, match="a TOML file, or a Cluster without a link, got list"):
        placeto.place(*model, cluster=wrong)
    with pytest.raises(InputError, match="seconds: expected a finite number above 0, got nan"):
        placeto.place(*model, cluster=devices, seconds=float("nan"), quiet=True)


def test_a_pipeline_is_placed_and_simulated_by_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    pipeline = Pipeline(4, 12, 2.0, transfer_seconds=1e-6)
    save_problem(pipeline.problem(), path)
    (tmp_path / "chain.json").write_text(json.dumps({f"forward{n}.0": f"gpu{n}" for n in range(4)}))
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        place = ["place", path, f"--schedule={schedule}", "--max-evaluations=400", "--force"]
        report = succeed_json(*place, "-o", output)
        simulate = ["simulate", path, f"--schedule={schedule}"]
        simulated = succeed_json(*simulate, output)
        assert report["runtime"] == simulated["runtime"] <= (12 + 4 - 1) * 3 + 1e-3
        assert report["peak_memory"] == [device["peak_memory"] for device in simulated["devices"]]
        by_heft = succeed_json(*place[:3], "--placer=heft", "--force", "-o", output)
        assert by_heft["runtime"] == succeed_json(*simulate, "heft")["runtime"]
        chain = succeed_json(*simulate, tmp_path / "chain.json")
        peaks[schedule] = [device["peak_memory"] for device in chain["devices"]]
    assert max(peaks["1f1b"]) < 12_000 <= min(peaks["gpipe"])
    answers = iter([importlib.import_module("placeto.placing.place_problem").evaluated] * 2)

    def interrupted(*arguments: Any) -> Any:
        for evaluate in answers:
            return evaluate(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("placeto.placing.place_problem.evaluated", interrupted)
    report = succeed_json(*place, "-o", output)
    assert report["runtime"] == succeed_json(*simulate, output)["runtime"]
    monkeypatch.undo()
    save_problem(with_memory(pipeline.problem(), 12_000), path)
    place[2] = "--schedule=gpipe"
    error = invoke(*place, "-o", output).stderr
    assert "; with --schedule 1f1b this one fits; more" in error
    save_problem(pipeline.problem(), path)
    back = {"forward0.0": "gpu0", "forward1.0": "gpu0", "forward2.0": "gpu1", "forward3.0": "gpu0"}
    (tmp_path / "chain.json").write_text(json.dumps(back))
    error = invoke(*simulate, tmp_path / "chain.json").stderr
    assert "gpu1 sends forward tensors back to gpu0, an earlier stage (forward2.0@0)" in error


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
    text = succeed("run", *STEP[:1], "cpu:0", *STEP[1:], "--steps=1")  # of a problem made anew
    assert "Ops whose seconds differ most" in text

    latency = np.where(np.eye(2, dtype=bool), 0.0, 0.1)
    slow = replace(read, cluster=replace(read.cluster, latency=latency))
    save_problem(slow, tmp_path / "slow.json.gz")
    run = ["run", "nmt-2", placement, *SIZES, "--steps=1", "--problem", tmp_path / "slow.json.gz"]
    emulated = succeed_json(*run, "--emulate-links")
    assert emulated["simulated_runtime"] > 1  # latencies, of which ops are a small part
    assert emulated["measured_runtime"] >= 0.9 * emulated["simulated_runtime"]
    assert succeed_json(*run)["measured_runtime"] < 0.9 * emulated["simulated_runtime"]


def test_a_placement_with_more_devices_is_that_of_the_larger_cluster(tmp_path: Path) -> None:
    output = tmp_path / "placement.json"
    place = ["place", "nmt-2", *SMALL_NMT, "--max-evaluations=200", "--force", "-o", output]
    larger = succeed_json(*place, "--cluster=1xk80+1xv100")
    present = succeed_json(*place, "--cluster=1xk80", "--what-if=+1xv100", "--what-if=+2xv100")
    same = ["runtime", "peak_memory", "groups", "lower_bound", "devices"]
    assert present["what_if"].keys() == {"+1xv100", "+2xv100"}
    assert [present["what_if"]["+1xv100"][name] for name in same] == [larger[name] for name in same]
    assert present["devices"] == ["k80:0"]
    assert set(json.loads(output.read_text()).values()) == {"k80:0"}
    ratio = present["runtime"] / larger["runtime"]
    assert ratio > 1
    text = succeed(*place, "--cluster=1xk80", "--what-if=+1xv100")
    assert re.search(rf"\nWith \+1xv100: .*, {ratio:.2f}x as fast\n", text)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("1xk80", "--what-if: expected devices to add, such as +1xv100, got '1xk80'"),
        ("+0xk80", "--what-if +0xk80: cluster: expected a count of at least 1, got '0xk80'"),
        ("+1xk8", "--what-if +1xk8: cluster: expected k80, or another of"),
    ],
)
def test_devices_to_add_are_named_in_their_errors(added: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(profile(6))
    place = ["place", tmp_path / "graph.txt", "--cluster=1xv100", "-o", tmp_path / "placement.json"]
    assert message in fail(*place, f"--what-if={added}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run nmt-2 P --problem Q OTHERS", "expected a problem of the graph of nmt-2 with these"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0", "expected 2, one for each of cpu:0, c"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0,tpu:1", "or cuda:NUMBER, got 'tpu:1'"),
        ("run nmt-2 cpu:0 SIZES --devices=cuda:0,cuda:1", "one with the kinds of cuda:0, cuda:1"),
        ("run nmt-2 P --problem Q SIZES --devices=cpu:0,cuda:99", "devices that PyTorch finds"),
        ("run nmt-2 cpu:0 SIZES --micro-batches=2", "expected 1, as `placeto run` runs neither"),
        ("run nmt-2 P --problem Q SIZES --groups=4", "--problem: excludes --cluster, "),
        ("run nmt-2 cpu:0 SIZES --force", "--force: needs --trace"),
        ("run nmt-2 cpu:0 --threads=2 --devices=cuda:0", "needs a CPU in --devices, got cuda:0"),
        ("calibrate -o c.toml --devices=cuda:99,cpu:0", "CUDA devices that PyTorch finds here"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_line(
    line: str, message: str, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments_of: dict[str, list[Any]] = {
        "P": [placement_of(problem, tmp_path)],
        "Q": [problem],
        "SIZES": SIZES,
        "OTHERS": [*SIZES[:-1], "--set=vocabulary_size=9"],
    }
    assert message in fail(
        *(argument for word in line.split() for argument in arguments_of.get(word, [word]))
    )


def test_a_calibrated_cluster_can_be_used(tmp_path: Path) -> None:
    output = tmp_path / "cluster.toml"
    report = succeed_json("calibrate", "--steps=1", "--most-bytes=1000000", "-o", output)
    cluster = load_cluster(output)
    assert cluster.device_names == ("cpu:0", "cpu:1")
    assert cluster.latency[0, 1] == report["links"][0]["seconds"][0] > 0
    assert 0 < cluster.bandwidth[0, 1] < np.inf
    assert "is not in the range x>=262144" in fail("calibrate", "--most-bytes=5", "-o", output)


def test_copies_that_are_placed_are_read_by_other_commands(tmp_path: Path) -> None:
    """The placement file says how the batch is divided, so that no option has to."""
    output, page = tmp_path / "placement.json", tmp_path / "page.html"
    model = ["nmt-2", *SMALL_NMT, "--cluster=2xv100"]
    place = ["place", *model, "--max-evaluations=50", "-o", output, "--force"]
    report = succeed_json(*place, "--shard")
    assert report["copies"] == {
        "samples": [2, 2],
        "devices": ["v100:0", "v100:1"],
        "shard": True,
        "micro_batches": 1,
    }
    simulated = succeed_json("simulate", *model, output)
    assert simulated["runtime"] == report["runtime"]
    assert succeed_json("simulate", *model, output, "--schedule=1f1b") == simulated
    succeed("report", *model[:1], output, *model[1:], "-o", page)
    usual = succeed_json(*place)
    assert {choice["how"] for choice in usual["choices"]} >= {"2 copies, sharded"}
    assert usual["runtime"] <= report["runtime"]
    alone = succeed_json(*place, "--copies=1")
    assert "2 copies" not in {choice["how"] for choice in alone["choices"]}


def test_a_model_without_a_batch_size_has_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_module(tmp_path, monkeypatch, OWN_MODEL)
    place = ["place", f"{name}:make", "--cluster=2xv100", "--max-evaluations=50"]
    error = invoke(*place, "-o", tmp_path / "placement.json").stderr
    assert "copies of the model are not tried: " in error
    assert f"needs --batch-size, as {name}:make has no default batch_size" in error
