"""Graphs of DOPPLER, small ones written here."""

from pathlib import Path

import numpy as np
import pytest

from example_graphs import refused
from placeto_graphs import PlacementProblem, load_doppler_graph

# Six nodes, of which two are inputs; 0 -> 1, 0 -> 2, 1 -> 3 twice, 2 -> 3.
LINES = ["6", "0, 4, ", "0, 0, 1, 1, 2, ", "1, 2, 3, 3, 3, "]
NODES = ["10000000000,40000000000", "5,0,formation", "20000000000, 1, einsummable", "0,7"]


def load(folder: Path, lines: list[str], **options: int) -> PlacementProblem:
    path = folder / "graph.txt"
    path.write_text("\n".join(lines))
    return load_doppler_graph(path, **options)


def test_nodes_edges_and_costs_are_those_of_the_file(tmp_path: Path) -> None:
    problem = load(tmp_path, LINES + NODES)
    graph, cluster = problem.graph, problem.cluster
    assert graph.op_names == ("node0", "node1", "node2", "node3")
    assert graph.op_types == ("node", "formation", "einsummable", "node")
    ends = np.stack([graph.edge_producers, graph.edge_consumers], axis=1)
    assert ends.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert problem.num_devices == 4
    assert problem.compute_time[:, 0].tolist() == [1.0, 5e-10, 2.0, 0.0]
    assert (problem.compute_time == problem.compute_time[:, :1]).all()
    seconds = graph.tensor_bytes / cluster.bandwidth[0, 1] + cluster.latency[0, 1]
    assert seconds.tolist() == [4.0, 0.0, 1e-10, 7e-10]
    assert problem.num_groups == 4


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    marked = load(tmp_path, ["\ufeff" + LINES[0], *LINES[1:], *NODES])
    assert marked == load(tmp_path, LINES + NODES)


def test_a_graph_may_have_no_inputs_and_no_edges(tmp_path: Path) -> None:
    problem = load(tmp_path, ["1", "", "", "", "3,4", ""], num_devices=2)
    assert (problem.graph.num_ops, problem.graph.num_edges, problem.num_devices) == (1, 0, 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "expected 4 lines before those of nodes, got 0"),
        (["6, 7", *LINES[1:], *NODES], "line 1: expected the number of nodes, got '6, 7'"),
        (["", *LINES[1:], *NODES], "line 1: expected the number of nodes, got ''"),
        (["six", *LINES[1:], *NODES], "line 1: expected numbers with commas, got 'six'"),
        (["1_0", *LINES[1:], *NODES], "line 1: expected numbers with commas, got '1_0'"),
        *(
            (
                [LINES[0], inputs, *LINES[2:], *NODES],
                f"line 2: expected different numbers of nodes below 6, got '{inputs}'",
            )
            for inputs in ("0, 6", "0, 0", "4, 4, 17")
        ),
        *(
            (
                [LINES[0], inputs, *LINES[2:], *NODES],
                f"line 2: expected numbers with commas, got '{inputs}'",
            )
            for inputs in ("0, nan", "0, -4", "0, inf", "0, 4_0")
        ),
        (
            ["7", *LINES[1:], *NODES],
            "expected a line for each of 5 nodes that are no inputs, got 4",
        ),
        ([*LINES[:3], "1, 2", *NODES], "line 4: expected 5 targets, as there are sources, got 2"),
        (
            [*LINES[:3], "1, 2, 3, 3, 4", *NODES],
            "line 4: expected nodes below 4, got 4",
        ),
        ([*LINES, "-1,2", *NODES[1:]], "line 5: expected COMPUTE,TRANSFER, got '-1,2'"),
        ([*LINES, *NODES[:3], "7"], "line 8: expected COMPUTE,TRANSFER, got '7'"),
        ([*LINES[:3], "0, 2, 3, 3, 3", *NODES], "edges: expected no cycle"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with refused(f"{tmp_path / 'graph.txt'}: {message}"):
        load(tmp_path, lines)


def test_there_is_a_device(tmp_path: Path) -> None:
    with refused("num_devices: expected a number from 1 to 1024, got 0"):
        load(tmp_path, LINES + NODES, num_devices=0)
