"""From what a user names to a model: one table of kinds, for graphs and for steps that run."""

import json
import re
from pathlib import Path

import networkx as nx
import pytest
from torch import nn

from placeto.errors import InputError
from placeto.placing.placers import make_placer
from placeto.problems.making import make_problem, runnable_source
from placeto.problems.options import SourceOptions, read_cluster
from placeto.problems.sources import load_source, source_model
from placeto_graphs import (
    GraphError,
    from_networkx,
    load_dnn_partitioning,
    save_graph,
)
from placeto_simulator import Simulator
from placeto_workloads import MODELS, family

SMALL = SourceOptions({"units": 8, "vocabulary_size": 10})


def test_a_member_of_a_family_has_what_suits_its_family_and_a_file_no_model() -> None:
    for text in ("problem.json", "graph.json.gz", "profile.txt", "a/folder"):
        with pytest.raises(InputError, match=r"other sources have no model to run$"):
            runnable_source(text, SourceOptions())
    found = runnable_source("nmt:7", SMALL)
    nmt = family("nmt", sampler=None, units=8, vocabulary_size=10)
    assert (found.name, found.rules, found.num_groups) == (
        *("nmt-07", nmt.colocation_rules, nmt.num_groups),
    )
    assert isinstance(found.make("meta").model, nn.Module)
    with pytest.raises(InputError, match=r"^nmt:32: expected a graph from 0 to 31$"):
        source_model("nmt:32", SMALL)


def test_a_model_has_its_rules_and_a_part_of_its_batch() -> None:
    sizes = SourceOptions({"batch_size": 6, "steps": 2, "units": 8, "vocabulary_size": 10})
    assert source_model("nmt-2", sizes).rules == MODELS["nmt-2"].colocation_rules
    shapes = [
        source_model("nmt-2", sizes, count).make("meta").example_inputs[0].shape for count in (1, 3)
    ]
    assert 6 in shapes[0]
    assert 2 in shapes[1]
    assert 6 not in shapes[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"flops":[0.0',
            '"flops":[-1.0',
            "graph.flops[0]: expected a finite number >= 0, got -1.0",
        ),
        ('"placeto-graph"', '"other"', "format: expected 'placeto-problem', got 'other'"),
    ],
)
def test_what_is_wrong_in_a_file_of_a_graph_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "graph.json"
    save_graph(from_networkx(nx.DiGraph([("a", "b")])), path)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))
    with pytest.raises(GraphError, match=f"^{re.escape(f'{path}: {message}')}$"):
        load_source(str(path))


PARTITIONING = {
    "maxFPGAs": 3,
    "maxCPUs": 1,
    "maxSizePerFPGA": 1e9,
    "nodes": [
        {"id": 7, "cpuLatency": 9.0, "fpgaLatency": 2.0, "size": 1e6, "colorClass": 1},
        {"id": 8, "cpuLatency": 1.0, "fpgaLatency": 1.0, "size": 0, "colorClass": 1},
        {"id": 9, "cpuLatency": 1.0, "fpgaLatency": 1.0, "size": 0},
    ],
    "edges": [{"sourceId": 7, "destId": 8, "cost": 0.5}],
}


def test_an_input_of_dnn_partitioning_has_its_devices_groups_and_objective(tmp_path: Path) -> None:
    path = tmp_path / "bert.json"
    path.write_text(json.dumps(PARTITIONING))
    found = load_source(str(path))
    assert (found.name, found.evaluator, found.num_groups) == ("bert", "throughput", 2)
    assert make_problem(found) == load_dnn_partitioning(path)
    path.write_text(json.dumps(PARTITIONING | {"nodes": [{"id": 1}]}))
    with pytest.raises(GraphError, match=r"bert.json: nodes\[0\]: object missing required"):
        load_source(str(path))
    path.write_text("{}")
    with pytest.raises(InputError, match=r"bert.json: expected a problem file, .* got other JSON$"):
        load_source(str(path))


def test_the_expert_of_a_placed_profile_is_pipedream(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    measures = "forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size"
    stages = [0, 2, 1, 2]
    path.write_text(
        "".join(
            f"node{node} -- Linear -- {measures}={node} -- stage_id={stage}\n"
            for node, stage in enumerate(stages)
        )
        + "".join(f"\tnode{node} -- node{node + 1}\n" for node in range(3))
    )
    problem = make_problem(load_source(str(path)), read_cluster("3xv100"))
    placed = make_placer("expert", problem).place(problem, Simulator(problem, num_threads=1))
    devices = problem.expand(placed.placement)
    at = {
        name.partition("/")[0]: int(device)
        for name, device in zip(problem.graph.op_names, devices, strict=True)
    }
    assert at == {f"node{node}": stage for node, stage in enumerate(stages)}


def test_a_file_that_can_run_code_is_loaded_where_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no program")
    with pytest.raises(
        InputError, match=r"can run code that it contains; if you trust it, add --trust$"
    ):
        load_source(str(path))
    assert source_model(str(path), SourceOptions(trust=True)).name == "model"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        *(
            (text, SourceOptions({name: 1}), f"--set {name}: expected a size of {text}")
            for text, name in (
                ("model.onnx", "trust"),
                ("nmt-2", "device"),
                ("nmt:2", "name"),
                ("nmt:2", "seed"),
                ("timm:resnet18", "device"),
                ("timm:resnet18", "source"),
            )
        ),
        ("nmt-2", SourceOptions({"steps": "x"}), "--set steps: expected a whole number, got 'x'"),
        ("nmt-2", SourceOptions(trust=True), "--trust: needs an exported program (.pt2), got"),
        ("nmt-2", SourceOptions(family_seed=3), "--family-seed: needs a graph of a family such"),
        ("nmt-2", SourceOptions(context=9), "--context: needs --mode prefill or --mode decode"),
        ("nmt-2", SourceOptions(mode="decode"), "--mode: expected training for nmt-2; a model of"),
        ("a.json", SourceOptions(family_seed=3), "--family-seed: needs a graph of a family such"),
        ("a.json", SourceOptions(mask_fraction=0.5), "--mask-fraction: expected none for the file"),
    ],
)
def test_options_that_a_source_does_not_have_are_refused(
    text: str, options: SourceOptions, message: str
) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        load_source(text, options)
