"""Input files of dnn-partitioning, small ones written here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_graphs import refused
from placeto_graphs import PlacementProblem, load_dnn_partitioning


def content(**changes: Any) -> dict[str, Any]:
    """Return two layers and the gradient of the first one, which shares its colour."""
    nodes = [
        {"id": 4, "name": "a", "cpuLatency": 50, "fpgaLatency": 2.5, "size": 1e6, "colorClass": 9},
        {"id": 2, "name": "b", "cpuLatency": 8.0, "fpgaLatency": 0, "size": 5, "colorClass": 3},
        {"id": 7, "name": "a", "cpuLatency": 1.0, "fpgaLatency": 4.0, "size": 0, "colorClass": 9},
    ]
    nodes[1]["supportedOnFpga"] = 0
    nodes[2]["isBackwardNode"] = True
    edges = [
        {"sourceId": 4, "destId": 2, "cost": 0.125, "size": 777},
        {"sourceId": 4, "destId": 7, "cost": 0.125},
        {"sourceId": 2, "destId": 7, "cost": 0.0},
    ]
    document = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 16e9,
        "nodes": nodes,
        "edges": edges,
    }
    return document | changes


def load(folder: Path, document: dict[str, Any]) -> PlacementProblem:
    path = folder / "input.json"
    path.write_text(json.dumps(document))
    return load_dnn_partitioning(path)


def test_nodes_colours_and_devices_are_those_of_the_file(tmp_path: Path) -> None:
    problem = load(tmp_path, content())
    graph = problem.graph
    assert graph.op_names == ("a#4", "b", "a#7")
    assert graph.phases.tolist() == [0, 0, 1]
    assert graph.parameter_bytes.tolist() == [10**6, 5, 0]
    assert problem.grouping.group_of.tolist() == [0, 1, 0]
    assert problem.cluster.device_names == ("accelerator:0", "accelerator:1", "cpu:0")
    assert problem.cluster.devices[0].memory_bytes == 16 * 10**9
    assert problem.compute_time.tolist() == [
        [2.5e-3, 2.5e-3, 50e-3],
        [np.inf, np.inf, 8e-3],
        [4e-3, 4e-3, 1e-3],
    ]


def test_a_tensor_takes_the_time_that_its_edges_say(tmp_path: Path) -> None:
    problem = load(tmp_path, content())
    graph, cluster = problem.graph, problem.cluster
    assert graph.num_tensors == 2  # however many read it
    seconds = graph.tensor_bytes / cluster.bandwidth[0, 2] + cluster.latency[0, 2]
    assert seconds.tolist() == [0.125e-3, 0.0]
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": content()["nodes"][:1]}, "edges[0].destId: expected the id of a node, got 2"),
        (
            {"nodes": [*content()["nodes"], content()["nodes"][0]]},
            "nodes[3].id: 4 repeats nodes[0].id",
        ),
        (
            {"edges": [*content()["edges"], {"sourceId": 4, "destId": 7, "cost": 0.5}]},
            "edges[3].cost: expected 0.125 as of the other edges of node 4, got 0.5",
        ),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "maxFPGAs, maxCPUs: expected at least one device"),
        ({"maxFPGAs": 10**12}, f"maxFPGAs: expected a number from 0 to 1024, got {10**12}"),
        (
            {"nodes": [*content()["nodes"][:2], content()["nodes"][2] | {"fpgaLatency": -1.0}]},
            "nodes[2].fpgaLatency: expected a number >= 0, got -1.0",
        ),
        (
            {"edges": [*content()["edges"][:-1], content()["edges"][-1] | {"cost": -1.0}]},
            "edges[2].cost: expected a number from 0 to 2^62, got -1",
        ),
        ({"maxSizePerFPGA": -1}, "maxSizePerFPGA: expected a number from 0 to 2^62, got -1"),
        (
            {"edges": [{"sourceId": 7, "destId": 4, "cost": 0}, *content()["edges"]]},
            "edges: expected no cycle",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with refused(f"{tmp_path / 'input.json'}: {message}"):
        load(tmp_path, content(**changes))
