"""``placeto place``: fewer devices, where nothing fits, and where a file has no finer groups."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from gpipe_pipelines import Pipeline

import placeto
from command_runs import invoke, succeed, succeed_json
from placeto.errors import InputError
from placeto_graphs import (
    PlacementProblem,
    from_networkx,
    load_placement,
    load_problem,
    parse_cluster,
    save_cluster,
    save_problem,
)
from placeto_graphs.testing import example_problem


def with_memory(memory_bytes: int) -> PlacementProblem:
    problem = example_problem()
    devices = tuple(replace(each, memory_bytes=memory_bytes) for each in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@pytest.mark.parametrize("placer", ["--max-evaluations=50", "--placer=heft"])
def test_a_placement_that_does_not_fit_is_written_and_has_an_exit_code(
    tmp_path: Path, placer: str
) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    save_problem(with_memory(1), path)
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
        cluster = with_memory(memory).cluster
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
    for source, more in ((finer, options), (path, ["--placer=heft", *options[1:]])):
        assert "rules" not in invoke("place", source, *more).stderr


def test_a_placement_is_compared_with_fewer_devices(tmp_path: Path) -> None:
    path, output = tmp_path / "problem.json", tmp_path / "placement.json"
    save_problem(with_memory(10**12), path)
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


def test_what_is_fastest_on_one_device_is_not_split(tmp_path: Path) -> None:
    """Two ops with a tensor between them that takes longer to send than both run."""
    ops = nx.DiGraph([("first", "second", {"bytes": 10**10})])
    graph = from_networkx(ops)
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xv100", link="pcie"), compute_time=np.full((2, 2), 0.1)
    )
    save_problem(problem, tmp_path / "problem.json")
    place = ["place", tmp_path / "problem.json", "-o", tmp_path / "placement.json"]
    assert "All on v100:0: do not split." in succeed(*place)


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
    (tmp_path / "placed_twice.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    output, model = tmp_path / "placement.json", importlib.import_module("placed_twice").make()
    devices = parse_cluster("2xv100+1xk80")
    save_cluster(devices, tmp_path / "devices.toml")
    given: list[Any] = [tmp_path / "devices.toml", devices]
    for placer, cluster in zip((None, "local-search"), given, strict=True):
        named = [f"--placer={placer}"] if placer else []
        same = ["--cluster=2xv100+1xk80", "--max-evaluations=400", "--seed=5", *named]
        report = succeed_json("place", "placed_twice:make", *same, "--force", "-o", output)
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


def test_a_pipeline_is_placed_and_simulated_by_its_schedule(tmp_path: Path) -> None:
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
        own = succeed_json(*place[:3], "--placer=heft", "--force", "-o", output)
        assert own["runtime"] == succeed_json(*simulate, "heft")["runtime"]
        chain = succeed_json(*simulate, tmp_path / "chain.json")
        peaks[schedule] = [device["peak_memory"] for device in chain["devices"]]
    assert max(peaks["1f1b"]) < 12_000 <= min(peaks["gpipe"])
    back = {"forward0.0": "gpu0", "forward1.0": "gpu0", "forward2.0": "gpu1", "forward3.0": "gpu0"}
    (tmp_path / "chain.json").write_text(json.dumps(back))
    result = invoke(*simulate, tmp_path / "chain.json")
    assert result.exit_code == 0, result.exception
    assert (
        "gpu1 sends forward tensors back to gpu0, an earlier stage (forward2.0@0)" in result.stderr
    )
