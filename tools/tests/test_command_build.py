"""``placeto models``, ``build`` and ``inspect``: sources of all kinds, from shell to file."""

import json
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper
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
from placeto.problems.making import kinds_text
from placeto_baselines import lower_bound
from placeto_capture import capture, cost_model
from placeto_graphs import (
    OpGraph,
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
from small_transformers import DECODER

FACTORY = """
import warnings
import torch
from torch import nn

INPUTS = torch.ones(3, 4)

def make(width=4, **sizes):
    return nn.Linear(width, 2), torch.ones(sizes.get("batch_size", 3), width)

def with_batch_size(batch_size=8):
    return make(batch_size=batch_size)

def with_loss():
    return nn.Linear(4, 2), INPUTS, lambda outputs: outputs.square().sum()

def with_dropout():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.ReLU()), INPUTS

def with_momentum():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "momentum": 0.9}, {"params": [model.bias]}], lr=0.1
    )
    return model, INPUTS, None, optimizer

def with_warning():
    warnings.warn("of two\\nlines")
    return make()

def to_infer():
    return {"model": nn.Linear(4, 2), "example_inputs": {"input": INPUTS}, "mode": "inference"}

class Masked(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y[y > 0].square().mean()

def masked(fraction=None):
    step = {"model": Masked(4, 4), "example_inputs": torch.ones(16, 4)}
    return step if fraction is None else {**step, "mask_fraction": fraction}

def given(**values):
    raise ValueError(repr(values))

def of_another():
    return nn.Linear(4, 2), INPUTS, None, torch.optim.SGD([torch.ones(1)], lr=0.1)

def wrong_key():
    return {"model": nn.Linear(4, 2), "inputs": INPUTS}

def wrong_mode():
    return nn.Linear(4, 2), INPUTS, None, None, "dreaming"

def nothing():
    return None

def broken():
    raise RuntimeError("two\\nlines")

number = 3
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return write_module(tmp_path, monkeypatch, FACTORY)


def built(path: Path, source: object, *options: object) -> PlacementProblem:
    """Return the problem that ``build`` makes of a source in a file."""
    succeed("build", source, *options, "--force", "-o", path)
    return load_problem(path)


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


def test_a_card_that_the_file_of_a_cluster_describes_has_times_of_its_own(
    factory: str, tmp_path: Path
) -> None:
    devices, path = tmp_path / "snails.toml", tmp_path / "problem.json"
    devices.write_text(SNAILS)
    problem = built(path, f"{factory}:make", f"--cluster={devices}")
    placed = place(nn.Linear(4, 2), torch.ones(3, 4), cluster=str(devices), seconds=0.1, quiet=True)
    expected = 0.25 + 2 * 3 * 4 * 2 / 1000 / 0.5  # three rows of 4 numbers times 4 x 2
    for times in (problem.compute_time, placed.problem.compute_time):
        product = problem.graph.op_names.index("aten.addmm")
        assert times[product] == pytest.approx([expected] * 2, rel=1e-9)
    assert succeed_json("simulate", path, "snail:0")["runtime"] > expected
    devices.write_text(SNAILS.replace("[kinds.snail]", "[kinds.slug]"))
    line = fail("inspect", f"{factory}:make", f"--cluster={devices}")
    assert f"{devices}: devices[0].kind: expected cpu, another known kind, [kinds.sn" in line
    assert f"{devices}: expected a model, a problem or graph" in fail("inspect", devices)


def test_rules_and_merging_are_the_users_and_stay_with_a_problem(tmp_path: Path) -> None:
    path, second_path = tmp_path / "nmt.json", tmp_path / "again.json"
    nmt = ["nmt-2", *SMALL_NMT[:-1]]
    problem = built(path, *nmt, "--rule=none", "--no-merging")
    assert problem.grouping == colocate(problem.graph, [colocate_by_id])
    merged = built(path, *nmt, "--min-output-bytes=10000")
    assert merged.group_graph.output_bytes.min() >= 10_000
    built(path, *nmt, "--groups=8", "--rule=updates", r"--scope-pattern=decoder\.cell")
    rules = (colocate_by_id, colocate_updates, partial(colocate_scopes, pattern=r"decoder\.cell"))
    again, small = built(second_path, path, "--groups=20"), colocate(problem.graph, rules)
    assert again.grouping == merge_and_colocate(problem.graph, small, num_groups=20)
    assert again.rules == ("id", "updates", r"scopes:decoder\.cell")
    assert built(second_path, path, "--rule=gradients").rules == ("id", "gradients")


def test_a_model_of_ones_own_with_its_loss_optimizer_and_mode(tmp_path: Path, factory: str) -> None:
    path = tmp_path / "own.json"

    def held(graph: OpGraph) -> dict[str, int]:
        return dict(zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True))

    graph = built(path, f"{factory}:make", "--batch-size=5", "--set=width=6").graph
    assert "aten.addmm" in graph.op_types
    assert held(graph)["weight"] == 3 * 4 * 6 * 2 + 4  # with two moments and the steps of Adam
    assert "loss" in built(path, f"{factory}:with_loss").graph.scopes
    both = held(built(path, f"{factory}:with_momentum").graph)
    assert (both["weight"], both["bias"]) == (2 * 4 * 8, 4 * 2)  # one of them has a momentum
    assert set(built(path, f"{factory}:to_infer").graph.phases.tolist()) == {0}


def test_a_model_in_micro_batches_is_captured_with_one_of_them(tmp_path: Path) -> None:
    problem = built(tmp_path / "nmt.json", "nmt-2", *SMALL_NMT, "--micro-batches=2")
    micro_batch = load_model_graph("nmt-2", batch_size=2, steps=3, units=8, vocabulary_size=20)
    weights = np.isin(micro_batch.op_types, ["parameter", "buffer"]) | (
        micro_batch.phases == Phase.UPDATE
    )
    sums = problem.graph.op_types.count("placeto.add_gradients")  # each with a total
    assert problem.graph.num_ops - 2 * sums == micro_batch.num_ops + (~weights).sum()
    # Also of sums of gradients, the time is what the cost model says.
    np.testing.assert_allclose(problem.compute_time[:, 0], cost_model(problem.graph, "k80"))


def test_a_model_in_copies_is_captured_with_a_part_of_the_batch_for_each(tmp_path: Path) -> None:
    path = tmp_path / "nmt.json"
    problem = built(path, "nmt-2", *SMALL_NMT, "--copies=2")
    part = load_model_graph("nmt-2", batch_size=2, steps=3, units=8, vocabulary_size=20)
    assert problem.graph.op_names[: part.num_ops] == tuple(f"{name}#0" for name in part.op_names)
    assert (problem.graph.flops[: part.num_ops] == part.flops).all()
    assert "placeto.sum_copies" in problem.graph.op_types
    # Also of sums of copies, the time is what the cost model says.
    np.testing.assert_allclose(problem.compute_time[:, 0], cost_model(problem.graph, "k80"))
    shards = built(path, "nmt-2", *SMALL_NMT, "--copies=2", "--shard")
    assert "placeto.shard" in shards.graph.op_types
    output = ("-o", tmp_path / "no.json")
    error = fail("build", "nmt-2", *SMALL_NMT, "--cluster=3xk80", "--copies=3", *output)
    assert "--copies: expected a number that divides the batch size 4 of nmt-2" in error


def test_a_profile_becomes_a_problem_that_is_divided_on_any_devices(tmp_path: Path) -> None:
    path, profiled = build_profile(tmp_path), tmp_path / "graph.txt"
    whole, graph = load_problem(path), load_pipedream_profile(profiled)
    other_name = profiled.rename(tmp_path / "resnet50")
    assert built(tmp_path / "other.json", other_name).graph == graph
    assert (whole.graph, whole.cluster) == (graph, parse_cluster("2xv100"))
    assert (whole.compute_time == measured_compute_time(graph, whole.cluster)).all()
    assert whole.grouping == colocate(graph, [colocate_by_id])
    divided_path = tmp_path / "parts.json"
    assert built(divided_path, path, "--micro-batches=4") == micro_batched_problem(whole, 4)
    moved = built(tmp_path / "moved.json", divided_path, "--cluster=3xv100")
    assert (moved.cluster.queue, moved.num_devices) == ("backward-first", 3)
    error = fail("place", divided_path, "--micro-batches=2", "-o", tmp_path / "placement.json")
    assert f"--micro-batches: expected none for {divided_path}, whose step is in 4 already" in error


def test_a_factory_in_micro_batches_is_called_with_a_part_of_its_batch(
    tmp_path: Path, factory: str
) -> None:
    path = tmp_path / "own.json"
    make, with_batch_size = f"{factory}:make", f"{factory}:with_batch_size"
    graph = built(path, make, "--batch-size=6", "--micro-batches=3").graph
    inputs = [
        int(graph.tensor_bytes[graph.tensors_of_op[op][0]])
        for op, kind in enumerate(graph.op_types)
        if kind == "input"
    ]
    assert inputs == [2 * 4 * 4] * 3  # two rows of four numbers
    options = ["--force", "-o", path, "--micro-batches=3"]
    assert "needs --batch-size" in fail("build", make, *options)
    assert "divides the batch size 8 of" in fail("build", with_batch_size, *options)


def test_inspection_adds_up(tmp_path: Path) -> None:
    path = build_profile(tmp_path)
    problem = load_problem(path)
    report = succeed_json("inspect", path)
    assert report["ops"] == problem.graph.num_ops == sum(p["op_count"] for p in report["phases"])
    assert report["parameter_bytes"] == problem.graph.parameter_bytes.sum()
    seconds = problem.compute_time.min(axis=1).sum()
    assert report["compute_time"] == pytest.approx(seconds)
    assert sum(scope["compute_time"] for scope in report["scopes"]) == pytest.approx(seconds)
    searched = problem.at_level(len(problem.levels) - 1)
    assert (report["lower_bound"], report["least_excess"]) == (lower_bound(searched), 0)
    assert [device["fits"] for device in report["devices"]] == [True, True]
    text = succeed("inspect", path)
    assert f"no placement in {searched.num_groups} groups is faster than" in text
    assert re.findall(r"^(forward|backward|all) ", text, re.M) == ["forward", "backward", "all"]
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=20_000_000_000))
    text = succeed("inspect", tmp_path / "graph.txt")
    assert "no placement in 10 groups fits: a device lacks " in text
    assert "does not fit; the parameters of 10 groups alone are too large" in text


def test_a_warning_is_one_line(tmp_path: Path, factory: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = invoke("build", f"{factory}:with_warning", "-o", tmp_path / "problem.json")
    assert (result.exit_code, result.stderr) == (0, "placeto: warning: of two lines\n")


@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_small_transformer_in_micro_batches(tmp_path: Path) -> None:
    sizes = ["n_layer=2", "n_embd=16", "n_head=2", "vocab_size=30", "sequence_length=6"]
    options = [*(f"--set={size}" for size in sizes), "--batch-size=4", "--micro-batches=2"]
    source = "transformers:gpt2"
    names = built(tmp_path / "problem.json.gz", source, *options, "--groups=12").graph.op_names
    assert {"input.input_ids@0", "input.input_ids@1"} <= set(names)
    assert "divides the batch size 8 of transformers:gpt2, got 3" in fail(
        "build", source, "--micro-batches=3", "-o", tmp_path / "b.json"
    )


def test_kernels_are_those_of_the_cluster(tmp_path: Path, factory: str) -> None:
    drops = {"2xcpu": "aten.bernoulli_", "1xcpu+1xk80": "aten.native_dropout"}
    for cluster, dropped_by in drops.items():
        options = [f"{factory}:with_dropout", "--cluster", cluster]
        graph = built(tmp_path / "problem.json", *options).graph
        assert set(drops.values()) & set(graph.op_types) == {dropped_by}
    clusters = [f"--cluster={cluster}" for cluster in drops]
    folder = tmp_path / "results"
    succeed("compare", options[0], *clusters, "--placers=single", "-o", folder)
    paths = [*(folder / "problems").iterdir()]
    assert len(paths) == 2
    for path in paths:
        problem = load_problem(path)
        (dropped_by,) = set(drops.values()) & set(problem.graph.op_types)
        assert dropped_by == drops[kinds_text(problem.cluster)]


def test_a_value_is_json_or_else_a_text(factory: str) -> None:
    texts = ["a=1", "b=1.5", "c=true", "d=null", 'e="3"', "f=[1,[2]]", "g=word", "h=NaN", "i=[1"]
    sizes = [f"--set={text}" for text in texts]
    line = fail("build", f"{factory}:given", *sizes, "-o", "problem.json")
    values = [1, 1.5, True, None, "3", [1, [2]], "word", "NaN", "[1"]
    expected = dict(zip("abcdefghi", values, strict=True))
    assert line.endswith(f"ValueError: {expected!r}\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of_another", "expected an optimizer of parameters of the model"),
        ("wrong_key", "got 'inputs' in it"),
        ("wrong_mode", "mode: expected one of training, inference, got 'dreaming'"),
        ("nothing", "expected a model and example inputs"),
        ("broken", "RuntimeError: two lines"),
        ("number", "that can be called, got 3"),
    ],
)
def test_a_factory_that_returns_something_else_is_refused(
    factory: str, name: str, message: str
) -> None:
    assert message in fail("build", f"{factory}:{name}", "-o", "problem.json")


def test_an_exported_program_is_a_source_if_it_is_trusted(tmp_path: Path) -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.ones(3, 4)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (inputs,)), path)
    graph = built(tmp_path / "problem.json", path, "--trust").graph
    assert set(graph.op_types) == set(capture(model, inputs).op_types)
    path.write_bytes(path.read_bytes()[:100])
    assert "model.pt2: expected an exported program" in fail("inspect", path, "--trust")


def test_an_onnx_file_is_a_source(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", 1, [4, 2], np.ones(8, np.float32))
    rows = helper.make_tensor_value_info("x", 1, ["batch", 4])
    scores = helper.make_tensor_value_info("y", 1, None)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "graph", [rows], [scores], [weight])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    report = succeed_json("inspect", path, "--batch-size=3")
    forward = next(row for row in report["phases"] if row["phase"] == "forward")
    assert forward["flops"] >= 2 * 3 * 4 * 2
    assert "--set batch=N" in fail("inspect", path)
    path.write_bytes(b"nothing")
    assert "model.onnx: expected an ONNX file" in fail("inspect", path)


def test_what_masks_pick_is_said_where_the_error_says_so(tmp_path: Path, factory: str) -> None:
    path, source, set_fraction = tmp_path / "a.json", f"{factory}:masked", "--set=fraction=0.25"
    assert "say with mask_fraction" in fail("inspect", source)
    assert "--mask-fraction" in fail("inspect", source, "--mask-fraction=1.5")
    for picked, *options in (
        (32, "--mask-fraction=0.5"),
        (16, set_fraction),
        (64, set_fraction, "--mask-fraction=1"),
    ):
        graph = built(path, source, *options).graph
        square = graph.op_types.index("aten.pow")
        assert graph.tensor_bytes[graph.tensor_producer == square].tolist() == [picked * 4]
    options = ["--placers=single", "--gpus=2", "--mask-fraction=0.5", "--groups=4"]
    assert succeed_json("compare", source, *options)["problems"]


def test_published_graphs_are_priced_as_in_their_papers(tmp_path: Path) -> None:
    partitioning = tmp_path / "chain.json"
    nodes = [
        {"id": node, "cpuLatency": 90.0, "fpgaLatency": latency, "size": 1e6}
        for node, latency in ((1, 3.0), (2, 2.0), (3, 2.0))
    ]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.25}]
    devices = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 1e9}
    partitioning.write_text(json.dumps({**devices, "nodes": nodes, "edges": edges}))
    written = ("-o", tmp_path / "placement.json", "--max-evaluations=50")
    placed = succeed_json("place", partitioning, *written)
    assert placed["evaluator"] == "throughput"
    # The first alone, with what leaves it: 3 + 0.5 ms; the others, with what comes in: 4.5 ms.
    assert placed["runtime"] == pytest.approx(4.5e-3)
    report = succeed_json("inspect", partitioning)
    assert [device["runtime"] for device in report["devices"]] == pytest.approx([7e-3, 7e-3, 0.27])
    assert [device["peak_memory"] for device in report["devices"]] == [3_000_000] * 3
    # No bound of bytes of tensors that are not known.
    assert "no placement" not in succeed("inspect", partitioning)
    (tmp_path / "profile.txt").write_text(profile(4))
    problems = succeed_json("compare", tmp_path, "--placers=single")["problems"]
    assert [problem["evaluator"] for problem in problems] == ["throughput", "latency"]


def test_the_command_builds_steps_of_inference(tmp_path: Path) -> None:
    small = [f"--set={name}={value}" for name, value in DECODER.items()]
    llama = ["transformers:llama", *small, "--context=8"]
    file = tmp_path / "decode.json"
    output = ("-o", tmp_path / "no.json")
    assert "ops in" in succeed("build", *llama, "--mode=decode", "--weight-bits=4", "-o", file)
    assert "--context: needs --mode prefill or --mode decode" in fail("build", *output, *llama)
    refused = fail("build", *output, *llama, "--mode=decode", "--micro-batches=2")
    assert "--micro-batches: expected 1 with --mode decode" in refused
    refused = fail("build", *output, "timm:resnet18", "--mode=decode")
    assert "mode: expected a model of transformers for decode" in refused
    for source in ("nmt-2", str(file)):
        refused = fail("build", *output, source, "--mode=decode")
        assert f"--mode: expected training for {source}; name a GGUF or" in refused
