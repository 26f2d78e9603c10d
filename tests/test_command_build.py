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
    succeed("build", f"{factory}:make", f"--cluster={devices}", "-o", path)
    problem = load_problem(path)
    product = problem.graph.op_names.index("aten.addmm")
    assert problem.compute_time[product] == pytest.approx([SNAIL_SECONDS] * 2, rel=1e-9)
    assert [kind.name for kind in problem.cluster.kinds] == ["snail"]
    placement = tmp_path / "placement.json"
    succeed("place", f"{factory}:make", f"--cluster={devices}", "--placer=heft", "-o", placement)
    report = succeed_json("simulate", path, placement)
    assert report["runtime"] > SNAIL_SECONDS
    placed = place(nn.Linear(4, 2), torch.ones(3, 4), cluster=str(devices), seconds=0.1, quiet=True)
    assert placed.problem.compute_time[product] == pytest.approx([SNAIL_SECONDS] * 2, rel=1e-9)
    devices.write_text(SNAILS.replace("[kinds.snail]", "[kinds.slug]"))
    line = fail("build", f"{factory}:make", f"--cluster={devices}", "-o", path, "--force")
    assert f"{devices}: devices[0].memory_bytes: expected a number, or [kinds.sn" in line


def test_rules_and_merging_are_the_users(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json"
    pattern = r"decoder\.layer\d+"
    nmt = ["build", "nmt-2", *SMALL_NMT[:-1], "--force", "-o", path]
    succeed(*nmt, "--rule=none", "--no-merging")
    alone = load_problem(path)
    assert alone.grouping == colocate(alone.graph, [colocate_by_id])
    succeed(*nmt, "--rule=none", "--no-merging", "--scope-pattern", pattern)
    by_scope = load_problem(path).grouping
    layers: dict[str, set[int]] = {}
    for op, scope in enumerate(alone.graph.scopes):
        if match := re.match(pattern, scope):
            layers.setdefault(match.group(), set()).add(int(by_scope.group_of[op]))
    assert len(layers) == 2
    assert all(len(groups) == 1 for groups in layers.values())
    succeed(*nmt, "--min-output-bytes=10000")
    assert load_problem(path).group_graph.output_bytes.min() >= 10_000


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
    assert problem.num_groups == 8
    # Also of sums of gradients, the time is what the cost model says.
    np.testing.assert_allclose(problem.compute_time[:, 0], cost_model(problem.graph, "k80"))
    whole = load_model_graph("nmt-2", batch_size=4, **sizes)
    assert problem.graph.parameter_bytes.sum() == whole.parameter_bytes.sum()


def test_a_profile_in_micro_batches_is_divided_on_any_devices(tmp_path: Path) -> None:
    whole = load_problem(build_profile(tmp_path))
    parts, moved = tmp_path / "parts.json", tmp_path / "moved.json"
    for source in ("graph.txt", "problem.json"):
        succeed("build", tmp_path / source, "--micro-batches=4", "--force", "-o", parts)
        found = load_problem(parts)
        assert found == micro_batched_problem(whole, 4)
        assert found.graph.num_ops == 10 + 4 * 20  # weights once, layers there and back four times
        assert found.compute_time.sum() == pytest.approx(whole.compute_time.sum())
    succeed("build", parts, "--cluster=3xv100", "-o", moved)
    assert load_problem(moved).cluster.queue == found.cluster.queue == "backward-first"
    assert load_problem(moved).num_devices == 3


def test_a_factory_in_micro_batches_is_called_with_a_part_of_its_batch(
    tmp_path: Path, factory: str
) -> None:
    path = tmp_path / "own.json"
    succeed("build", f"{factory}:make", "--batch-size=6", "-o", path, "--micro-batches=3")
    graph = load_problem(path).graph
    inputs = [
        int(graph.tensor_bytes[graph.tensors_of_op[op][0]])
        for op, kind in enumerate(graph.op_types)
        if kind == "input"
    ]
    assert inputs == [2 * 4 * 4] * 3  # two rows of four numbers
    assert "needs --batch-size" in fail(
        "build", f"{factory}:make", "-o", tmp_path / "b.json", "--micro-batches=3"
    )
    succeed("build", f"{factory}:with_batch_size", "--force", "-o", path, "--micro-batches=4")
    assert "divides the batch size 8 of" in fail(
        "build", f"{factory}:with_batch_size", "-o", tmp_path / "b.json", "--micro-batches=3"
    )


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
    assert "forward" in text


def test_inspection_says_what_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=9_000_000_000))
    report = succeed_json("inspect", tmp_path / "graph.txt")
    assert [device["fits"] for device in report["devices"]] == [False, False]
    assert report["least_excess"] >= (10 * 9_000_000_000 - 32_000_000_000) / 2
    assert "no placement fits: a device lacks 29.0 GB or more" in succeed(
        "inspect", tmp_path / "graph.txt"
    )
    assert "does not fit" in succeed("inspect", tmp_path / "graph.txt")
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=20_000_000_000))
    report = succeed_json("inspect", tmp_path / "graph.txt")
    assert len(report["devices"][0]["too_large_groups"]) == 10
    assert "10 groups alone are too large" in succeed("inspect", tmp_path / "graph.txt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abc:1"], "name: expected one of nmt, ptb, cifar10, ptb-enas, cifar10-enas, got 'abc'"),
        (["no_such_module:make"], "no_such_module:make: expected a module that can be imported"),
        (["nmt-2", "--set=steps=x"], "--set steps: expected a whole number, got 'x'"),
        (["nmt-2", "--set=steps=3", "--set=steps=4"], "steps: expected it once, got it again"),
        (["nmt-2", "--batch-size=3", "--set=batch-size=4"], "batch_size: expected it once, got"),
        (["nmt-2", "--set=x=1"], "expected sizes among steps, batch_size"),
        (["nmt-2", "--set=x"], "expected NAME=VALUE, got 'x'"),
        (
            ["nmt-2", "--batch-size=6", "--micro-batches=4"],
            "--micro-batches: expected a number that divides the batch size 6 of nmt-2, got 4",
        ),
        (["nmt-2", "--micro-batches=0"], "0 is not in the range x>=1"),
        (["nmt-2", "--rule=friends"], "got 'friends'"),
        (["nmt-2", "--no-merging", "--groups=4"], "--no-merging: excludes --groups"),
        (["nmt-2", *SMALL_NMT, "--scope-pattern=("], "pattern: expected a regular expression"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fail("build", *arguments, "-o", "problem.json")
    assert not list(tmp_path.iterdir())


def regrouped(path: Path, *arguments: object) -> PlacementProblem:
    """Return the problem that ``build`` makes of a problem file."""
    succeed("build", path, *arguments, "--force", "-o", path.with_name("again.json"))
    return load_problem(path.with_name("again.json"))


def test_the_rules_of_the_user_stay_with_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json"
    options = ["--rule=updates", r"--scope-pattern=decoder\.cell"]
    succeed("build", "nmt-2", *SMALL_NMT, *options, "-o", path)
    graph = load_problem(path).graph
    rules = (colocate_by_id, colocate_updates, partial(colocate_scopes, pattern=r"decoder\.cell"))
    again = regrouped(path, "--groups=20")
    assert again.grouping == merge_and_colocate(graph, colocate(graph, rules), num_groups=20)
    assert again.rules == ("id", "updates", r"scopes:decoder\.cell")
    assert regrouped(path, "--rule=gradients").rules == ("id", "gradients")


def test_types_of_ops_in_no_class_are_one_line_of_warning(tmp_path: Path, factory: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = invoke("build", f"{factory}:with_own_op", "-o", tmp_path / "problem.json")
    assert result.exit_code == 0
    assert result.stderr.startswith("placeto: warning: ops of types in no class are costed by")
    assert re.search(r"'own_library\.swap' \(\d+\.\d% on k80\)\n$", result.stderr)
    assert result.stderr.count("\n") == 1


def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    assert "expected no sizes for the file" in fail(
        "build", path, "--batch-size=3", "-o", tmp_path / "b.json"
    )
    (tmp_path / "folder.json").mkdir()
    assert "expected a file, got a folder" in fail("build", "nmt-2", "-o", tmp_path / "folder.json")
    (tmp_path / "graph.txt").write_text("node1 -- \x1b[31m")
    assert "\x1b" not in fail("inspect", tmp_path / "graph.txt")
