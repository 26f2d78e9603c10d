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
    group_graph,
    grouping_of_labels,
    measured_compute_time,
    parse_cluster,
)


def two_groups(group_of: list[int]) -> Grouping:
    return Grouping(group_of=np.array(group_of), group_names=("first", "second"))


def test_the_group_graph_of_a_diamond() -> None:
    graph = diamond_problem(grouping=two_groups([0, 1, 1, 0])).group_graph
    np.testing.assert_allclose(graph.compute_time, [[5e-3, 5e-3], [5e-3, 5e-3]])
    assert graph.output_bytes.tolist() == [300, 700]
    assert graph.parameter_bytes.tolist() == [0, 1200]
    # Traffic both ways, on one edge from the group whose first op is earlier.
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.edge_bytes.tolist() == [1000]


def test_a_tensor_counts_once_per_pair_of_groups() -> None:
    graph = diamond(edges=[[0, 1], [0, 2], [0, 3]])
    together = Grouping(group_of=[0, 1, 1, 2], group_names=("a", "b", "c"))  # type: ignore[arg-type]
    groups = group_graph(graph, together, np.ones((4, 1)))
    assert groups.edges.tolist() == [[0, 1], [0, 2]]
    assert groups.edge_bytes.tolist() == [100, 100]


@given(problems())
def test_the_group_graph_is_a_dag_that_counts_all_traffic(problem: PlacementProblem) -> None:
    graph, group_of = problem.graph, problem.grouping.group_of.tolist()
    groups = problem.group_graph
    oracle = nx.DiGraph(groups.edges.tolist())
    assert nx.is_directed_acyclic_graph(oracle)

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
    found = dict(zip(map(tuple, groups.edges.tolist()), groups.edge_bytes.tolist(), strict=True))
    assert found == traffic


@given(problems())
def test_the_group_graph_conserves_time_and_bytes(problem: PlacementProblem) -> None:
    groups = problem.group_graph
    np.testing.assert_allclose(groups.compute_time.sum(axis=0), problem.compute_time.sum(axis=0))
    assert groups.output_bytes.sum() == problem.graph.tensor_bytes.sum()
    assert groups.parameter_bytes.sum() == problem.graph.parameter_bytes.sum()


@given(op_graphs(), st.data())
def test_equal_partitions_give_equal_groupings(graph: Any, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 3), min_size=graph.num_ops, max_size=graph.num_ops))
    grouping = grouping_of_labels(graph, np.array(labels))
    assert grouping == grouping_of_labels(graph, np.array(labels) * -7)
    assert set(zip(labels, grouping.group_of.tolist(), strict=True)) == {
        (labels[members[0]], group) for group, members in enumerate(list(grouping.members))
    }
    firsts = [
        min(graph.topological_order.tolist().index(op) for op in grouping.members[group])
        for group in range(grouping.num_groups)
    ]
    assert firsts == sorted(firsts)


def test_expand_gives_each_op_the_device_of_its_group() -> None:
    problem = diamond_problem(grouping=two_groups([0, 1, 1, 0]))
    expanded = problem.expand(np.array([1, 0], np.int32))
    assert expanded.tolist() == [1, 0, 0, 1]
    assert expanded.dtype == np.int32


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([0, 1, 0], "placement: expected shape (4,), got (3,)"),
        ([0, 1, 2, 0], "placement[2]: expected an integer from 0 to 1, got 2"),
        ([0, 1, -1, 0], "placement[2]: expected an integer from 0 to 1, got -1"),
    ],
)
def test_a_wrong_placement_is_named(placement: Any, message: str) -> None:
    for check in (diamond_problem().expand, diamond_problem().check_placement):
        with refused(message):
            check(placement)


@pytest.mark.parametrize(
    ("group_of", "message"),
    [
        ([0, np.nan], "group_of: expected integers, got float64"),
        ([[0, 1]], "group_of: expected shape (any,), got (1, 2)"),
        ([0, 2], "group_of[1]: expected an integer from 0 to 1, got 2"),
    ],
)
def test_a_wrong_group_is_named(group_of: Any, message: str) -> None:
    with refused(message):
        Grouping(group_of=group_of, group_names=("a", "b"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0, 1.0, 1.0], "labels: expected integers, got float64"),
    ],
)
def test_a_wrong_label_is_named(labels: Any, message: str) -> None:
    with refused(message):
        grouping_of_labels(diamond_problem().graph, labels)


