"""Problems: groups of ops, the graph of groups, and the devices that placements name."""

from collections import defaultdict
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, diamond_problem, refused
from graph_strategies import op_graphs, problems
from placeto_graphs import (
    GraphError,
    GroupGraph,
    Grouping,
    PlacementProblem,
    colocate,
    grouping_of_labels,
    measured_compute_time,
    parse_cluster,
)


def grouping(group_of: Any, *names: str) -> Grouping:
    return Grouping(group_of=group_of, group_names=names)


TWO_GROUPS = grouping([0, 1, 1, 0], "first", "second")


def test_the_group_graph_of_a_diamond() -> None:
    graph = diamond_problem(grouping=TWO_GROUPS).group_graph
    np.testing.assert_allclose(graph.compute_time, [[5e-3, 5e-3], [5e-3, 5e-3]])
    assert graph.output_bytes.tolist() == [300, 700]
    assert graph.parameter_bytes.tolist() == [0, 1200]
    # Traffic both ways, on one edge from the group whose first op is earlier.
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.edge_bytes.tolist() == [1000]


@given(problems())
def test_the_group_graph_is_a_dag_that_counts_all_traffic(problem: PlacementProblem) -> None:
    graph, group_of = problem.graph, problem.grouping.group_of.tolist()
    groups = problem.group_graph
    assert nx.is_directed_acyclic_graph(nx.DiGraph(groups.edges.tolist()))
    first = dict.fromkeys(group_of, graph.num_ops)
    for position, op in enumerate(graph.topological_order.tolist()):
        first[group_of[op]] = min(first[group_of[op]], position)
    tensors = defaultdict(set)
    for tensor, consumer in graph.edges.tolist():
        ends = {group_of[graph.tensor_producer[tensor]], group_of[consumer]}
        if len(ends) == 2:
            tensors[tuple(sorted(ends, key=first.__getitem__))].add(tensor)
    traffic = {
        ends: sum(int(graph.tensor_bytes[tensor]) for tensor in members)
        for ends, members in tensors.items()
    }
    bytes_of_edge = dict(
        zip(map(tuple, groups.edges.tolist()), groups.edge_bytes.tolist(), strict=True)
    )
    assert bytes_of_edge == traffic
    np.testing.assert_allclose(groups.compute_time.sum(axis=0), problem.compute_time.sum(axis=0))
    assert groups.output_bytes.sum() == graph.tensor_bytes.sum()
    assert groups.parameter_bytes.sum() == graph.parameter_bytes.sum()


@given(op_graphs(), st.data())
def test_equal_partitions_give_equal_groupings(graph: Any, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 3), min_size=graph.num_ops, max_size=graph.num_ops))
    groups = grouping_of_labels(graph, np.array(labels))
    assert groups == grouping_of_labels(graph, np.array(labels) * -7)
    assert set(zip(labels, groups.group_of.tolist(), strict=True)) == {
        (labels[members[0]], group) for group, members in enumerate(list(groups.members))
    }
    firsts = [min(graph.topological_index[members].tolist()) for members in groups.members]
    assert firsts == sorted(firsts)


def test_ops_are_groups_of_their_own_but_for_colocation_ids() -> None:
    problem = diamond_problem(graph=diamond(colocation=[-1, 5, -1, 5]))
    assert problem.grouping.group_of.tolist() == [0, 1, 2, 1]
    assert problem.grouping.group_names == ("split", "left", "right")


def test_a_device_is_busy_for_the_overhead_after_each_op_that_takes_time() -> None:
    problem = diamond_problem(
        compute_time=[[1, 2], [0, 3], [np.inf, 0], [4, 5]], cluster=parse_cluster("1xk80+1xp100")
    )  # whose overheads are 5.7 and 3.76 us
    expected = [[1 + 5.7e-6, 2 + 3.76e-6], [0, 3 + 3.76e-6], [np.inf, 0], [4 + 5.7e-6, 5 + 3.76e-6]]
    np.testing.assert_allclose(problem.busy_time, expected, rtol=1e-12)


def test_a_group_is_not_placed_where_it_cannot_run() -> None:
    problem = diamond_problem(compute_time=[[1, 1], [1, np.inf], [1, 1], [np.inf, 1]])
    assert problem.expand([0, 0, 1, 1]).tolist() == [0, 0, 1, 1]
    with pytest.raises(GraphError, match=r"placement\[3\]: .* of group 'join', got 0 \('k80:0'\)"):
        problem.check_placement([0, 0, 1, 0])


def test_a_wrong_placement_is_named() -> None:
    with refused("placement: expected shape (4,), got (3,)"):
        diamond_problem().expand([0, 1, 0])
    with refused("placements[1, 2]: expected an integer from 0 to 1, got 2"):
        diamond_problem().check_placements([[0] * 4, [0, 1, 2, 0]])


IDS = diamond(colocation=[-1, 5, 5, -1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "2xk80"}, "cluster: expected Cluster, got '2xk80'"),
        ({"compute_time": np.ones((4, 3))}, "compute_time: expected shape (4, 2), got (4, 3)"),
        (
            {"compute_time": [[1, 1], [np.inf, np.inf], [1, 1], [1, 1]]},
            "compute_time: expected a device that can run every op of group 1 ('left'), got none",
        ),
        ({"grouping": grouping([0] * 3, "a")}, "grouping.group_of: expected the groups of 4 ops"),
        (
            {"graph": IDS, "grouping": colocate(IDS, rules=())},
            "grouping.group_of[2]: expected ops 'left' and 'right' of colocation id 5 in one group",
        ),
    ],
)
def test_a_wrong_problem_is_named(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        diamond_problem(**changes)


@pytest.mark.parametrize(
    ("group_of", "names", "message"),
    [
        ([0, 2], "ab", "group_of[1]: expected an integer from 0 to 1, got 2"),
        ([0, 0], "ab", "group_of: expected at least one op in every group, got none in group 1"),
        ([0, 1], "aa", "group_names[1]: 'a' repeats group_names[0]"),
        ([], "", "group_names: expected at least one group, got none"),
    ],
)
def test_a_wrong_grouping_is_named(group_of: Any, names: str, message: str) -> None:
    with refused(message):
        grouping(group_of, *names)


@pytest.mark.parametrize(
    ("edges", "edge_bytes", "message"),
    [
        ([[0, 1], [1, 0]], [1, 1], "edges: expected no cycle, got one of groups [0, 1]"),
        ([[0, 1], [0, 1]], [1, 1], "edges[1]: expected each pair of groups once"),
        ([[0, 2]], [1], "edges[0, 1]: expected an integer from 0 to 1, got 2"),
    ],
)
def test_a_wrong_group_graph_is_named(edges: Any, edge_bytes: Any, message: str) -> None:
    nothing, ones = np.zeros(2, int), np.ones((2, 1))
    fields: dict[str, Any] = {"compute_time": ones, "output_bytes": nothing}
    with refused(message):
        GroupGraph(**fields, parameter_bytes=nothing, edges=edges, edge_bytes=edge_bytes)


def test_measured_times_become_compute_times() -> None:
    times = measured_compute_time(diamond(), parse_cluster("2xk80"))
    assert times.tolist() == [[1e-3] * 2, [2e-3] * 2, [3e-3] * 2, [4e-3] * 2]
    with pytest.raises(GraphError, match=r"expected times for the kind 'cpu' .* got 'k80'"):
        measured_compute_time(diamond(), parse_cluster("1xcpu+1xk80"))
