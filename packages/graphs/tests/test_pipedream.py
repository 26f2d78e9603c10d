from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from example_graphs import refused
from placeto_graphs import (
    OpGraph,
    colocate,
    colocate_by_id,
    load_pipedream_profile,
    to_networkx,
)


def node(name: str, layer: str, *values: object) -> str:
    keys = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
    measures = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    return f"{name} -- {layer} -- {measures}\n"


# Out of order, as in the published files; the layer in the middle has two outputs.
PROFILE = (
    node("node3", "Linear(in_features=4, out_features=2)", 2.0, 4.0, "16.0", "40.0")
    + node("node1", "Input", 0.0, 0.0, 8.0, 0.0)
    + node("node2", "LSTM(2, 4)", 1.5, 3.25, "[32.0; 64.000]", 96.0)
    + "\tnode2 -- node3\n\tnode1 -- node2\n"
)


def load(tmp_path: Path, content: str | bytes) -> OpGraph:
    path = tmp_path / "graph.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_pipedream_profile(path)


def test_a_layer_becomes_ops_that_share_a_device(tmp_path: Path) -> None:
    graph = load(tmp_path, PROFILE)
    assert graph.op_names == (
        "node1/forward",
        "node2/parameters",
        "node2/forward",
        "node3/parameters",
        "node3/forward",
        "node3/backward",
        "node2/backward",
        "node1/backward",
    )
    assert graph.op_types[1:3] == ("Parameters", "LSTM")
    assert graph.op_types[5] == "LinearBackward"
    assert graph.phases.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert graph.colocation.tolist() == [0, 1, 1, 2, 2, 2, 1, 0]
    assert colocate(graph, [colocate_by_id]).num_groups == 3
    assert graph.parameter_bytes.tolist() == [0, 96, 0, 40, 0, 0, 0, 0]


def test_the_stage_of_a_layer_is_the_scope_of_its_ops(tmp_path: Path) -> None:
    first, *others = PROFILE.splitlines()
    staged = "\n".join([f"{first} -- stage_id=12", *others])
    graph = load(tmp_path, staged)
    scopes = dict(zip(graph.op_names, graph.scopes, strict=True))
    assert {name for name, scope in scopes.items() if scope == "stage12"} == {
        "node3/parameters",
        "node3/forward",
        "node3/backward",
    }
    assert set(scopes.values()) == {"stage12", ""}
    unstaged = load(tmp_path, PROFILE)
    assert set(unstaged.scopes) == {""}
    assert replace(graph, scopes=unstaged.scopes) == unstaged


def test_milliseconds_become_seconds(tmp_path: Path) -> None:
    times = load(tmp_path, PROFILE).measured_time
    assert list(times) == ["v100"]
    np.testing.assert_allclose(times["v100"], [0, 0, 1.5e-3, 0, 2e-3, 4e-3, 3.25e-3, 0])


def test_gradients_run_against_activations_and_read_them(tmp_path: Path) -> None:
    graph = to_networkx(load(tmp_path, PROFILE))
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
    assert list(graph.nodes["node2/parameters"]["outputs"].values()) == [96]
    assert sorted(graph.nodes["node2/forward"]["outputs"].values()) == [32, 64]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one line that describes a node, got none"),
        ("node1\n", "line 1: expected NODE -- LAYER -- MEASURES, got 'node1'"),
        (
            PROFILE.replace("40.0\n", "40.0 -- stage_id=1_0\n"),
            "line 1: stage_id: expected the number of a stage, got '1_0'",
        ),
        (
            PROFILE.replace("40.0\n", "40.0, peak_memory=7\n"),
            "line 1: expected forward_compute_time, backward_compute_time, activation_size, "
            "parameter_size, got 'peak_memory'",
        ),
        (
            PROFILE.replace(", parameter_size=40.0", ""),
            "line 1: parameter_size: expected a value, got none in",
        ),
        (PROFILE.replace("1.5", "nan"), "line 3: forward_compute_time: expected a finite number"),
        (PROFILE.replace("3.25", "-1"), "line 3: backward_compute_time: expected a finite number"),
        (PROFILE.replace("[32.0;", "32.0;"), "line 3: activation_size: expected a number, got '32"),
        (
            PROFILE.replace("64.000]", "64.000"),
            "line 3: activation_size: expected [A; B; ...], got",
        ),
        (PROFILE.replace("96.0", "96.5"), "line 3: parameter_size: expected a whole number of byt"),
        (PROFILE + PROFILE.splitlines()[0], "line 6: expected each node once, got 'node3' again"),
        (PROFILE + "\tnode1 -- node2\n", "line 6: expected each edge once, got 'node1 -- node2' a"),
        (PROFILE + "\tnode1 -- node9\n", "line 6: expected the name of a node, got 'node9'"),
        (PROFILE + "\tnode1\n", "line 6: expected NODE -- NODE, got 'node1'"),
        (PROFILE + "\tnode3 -- node1\n", "expected no cycle, got 'node"),
        (b"\xff", "expected text in UTF-8: byte 0: invalid start byte"),
    ],
)
def test_a_wrong_profile_is_named_in_one_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with refused(f"{tmp_path / 'graph.txt'}: {message}"):
        load(tmp_path, content)
