from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from example_graphs import diamond, refused
from graph_strategies import op_graphs
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    from_networkx,
    groups_to_networkx,
    parse_cluster,
    to_networkx,
)


@given(op_graphs())
def test_graphs_survive_a_round_trip(graph: OpGraph) -> None:
    again = from_networkx(to_networkx(graph))
    assert sorted(again.edges.tolist()) == sorted(graph.edges.tolist())
    assert replace(again, edges=graph.edges) == graph


def test_ops_are_nodes_and_tensors_are_on_edges() -> None:
    graph = to_networkx(diamond(edges=[[0, 1], [1, 1], [1, 2], [2, 3], [3, 3]]))
    assert list(graph) == ["split", "left", "right", "join"]
    assert graph.nodes["left"] == {
        "op_type": "conv",
        "scope": "left",
        "phase": 0,
        "flops": 1e9,
        "bytes_accessed": 1e6,
        "parameter_bytes": 400,
        "workspace_bytes": 10,
        "colocation": -1,
        "dtype": "",
        "groups": 1,
        "group_channels": 0,
        "measured_time": {"k80": 2e-3},
        "outputs": {2: 300},
        "held": (),
        "waits_for": (),
    }
    assert graph.edges["split", "left"] == {"bytes": 300, "tensors": (0, 1)}
    assert graph.edges["split", "right"]["bytes"] == 200
    assert nx.dag_longest_path_length(graph, weight="bytes") == 600


def test_a_graph_by_hand_needs_no_attributes() -> None:
    by_hand = nx.DiGraph([("a", "b"), ("a", "c")])
    graph = from_networkx(by_hand)
    assert graph.op_names == ("a", "b", "c")
    assert graph.tensor_bytes.tolist() == [0]
    assert graph.edges.tolist() == [[0, 1], [0, 2]]


def test_an_op_without_names_for_tensors_makes_one() -> None:
    by_hand = nx.DiGraph()
    by_hand.add_edge("a", "b", bytes=4096)
    by_hand.add_edge("a", "c", bytes=4096)
    by_hand.add_edge("b", "c", bytes=7)
    graph = from_networkx(by_hand)
    assert graph.tensor_bytes.tolist() == [4096, 7]
    assert graph.consumers_of_tensor[0].tolist() == [1, 2]
    assert not len(graph.tensors_of_op[2])


def test_bytes_may_be_said_again_where_tensors_have_names() -> None:
    by_hand = pair({"outputs": {"x": 3, "y": 4}}, {"tensors": ["x", "y"], "bytes": 7})
    assert from_networkx(by_hand).tensor_bytes.tolist() == [3, 4]


def test_edges_that_name_one_output_share_the_tensor() -> None:
    by_hand = nx.DiGraph()
    by_hand.add_node("a", outputs={"activation": 4096})
    by_hand.add_edge("a", "b", tensors=["activation"])
    by_hand.add_edge("a", "c", tensors=["activation"])
    graph = from_networkx(by_hand)
    assert graph.tensor_bytes.tolist() == [4096]
    assert graph.consumers_of_tensor[0].tolist() == [1, 2]


def pair(node: dict[str, Any], edge: dict[str, Any]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("a", **node)
    graph.add_edge("a", "b", **edge)
    return graph


ATTRIBUTES = (
    "op_type, scope, phase, flops, bytes_accessed, parameter_bytes, workspace_bytes, colocation, "
    "dtype, groups, group_channels, measured_time, outputs, held, waits_for"
)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph([(0, 1)]), "graph: expected a networkx.DiGraph, got <networkx.classes.graph.Gr"),
        (nx.DiGraph(), "op_names: expected at least one op, got none"),
        (nx.DiGraph([(0, 1), (1, 0)]), "edges: expected no cycle, got '0' -> '1' -> '0'"),
        (nx.DiGraph([("1", 1)]), "op_names[1]: '1' repeats op_names[0]"),
        (pair({"flops": "many"}, {}), "flops: expected numbers, got str"),
        (pair({"outputs": 3}, {}), "node 'a': outputs: expected a mapping of tensors to bytes"),
        (pair({"outputs": {"x": -1}}, {}), "node 'a': outputs['x']: bytes: expected an integer fr"),
        (
            pair({"waits_for": "b"}, {}),
            "node 'a': waits_for: expected a sequence of nodes, got 'b'",
        ),
        (pair({"waits_for": ["c"]}, {}), "node 'a': waits_for: expected nodes, got 'c'"),
        (pair({"held": [0]}, {}), "node 'a': held: expected outputs, got 0"),
        (pair({"flop": 1.0}, {}), f"node 'a': expected attributes among {ATTRIBUTES}, got 'flop'"),
        (pair({"measured_time": {"k80": 1.0}}, {}), "node 'b': measured_time: expected times"),
    ],
)
def test_what_is_wrong_is_named(graph: nx.DiGraph, message: str) -> None:
    with refused(message):
        from_networkx(graph)


NAMED = {"outputs": {"x": 8}}
OUTPUTS = "tensors: expected a sequence of outputs of the first op"


@pytest.mark.parametrize(
    ("node", "edge", "message"),
    [
        ({}, {"size": 8}, "expected attributes among bytes, tensors, got 'size'"),
        ({}, {"bytes": -1}, "bytes: expected an integer from 0"),
        (
            {},
            {"tensors": ["x"]},
            "tensors: expected outputs of the first op, which has none, got [",
        ),
        (NAMED, {"bytes": 8}, f"{OUTPUTS}, got None"),
        (NAMED, {"tensors": ["x"], "bytes": 9}, "bytes: expected 8, the sum of its tensors, got 9"),
        (NAMED, {"tensors": ["y"]}, "tensors: expected outputs of the first op, got 'y'"),
    ],
)
def test_what_is_wrong_on_an_edge_is_named(
    node: dict[str, Any], edge: dict[str, Any], message: str
) -> None:
    with refused(f"edge 'a' -> 'b': {message}"):
        from_networkx(pair(node, edge))


def test_edges_of_an_op_with_one_tensor_agree_about_its_bytes() -> None:
    fork = nx.DiGraph()
    fork.add_edge("a", "b", bytes=8)
    fork.add_edge("a", "c", bytes=9)
    with refused(
        "edge 'a' -> 'c': bytes: expected 8 as on the other edges of the first op, which makes one "
        "tensor unless it names several in outputs and its edges in tensors, got 9"
    ):
        from_networkx(fork)


@given(op_graphs())
def test_the_groups_of_a_problem_are_nodes_with_what_files_can_hold(graph: OpGraph) -> None:
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((graph.num_ops, 2))
    )
    placement = np.arange(problem.num_groups, dtype=np.int32) % 2
    groups = groups_to_networkx(problem, placement)
    assert tuple(groups) == problem.grouping.group_names
    assert nx.is_directed_acyclic_graph(groups)
    assert sum(dict(groups.nodes(data="ops")).values()) == graph.num_ops
    assert sum(dict(groups.nodes(data="seconds")).values()) == graph.num_ops
    assert list(dict(groups.nodes(data="device")).values()) == [
        f"k80:{device}" for device in placement
    ]
    for _, attributes in groups_to_networkx(problem).nodes(data=True):
        assert attributes.keys() == {"ops", "output_bytes", "parameter_bytes"}
