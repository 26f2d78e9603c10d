"""Published formats of others: inputs of dnn-partitioning, and PipeDream's profiles."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_files import DEVICES, EDGES, LAYERS, NODES, PROFILE
from example_graphs import refused
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    load_dnn_partitioning,
    load_pipedream_profile,
    to_networkx,
)


def load_input(folder: Path, **changes: Any) -> PlacementProblem:
    path = folder / "input.json"
    path.write_text(json.dumps(DEVICES | {"nodes": NODES, "edges": EDGES} | changes))
    return load_dnn_partitioning(path)


def test_nodes_colours_and_devices_are_those_of_the_file(tmp_path: Path) -> None:
    problem = load_input(tmp_path)
    graph, cluster = problem.graph, problem.cluster
    assert graph.op_names == ("a#4", "b", "a#7")
    assert graph.phases.tolist() == [0, 0, 1]
    assert graph.parameter_bytes.tolist() == [10**6, 5, 0]
    assert problem.grouping.group_of.tolist() == [0, 1, 0]
    assert cluster.device_names == ("accelerator:0", "accelerator:1", "cpu:0")
    assert cluster.devices[0].memory_bytes == 16 * 10**9
    assert problem.compute_time.tolist() == [
        [2.5e-3, 2.5e-3, 50e-3],
        [np.inf, np.inf, 8e-3],
        [4e-3, 4e-3, 1e-3],
    ]
    # A tensor takes the time that its edges say, however many read it.
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    seconds = graph.tensor_bytes / cluster.bandwidth[0, 2] + cluster.latency[0, 2]
    assert seconds.tolist() == [0.125e-3, 0.0]


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [(0.25, 1), (5.0, 5), (5.75, 6), (5.0000000001, 5)],  # the last one is 5 but for its rounding
)
def test_memory_is_rounded_up_to_whole_bytes(tmp_path: Path, size: float, num_bytes: int) -> None:
    nodes = [NODES[0], NODES[1] | {"size": size}, NODES[2]]
    problem = load_input(tmp_path, nodes=nodes, maxSizePerFPGA=16.0 + size)
    assert problem.graph.parameter_bytes.tolist() == [10**6, num_bytes, 0]
    assert problem.cluster.devices[0].memory_bytes == 16 + num_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": NODES[:1]}, "edges[0].destId: expected the id of a node, got 2"),
        ({"nodes": [*NODES, NODES[0]]}, "nodes[3].id: 4 repeats nodes[0].id"),
        ({"nodes": [*NODES[:2], NODES[2] | {"fpgaLatency": -1}]}, "nodes[2].fpgaLatency: expected"),
        ({"edges": [*EDGES, EDGES[0] | {"cost": 0.5}]}, "edges[3].cost: expected 0.125 as of the"),
        ({"edges": [EDGES[0] | {"cost": -1.0}]}, "edges[0].cost: expected a number from 0 to 2^62"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "maxFPGAs, maxCPUs: expected at least one device"),
        ({"maxFPGAs": 10**12}, f"maxFPGAs: expected a number from 0 to 1024, got {10**12}"),
        ({"maxSizePerFPGA": -1}, "maxSizePerFPGA: expected a number from 0 to 2^62, got -1"),
    ],
)
def test_what_is_wrong_with_an_input_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with refused(f"{tmp_path / 'input.json'}: {message}"):
        load_input(tmp_path, **changes)


def load_profile(folder: Path, content: str) -> OpGraph:
    (folder / "graph.txt").write_text(content)
    return load_pipedream_profile(folder / "graph.txt")


def test_a_layer_becomes_ops_that_share_a_device(tmp_path: Path) -> None:
    graph = load_profile(tmp_path, PROFILE)
    forward = ["node1/forward", "node2/parameters", "node2/forward"]
    forward += ["node3/parameters", "node3/forward"]
    assert graph.op_names == (*forward, "node3/backward", "node2/backward", "node1/backward")
    assert graph.op_types[1:3] == ("Parameters", "LSTM")
    assert graph.op_types[5] == "LinearBackward"
    assert graph.phases.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert graph.colocation.tolist() == [0, 1, 1, 2, 2, 2, 1, 0]
    assert graph.parameter_bytes.tolist() == [0, 192, 0, 80, 0, 0, 0, 0]  # with their gradients
    seconds = [0, 0, 1.5e-3, 0, 2e-3, 4e-3, 3.25e-3, 0]
    np.testing.assert_allclose(graph.measured_time["v100"], seconds)


def test_the_stage_of_a_layer_is_the_scope_of_its_ops(tmp_path: Path) -> None:
    graph = load_profile(tmp_path, PROFILE.replace("40.0\n", "40.0 -- stage_id=12\n"))
    scopes = ["stage12" if name.startswith("node3/") else "" for name in graph.op_names]
    assert list(graph.scopes) == scopes
    assert replace(graph, scopes=("",) * 8) == load_profile(tmp_path, PROFILE)


def test_gradients_run_against_activations_and_read_them(tmp_path: Path) -> None:
    graph = to_networkx(load_profile(tmp_path, PROFILE))
    traffic = {(source, to): edge["bytes"] for source, to, edge in graph.edges(data=True)}
    assert traffic == {
        ("node1/forward", "node2/forward"): 8,
        ("node2/forward", "node3/forward"): 96,
        ("node3/backward", "node2/backward"): 96,
        ("node2/backward", "node1/backward"): 8,
        ("node1/forward", "node1/backward"): 8,
        ("node2/forward", "node2/backward"): 96,
        ("node3/forward", "node3/backward"): 16,
        ("node2/parameters", "node2/forward"): 96,
        ("node2/parameters", "node2/backward"): 96,
        ("node3/parameters", "node3/forward"): 40,
        ("node3/parameters", "node3/backward"): 40,
    }
    assert sorted(graph.nodes["node2/forward"]["outputs"].values()) == [32, 64]


def test_an_item_is_one_output(tmp_path: Path) -> None:
    """Of the outputs of the LSTM, 32 and 64 bytes, the second one is read."""
    layer = "Linear(in_features=4, out_features=2)"
    graph = load_profile(tmp_path, PROFILE.replace(layer, "__getitem__(1)"))
    traffic = to_networkx(graph).edges
    assert traffic["node2/forward", "node3/forward"]["bytes"] == 64
    assert traffic["node3/backward", "node2/backward"]["bytes"] == 64
    assert traffic["node2/forward", "node2/backward"]["bytes"] == 96


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # What to replace in the profile, and the error.
        (PROFILE, "", "expected at least one line that describes a node, got none"),
        (PROFILE, "node1\n", "line 1: expected NODE -- LAYER -- MEASURES, got 'node1'"),
        ("40.0\n", "40.0 -- stage_id=1_0\n", "line 1: stage_id: expected the number of a stage"),
        ("40.0\n", "40.0, peak=7\n", "line 1: expected forward_compute_time, backward_compute_"),
        (", parameter_size=40.0", "", "line 1: parameter_size: expected a value, got none in"),
        ("1.5", "1_5", "line 3: forward_compute_time: expected a number, got '1_5'"),
        ("3.25", "nan", "line 3: backward_compute_time: expected a finite number >= 0, got 'nan'"),
        ("64.000]", "64.000", "line 3: activation_size: expected [A; B; ...], got"),
        ("96.0", "96.5", "line 3: parameter_size: expected a whole number of bytes, got '96.5'"),
        (LAYERS[1], LAYERS[0], "line 2: expected each node once, got 'node3' again after line 1"),
        ("\tnode2", "\tnode1 -- node2\n\tnode2", "line 6: expected each edge once, got 'node1 -- "),
        ("\tnode2 -- node3", "\tnode2", "line 4: expected NODE -- NODE, got 'node2'"),
    ],
)
def test_a_wrong_profile_is_named_in_one_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PROFILE
    with refused(f"{tmp_path / 'graph.txt'}: {message}"):
        load_profile(tmp_path, PROFILE.replace(old, new))
