"""``placeto models``, ``build`` and ``inspect``, from the shell to the file."""

import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from command_runs import (
    SMALL_NMT,
    build_profile,
    fail,
    invoke,
    profile,
    succeed,
    succeed_json,
    write_module,
)
from placeto import load_model_graph, place
from placeto_baselines import lower_bound
from placeto_capture import cost_model
from placeto_graphs import (
    Phase,
    PlacementProblem,
    colocate,
    colocate_by_id,
    colocate_scopes,
    colocate_updates,
    load_pipedream_profile,
    load_problem,
    measured_compute_time,
    merge_and_colocate,
    micro_batched_problem,
    parse_cluster,
)
from placeto_workloads import MODELS

FACTORY = """
from torch import nn
import torch

@torch.library.custom_op("own_library::swap", mutates_args=())
def swap(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flip(0)

swap.register_fake(torch.empty_like)
swap.register_autograd(lambda context, gradient: swap(gradient))

class Swapped(nn.Linear):
    def forward(self, inputs):
        return swap(super().forward(inputs))

def with_own_op():
    return Swapped(4, 2), torch.ones(3, 4)

def make(width=4, **sizes):
    return nn.Linear(width, 2), torch.ones(sizes.get("batch_size", 3), width)

def with_loss():
    return nn.Linear(4, 2), torch.ones(3, 4), lambda outputs: outputs.square().sum()

def with_batch_size(batch_size=8):
    return make(batch_size=batch_size)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that only the current folder has."""
    return write_module(tmp_path, monkeypatch, FACTORY)


def test_models_are_listed_with_their_sizes() -> None:
    report = succeed_json("models")
    assert {m["name"]: m["sizes"] for m in report["models"]} == {
        name: dict(model.sizes) for name, model in MODELS.items()
    }
    nmt = next(f for f in report["families"] if f["name"] == "nmt")
    assert nmt["graphs"] == 32
    assert sorted(nmt["training"] + nmt["test"]) == list(range(32))
    text = succeed("models")
    assert all(name in text for name in (*MODELS, "ptb", "cifar10"))


def test_a_profile_becomes_a_problem_on_what_it_was_measured_on(tmp_path: Path) -> None:
    problem = load_problem(build_profile(tmp_path))
    graph = load_pipedream_profile(tmp_path / "graph.txt")
    cluster = parse_cluster("2xv100")
    assert problem == PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=measured_compute_time(graph, cluster),
        grouping=colocate(graph, [colocate_by_id]),
        rules=("id",),
        hierarchy=(colocate(graph, [colocate_by_id]),),
    )


def test_a_model_becomes_a_problem_with_the_times_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json.gz"
    report = succeed_json("build", "nmt-2", *SMALL_NMT, "--cluster=1xcpu+2xk80", "-o", path)
    problem = load_problem(path)
    assert report["groups"] == problem.num_groups == 8
    assert report["devices"] == ["cpu:0", "k80:0", "k80:1"]
    np.testing.assert_array_equal(problem.compute_time[:, 0], cost_model(problem.graph, "cpu"))
    np.testing.assert_array_equal(problem.compute_time[:, 2], cost_model(problem.graph, "k80"))
    assert problem.graph == load_model_graph(
        "nmt-2", batch_size=4, steps=3, units=8, vocabulary_size=20
    )
    scopes = [row["scope"] for row in succeed_json("inspect", path, "--scope-depth=1")["scopes"]]
    assert "decoder" in scopes
    assert not any("." in scope for scope in scopes)


SNAILS = """
format = "placeto-cluster"
version = 3
bandwidth = 1e9
devices = [{ name = "snail:0", kind = "snail" }, { name = "snail:1", kind = "snail" }]

[kinds.snail]
memory_bytes = 1_000_000_000
memory_bandwidth = 1e12
peak_flops = 1000.0
launch_overhead = 0.25
efficiency = { matrix_product = 0.5 }
"""
SNAIL_SECONDS = 0.25 + 2 * 3 * 4 * 2 / 1000 / 0.5  # of three rows of 4 numbers times 4 x 2


def test_a_card_that_the_file_of_a_cluster_describes_has_times_of_its_own(
    factory: str, tmp_path: Path
) -> None:
    devices, path = tmp_path / "snails.toml", tmp_path / "problem.json"
    devices.write_text(SNAILS)
    build = ["build", f"{factory}:make", f"--cluster={devices}", "-o", path]
    succeed(*build)
    problem = load_problem(path)
    placed = place(nn.Linear(4, 2), torch.ones(3, 4), cluster=str(devices), seconds=0.1, quiet=True)
    for times in (problem.compute_time, placed.problem.compute_time):
        product = problem.graph.op_names.index("aten.addmm")
        assert times[product] == pytest.approx([SNAIL_SECONDS] * 2, rel=1e-9)
    assert [kind.name for kind in problem.cluster.kinds] == ["snail"]
    assert succeed_json("simulate", path, "snail:0")["runtime"] > SNAIL_SECONDS
    devices.write_text(SNAILS.replace("[kinds.snail]", "[kinds.slug]"))
    line = fail(*build, "--force")
    assert f"{devices}: devices[0].memory_bytes: expected a number, or [kinds.sn" in line


def regrouped(path: Path, *arguments: object) -> PlacementProblem:
    """Return the problem that ``build`` makes of a problem file."""
    succeed("build", path, *arguments, "--force", "-o", path.with_name("again.json"))
    return load_problem(path.with_name("again.json"))


