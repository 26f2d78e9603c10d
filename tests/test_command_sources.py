"""Sources of ``placeto``: models of libraries, programs in files, factories of any values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from command_runs import (
    SMALL_NMT,
    fail,
    profile,
    succeed,
    succeed_json,
    write_module,
)
from placeto_capture import capture
from placeto_graphs import OpGraph, load_problem

FACTORY = """
import functools
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.ReLU()), torch.ones(3, 4)

def given(**values):
    raise ValueError(repr(values))

def with_momentum():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "momentum": 0.9}, {"params": [model.bias]}], lr=0.1
    )
    return model, torch.ones(3, 4), None, optimizer

def with_maker():
    return nn.Linear(4, 2), torch.ones(3, 4), None, functools.partial(torch.optim.SGD, lr=0.1)

def to_infer():
    inputs = {"input": torch.ones(3, 4)}
    return {"model": nn.Linear(4, 2), "example_inputs": inputs, "mode": "inference"}

def of_another():
    return nn.Linear(4, 2), torch.ones(3, 4), None, torch.optim.SGD([torch.ones(1)], lr=0.1)

def wrong_key():
    return {"model": nn.Linear(4, 2), "inputs": torch.ones(3, 4)}

def nothing():
    return None

def broken():
    raise RuntimeError("two\\nlines")

number = 3

