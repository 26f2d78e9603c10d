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
    for tensors in graph.tensors_of_op:
        read = [tensor for tensor in tensors if len(graph.consumers_of_tensor[tensor])]
        if len(read) == 1:
            consumers = (of.consumers_of_tensor[read[0]].tolist() for of in (graph, again))
            assert next(consumers) == next(consumers)


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
        "computed_part": 1.0,
        "micro_batch": -1,
        "measured_time": {"k80": 2e-3},
        "outputs": {2: 300},
        "held": (),
        "waits_for": (),
    }
    assert graph.edges["split", "left"] == {"bytes": 300, "tensors": (0, 1)}
    assert graph.edges["split", "right"]["bytes"] == 200
    assert nx.dag_longest_path_length(graph, weight="bytes") == 600


def pair(node: dict[str, Any], edge: dict[str, Any]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("a", **node)
    graph.add_edge("a", "b", **edge)
    return graph


def edge(edge: dict[str, Any], node: dict[str, Any] | None = None) -> nx.DiGraph:
    return pair(node or {}, edge)


def fork(first: int, second: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", bytes=first)
    graph.add_edge("a", "c", bytes=second)
    return graph


SHARED, SIZES = nx.DiGraph(), {"x": 3, "y": 4}
SHARED.add_node("a", outputs={"activation": 4096})
SHARED.add_edges_from([("a", "b"), ("a", "c")], tensors=["activation"])


@pytest.mark.parametrize(
    ("graph", "tensor_bytes", "edges"),
    [
        (nx.DiGraph([("a", "b"), ("a", "c")]), [0], [[0, 1], [0, 2]]),  # without attributes
        (fork(4096, 4096), [4096], [[0, 1], [0, 2]]),  # an op without names for tensors makes one
        (SHARED, [4096], [[0, 1], [0, 2]]),
        # Bytes may be said again where tensors have names.
        (pair({"outputs": SIZES}, {"tensors": [*SIZES], "bytes": 7}), [3, 4], [[0, 1], [1, 1]]),
    ],
)
def test_a_graph_by_hand(
    graph: nx.DiGraph, tensor_bytes: list[int], edges: list[list[int]]
) -> None:
    op_graph = from_networkx(graph)
    assert op_graph.op_names == tuple(graph)
    assert op_graph.tensor_bytes.tolist() == tensor_bytes
    assert op_graph.edges.tolist() == edges


def test_outputs_are_in_their_order_whatever_they_are_called() -> None:
    graph = pair({"outputs": {1: 8, 0: 16}}, {"tensors": [0]})
    assert from_networkx(graph).tensor_bytes.tolist() == [8, 16]


NAMED = {"outputs": {"x": 8}}
AB, OF_FIRST = "edge 'a' -> 'b': ", "tensors: expected outputs of the first op"


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph([(0, 1)]), "graph: expected a networkx.DiGraph, got <networkx.classes.graph.Gr"),
        (nx.DiGraph(), "op_names: expected at least one op, got none"),
        (pair({"flops": "many"}, {}), "flops: expected numbers, got str"),
        (pair({"outputs": 3}, {}), "node 'a': outputs: expected a mapping of tensors to bytes"),
        (pair({"outputs": {"x": -1}}, {}), "node 'a': outputs['x']: bytes: expected an integer fr"),
        (pair({"waits_for": "b"}, {}), "node 'a': waits_for: expected a sequence of nodes, got"),
        (pair({"waits_for": ["c"]}, {}), "node 'a': waits_for: expected nodes, got 'c'"),
        (pair({"held": [0]}, {}), "node 'a': held: expected outputs, got 0"),
        (pair({"flop": 1.0}, {}), "node 'a': expected attributes among op_type, scope, phase, fl"),
        (pair({"measured_time": {"k80": 1.0}}, {}), "node 'b': measured_time: expected times"),
        (edge({"size": 8}), f"{AB}expected attributes among bytes, tensors, got 'size'"),
        (edge({"bytes": -1}), f"{AB}bytes: expected an integer from 0"),
        (edge({"tensors": ["x"]}), f"{AB}{OF_FIRST}, which has none, got ["),
        (edge({"bytes": 8}, NAMED), f"{AB}tensors: expected a sequence of outputs of the first op"),
        (edge({"tensors": ["x"], "bytes": 9}, NAMED), f"{AB}bytes: expected 8, the sum of its"),
        (edge({"tensors": ["y"]}, NAMED), f"{AB}{OF_FIRST}, got 'y'"),
        (edge({"tensors": []}, NAMED), f"{AB}{OF_FIRST}, or waits_for of the second one, got none"),
        (fork(8, 9), "edge 'a' -> 'c': bytes: expected 8 as on the other edges of the first op"),
    ],
)
def test_what_is_wrong_is_named(graph: nx.DiGraph, message: str) -> None:
    with refused(message):
        from_networkx(graph)


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