def test_a_group_is_not_placed_where_it_cannot_run() -> None:
    compute_time = np.array([[1, 1], [1, np.inf], [1, 1], [np.inf, 1]])
    problem = diamond_problem(compute_time=compute_time)
    assert problem.expand([0, 0, 1, 1]).tolist() == [0, 0, 1, 1]
    with pytest.raises(GraphError, match=r"placement\[3\]: .* of group 'join', got 0 \('k80:0'\)"):
        problem.expand([0, 0, 1, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": "graph"}, "graph: expected OpGraph, got 'graph'"),
        ({"cluster": "2xk80"}, "cluster: expected Cluster, got '2xk80'"),
        ({"compute_time": np.ones((4, 3))}, "compute_time: expected shape (4, 2), got (4, 3)"),
        ({"compute_time": np.full((4, 2), np.nan)}, "compute_time[0, 0]: expected a number >= 0"),
        (
            {"compute_time": [[1, 1], [np.inf, np.inf], [1, 1], [1, 1]]},
            "compute_time: expected a device that can run every op of group 1 ('left'), got none",
        ),
        (
            {"grouping": Grouping(group_of=np.zeros(3, int), group_names=("a",))},
            "grouping.group_of: expected the groups of 4 ops, got 3",
        ),
    ],
)
def test_a_wrong_problem_is_named(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        diamond_problem(**changes)


def test_a_grouping_that_splits_a_colocation_id_contradicts_it() -> None:
    graph = diamond(colocation=[-1, 5, 5, -1])
    with refused("grouping.group_of[2]: expected ops 'left' and"):
        diamond_problem(graph=graph, grouping=colocate(graph, rules=()))
    assert diamond_problem(graph=graph, grouping=colocate(graph)).num_groups < 4


def test_ops_are_groups_of_their_own_but_for_colocation_ids() -> None:
    problem = PlacementProblem(
        graph=diamond(colocation=[-1, 5, -1, 5]),
        cluster=parse_cluster("2xk80"),
        compute_time=np.ones((4, 2)),
    )
    assert problem.grouping.group_of.tolist() == [0, 1, 2, 1]
    assert problem.grouping.group_names == ("split", "left", "right")


def test_groupings_have_no_empty_groups_and_no_equal_names() -> None:
    with pytest.raises(GraphError, match=r"at least one op in every group, got none in group 1"):
        two_groups([0, 0])
    with pytest.raises(GraphError, match=r"group_names\[1\]: 'a' repeats group_names\[0\]"):
        Grouping(group_of=np.array([0, 1]), group_names=("a", "a"))
    with pytest.raises(GraphError, match="group_names: expected at least one group, got none"):
        Grouping(group_of=np.array([], int), group_names=())


def test_a_group_graph_by_hand_is_checked() -> None:
    fields: dict[str, Any] = {
        "compute_time": np.ones((2, 1)),
        "output_bytes": [0, 0],
        "parameter_bytes": [0, 0],
        "edges": [[0, 1]],
        "edge_bytes": [0],
    }
    assert GroupGraph(**fields).topological_order.tolist() == [0, 1]
    for changes, message in (
        (
            {"edges": [[0, 1], [1, 0]], "edge_bytes": [1, 1]},
            r"no cycle, got one of groups \[0, 1\]",
        ),
        ({"edges": [[0, 1], [0, 1]], "edge_bytes": [1, 1]}, r"edges\[1\]: expected each pair"),
        ({"edge_bytes": [1, 2]}, r"edge_bytes: expected shape \(1,\), got \(2,\)"),
        ({"edges": [[0, 2]]}, r"edges\[0, 1\]: expected an integer from 0 to 1, got 2"),
    ):
        with pytest.raises(GraphError, match=message):
            GroupGraph(**(fields | changes))


def test_measured_times_become_compute_times() -> None:
    graph = diamond()
    times = measured_compute_time(graph, parse_cluster("2xk80"))
    assert times.tolist() == [[1e-3] * 2, [2e-3] * 2, [3e-3] * 2, [4e-3] * 2]
    with pytest.raises(GraphError, match=r"expected times for the kind 'cpu' .* got 'k80'"):
        measured_compute_time(graph, parse_cluster("1xcpu+1xk80"))