class Confident(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.score = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        y = self.features(x)
        return y[self.score(y).squeeze(-1) > 0].square().mean()

def masked(fraction=None):
    step = {"model": Confident(), "example_inputs": torch.ones(16, 8)}
    return step if fraction is None else {**step, "mask_fraction": fraction}

def wrong_mode():
    return nn.Linear(4, 2), torch.ones(3, 4), None, None, "dreaming"
"""
SMALL_GPT2 = "n_layer=2 n_embd=16 n_head=2 vocab_size=30 sequence_length=6"


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return write_module(tmp_path, monkeypatch, FACTORY)


def settings(text: str) -> list[str]:
    return [f"--set={setting}" for setting in text.split()]


@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_small_transformer_is_placed_in_micro_batches(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path, source = tmp_path / "problem.json.gz", "transformers:gpt2"
    options = [*settings(SMALL_GPT2), "--cluster=4xv100", "--groups=12", "--batch-size=4"]
    succeed("build", source, *options, "--micro-batches=2", "-o", path)
    names = load_problem(path).graph.op_names
    assert {"input.input_ids@0", "input.input_ids@1"} <= set(names)
    report = succeed_json("simulate", path, "v100:3")
    busy = [row["busy"] for row in report["devices"]]
    assert busy[:3] == [0, 0, 0]
    assert busy[3] > 0.1
    assert "divides the batch size 8 of transformers:gpt2, got 3" in fail(
        "build", source, "--micro-batches=3", "-o", tmp_path / "b.json"
    )


@pytest.mark.parametrize(
    ("cluster", "dropped_by"),
    [("2xcpu", "aten.bernoulli_"), ("1xcpu+1xk80", "aten.native_dropout")],
)
def test_kernels_are_those_of_the_cluster(
    tmp_path: Path, factory: str, cluster: str, dropped_by: str
) -> None:
    path = tmp_path / "problem.json"
    succeed("build", f"{factory}:make", "--cluster", cluster, "-o", path)
    drops = {"aten.bernoulli_", "aten.native_dropout"} & set(load_problem(path).graph.op_types)
    assert drops == {dropped_by}


def test_a_value_is_json_or_else_a_text(factory: str) -> None:
    given = ["a=1", "b=1.5", "c=true", "d=null", 'e="3"', "f=[1,[2]]", "g=word", "h=NaN", "i=[1"]
    line = fail("build", f"{factory}:given", *settings(" ".join(given)), "-o", "problem.json")
    values = [1, 1.5, True, None, "3", [1, [2]], "word", "NaN", "[1"]
    expected = dict(zip("abcdefghi", values, strict=True))
    assert line.endswith(f"ValueError: {expected!r}\n")


def graph_of(path: Path, source: str, *options: str) -> Any:
    succeed("build", source, *options, "--force", "-o", path)
    return load_problem(path).graph


def test_the_optimizer_of_a_factory_is_used(tmp_path: Path, factory: str) -> None:
    path = tmp_path / "problem.json"
    model, inputs = nn.Linear(4, 2), torch.ones(3, 4)
    plain = graph_of(path, f"{factory}:with_maker")
    assert plain == capture(model, inputs, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    both = graph_of(path, f"{factory}:with_momentum")
    held = dict(zip(both.op_names, both.parameter_bytes.tolist(), strict=True))
    assert (held["weight"], held["bias"]) == (2 * 4 * 8, 4 * 2)  # one of them has a momentum


def test_the_mode_of_a_factory_is_used(tmp_path: Path, factory: str) -> None:
    graph = graph_of(tmp_path / "problem.json", f"{factory}:to_infer")
    assert set(graph.phases.tolist()) == {0}
    assert "mode: expected one of training, inference, got 'dreaming'" in fail(
        "build", f"{factory}:wrong_mode", "-o", tmp_path / "b.json"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of_another", "expected an optimizer of parameters of the model"),
        ("wrong_key", "got 'inputs' in it"),
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
    path, problem = tmp_path / "model.pt2", tmp_path / "problem.json"
    torch.export.save(torch.export.export(model, (inputs,)), path)
    assert "can run code that it contains; if you trust it, add --trust" in fail("inspect", path)
    succeed("build", path, "--trust", "-o", problem)
    assert set(load_problem(problem).graph.op_types) == set(capture(model, inputs).op_types)
    (tmp_path / "cut.pt2").write_bytes(path.read_bytes()[:100])
    assert "cut.pt2: expected an exported program" in fail(
        "inspect", tmp_path / "cut.pt2", "--trust"
    )
    assert "none.pt2: No such file" in fail("inspect", tmp_path / "none.pt2")


def test_an_onnx_file_is_a_source(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx.helper")
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


def rows_picked(graph: OpGraph) -> float:
    """The rows that the mask of `Confident` picks, of which each has eight floats."""
    square = graph.op_types.index("aten.pow")
    (size,) = graph.tensor_bytes[graph.tensor_producer == square].tolist()
    return float(size) / (8 * 4)


def test_what_masks_pick_is_said_where_the_error_says_so(tmp_path: Path, factory: str) -> None:
    path = tmp_path / "problem.json"
    assert "say with mask_fraction" in fail("inspect", f"{factory}:masked")
    assert "--mask-fraction" in fail("inspect", f"{factory}:masked", "--mask-fraction=1.5")
    succeed("build", f"{factory}:masked", "--mask-fraction=0.5", "-o", path)
    assert rows_picked(load_problem(path).graph) == 8
    assert rows_picked(graph_of(path, f"{factory}:masked", "--set=fraction=0.25")) == 4
    as_said = graph_of(path, f"{factory}:masked", "--set=fraction=0.25", "--mask-fraction=1")
    assert rows_picked(as_said) == 16
    options = ["--placers=single", "--gpus=2", "--mask-fraction=0.5", "--groups=4"]
    assert succeed_json("compare", f"{factory}:masked", *options)["problems"]
    message = fail("inspect", path, "--mask-fraction=0.5")
    assert f"--mask-fraction: expected none for the file {path}" in message


def test_a_placement_of_a_model_is_used_with_the_same_options(tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    options = [*SMALL_NMT, "--cluster=3xv100", "--link=pcie", "--rule=none", "--micro-batches=2"]
    report = succeed_json("place", "nmt-2", "--placer=m-topo", "-o", placement, *options)
    assert len(json.loads(placement.read_text())) == 8
    again = succeed_json("simulate", "nmt-2", placement, *options)
    assert again["runtime"] == report["runtime"]
    assert [row["device"] for row in again["devices"]] == ["v100:0", "v100:1", "v100:2"]


PARTITIONING = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 1e9,
    "nodes": [
        {"id": number, "cpuLatency": 90.0, "fpgaLatency": latency, "size": 1e6}
        for number, latency in ((1, 3.0), (2, 2.0), (3, 2.0))
    ],
    "edges": [
        {"sourceId": 1, "destId": 2, "cost": 0.5},
        {"sourceId": 2, "destId": 3, "cost": 0.25},
    ],
}


def test_published_graphs_are_priced_as_in_their_papers(tmp_path: Path) -> None:
    partitioning = tmp_path / "chain.json"
    partitioning.write_text(json.dumps(PARTITIONING))
    written = ("-o", tmp_path / "placement.json", "--max-evaluations=50")
    placed = succeed_json("place", partitioning, *written)
    assert placed["evaluator"] == "throughput"
    # The first alone, with what leaves it: 3 + 0.5 ms; the others, with what comes in: 4.5 ms.
    assert placed["runtime"] == pytest.approx(4.5e-3)
    report = succeed_json("inspect", partitioning)
    assert [device["runtime"] for device in report["devices"]] == pytest.approx([7e-3, 7e-3, 0.27])
    assert [device["peak_memory"] for device in report["devices"]] == [3_000_000] * 3
    text = succeed("inspect", partitioning)
    assert "time per sample" in text
    assert "no placement" not in text  # of bytes of tensors that are not known
    (tmp_path / "profile.txt").write_text(profile(4))
    problems = succeed_json("compare", tmp_path, "--placers=single")["problems"]
    assert [one["evaluator"] for one in problems] == ["throughput", "latency"]
    one = succeed_json("compare", tmp_path, "--placers=single", "--objective=latency")
    assert {problem["evaluator"] for problem in one["problems"]} == {"latency"}
