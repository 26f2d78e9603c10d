import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import GraphError, GroupGraph, reachability


def group_graph(count: int, edges: list[tuple[int, int]]) -> GroupGraph:
    return GroupGraph(
        compute_time=np.ones((count, 1)),
        output_bytes=np.zeros(count, np.int64),
        parameter_bytes=np.zeros(count, np.int64),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        edge_bytes=np.zeros(len(edges), np.int64),
    )


@st.composite
def dags(draw: st.DrawFn) -> GroupGraph:
    """Draw DAGs around the width of a machine word, numbered at random."""
    count = draw(st.one_of(st.integers(1, 8), st.integers(60, 70), st.integers(126, 130)))
    number = np.random.default_rng(draw(st.integers(0, 99))).permutation(count).tolist()
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = draw(st.lists(ends, max_size=150))
    edges = {(number[min(pair)], number[max(pair)]) for pair in drawn if pair[0] != pair[1]}
    return group_graph(count, sorted(edges))


@given(dags())
def test_reachability_is_that_of_networkx(graph: GroupGraph) -> None:
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(graph.num_groups))
    oracle.add_edges_from(graph.edges.tolist())
    found = reachability(graph)
    for group in oracle:
        ancestors, descendants = nx.ancestors(oracle, group), nx.descendants(oracle, group)
        assert set(np.flatnonzero(found.ancestors[group])) == ancestors
        assert set(np.flatnonzero(found.descendants[group])) == descendants
        parallel = set(oracle) - ancestors - descendants - {group}
        assert set(np.flatnonzero(found.parallel[group])) == parallel


def test_the_matrices_are_boolean_and_read_only() -> None:
    found = reachability(group_graph(2, [(0, 1)]))
    for matrix in (found.ancestors, found.descendants, found.parallel):
        assert matrix.dtype == np.bool_
        assert not matrix.flags.writeable


def test_a_graph_that_would_not_fit_memory_is_refused() -> None:
    with pytest.raises(GraphError, match="expected at most 2 groups, got 3; merge them first"):
        reachability(group_graph(3, []), max_groups=2)