def test_rules_and_merging_are_the_users_and_stay_with_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json"
    nmt = ["build", "nmt-2", *SMALL_NMT[:-1], "--force", "-o", path]
    succeed(*nmt, "--rule=none", "--no-merging")
    problem = load_problem(path)
    assert problem.grouping == colocate(problem.graph, [colocate_by_id])
    succeed(*nmt, "--min-output-bytes=10000")
    assert load_problem(path).group_graph.output_bytes.min() >= 10_000
    succeed(*nmt, "--groups=8", "--rule=updates", r"--scope-pattern=decoder\.cell")
    rules = (colocate_by_id, colocate_updates, partial(colocate_scopes, pattern=r"decoder\.cell"))
    again, small = regrouped(path, "--groups=20"), colocate(problem.graph, rules)
    assert again.grouping == merge_and_colocate(problem.graph, small, num_groups=20)
    assert again.rules == ("id", "updates", r"scopes:decoder\.cell")
    assert regrouped(path, "--rule=gradients").rules == ("id", "gradients")


def test_a_model_of_ones_own(tmp_path: Path, factory: str) -> None:
    path = tmp_path / "own.json"
    succeed("build", f"{factory}:make", "--batch-size=5", "--set=width=6", "-o", path)
    graph = load_problem(path).graph
    assert "aten.addmm" in graph.op_types
    sizes = dict(zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True))
    assert sizes["weight"] == 3 * 4 * 6 * 2 + 4  # weights, two moments and the steps of Adam
    succeed("build", f"{factory}:with_loss", "--force", "-o", path)
    assert any(scope == "loss" for scope in load_problem(path).graph.scopes)


def test_a_model_in_micro_batches_is_captured_with_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json"
    succeed("build", "nmt-2", *SMALL_NMT, "--micro-batches=2", "-o", path)
    problem = load_problem(path)
    sizes = {"steps": 3, "units": 8, "vocabulary_size": 20}
    part = load_model_graph("nmt-2", batch_size=2, **sizes)
    weights = np.isin(part.op_types, ["parameter", "buffer"]) | (part.phases == Phase.UPDATE)
    sums = problem.graph.op_types.count("placeto.add_gradients")
    assert problem.graph.num_ops - sums == part.num_ops + (~weights).sum()
    # Also of sums of gradients, the time is what the cost model says.
    np.testing.assert_allclose(problem.compute_time[:, 0], cost_model(problem.graph, "k80"))


def test_a_profile_in_micro_batches_is_divided_on_any_devices(tmp_path: Path) -> None:
    path, parts = build_profile(tmp_path), tmp_path / "parts.json"
    whole = load_problem(path)
    succeed("build", path, "--micro-batches=4", "-o", parts)
    assert load_problem(parts) == micro_batched_problem(whole, 4)
    moved = regrouped(parts, "--cluster=3xv100")
    assert moved.cluster.queue == "backward-first"
    assert moved.num_devices == 3
    # Weights once, layers there and back four times.
    assert moved.graph.num_ops == 10 + 4 * 20


def test_a_factory_in_micro_batches_is_called_with_a_part_of_its_batch(
    tmp_path: Path, factory: str
) -> None:
    path = tmp_path / "own.json"
    make, with_batch_size = f"{factory}:make", f"{factory}:with_batch_size"
    succeed("build", make, "--batch-size=6", "-o", path, "--micro-batches=3")
    graph = load_problem(path).graph
    inputs = [
        int(graph.tensor_bytes[graph.tensors_of_op[op][0]])
        for op, kind in enumerate(graph.op_types)
        if kind == "input"
    ]
    assert inputs == [2 * 4 * 4] * 3  # two rows of four numbers
    other = ["--force", "-o", path, "--micro-batches=3"]
    assert "needs --batch-size" in fail("build", make, *other)
    assert "divides the batch size 8 of" in fail("build", with_batch_size, *other)


def test_inspection_adds_up(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    problem = load_problem(path)
    report = succeed_json("inspect", path)
    assert report["ops"] == problem.graph.num_ops == sum(p["op_count"] for p in report["phases"])
    assert report["parameter_bytes"] == problem.graph.parameter_bytes.sum()
    seconds = problem.compute_time.min(axis=1).sum()
    assert report["compute_time"] == pytest.approx(seconds)
    assert sum(scope["compute_time"] for scope in report["scopes"]) == pytest.approx(seconds)
    assert report["lower_bound"] == lower_bound(problem)
    assert report["least_excess"] == 0
    assert [device["fits"] for device in report["devices"]] == [True, True]
    text = succeed("inspect", path)
    assert "no placement is faster than" in text
    assert re.findall(r"^(forward|backward|all) ", text, re.M) == ["forward", "backward", "all"]


def test_inspection_says_what_does_not_fit(tmp_path: Path) -> None:
    source = tmp_path / "graph.txt"
    source.write_text(profile(parameter_bytes=20_000_000_000))
    report = succeed_json("inspect", source)
    assert [device["fits"] for device in report["devices"]] == [False, False]
    assert report["least_excess"] >= (10 * 20_000_000_000 - 32_000_000_000) / 2
    text = succeed("inspect", source)
    assert "no placement fits: a device lacks" in text
    assert "does not fit; the parameters of 10 groups alone are too large" in text


def test_types_of_ops_in_no_class_are_one_line_of_warning(tmp_path: Path, factory: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = invoke("build", f"{factory}:with_own_op", "-o", tmp_path / "problem.json")
    assert result.exit_code == 0
    assert result.stderr.startswith("placeto: warning: ops of types in no class are costed by")
    assert re.search(r"'own_library\.swap' \(\d+\.\d% on k80\)\n$", result.stderr)
    assert result.stderr.count("\n") == 1
