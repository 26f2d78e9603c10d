import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import GroupGraph
from placeto_tools.plots import layered_positions


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(
    st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))))  # fmt: skip
def test_layers_are_those_of_longest_paths_but_before_the_first_reader_of_inputs(
    drawn: tuple[int, set[tuple[int, int]]],
) -> None:
    count, pairs = drawn
    edges = sorted((a, b) for a, b in pairs if a < b)
    graph = GroupGraph(
        compute_time=np.ones((count, 1)),
        output_bytes=np.ones(count, np.int64),
        parameter_bytes=np.zeros(count, np.int64),
        edges=edges,  # type: ignore[arg-type]
        edge_bytes=np.ones(len(edges), np.int64),
    )
    positions = layered_positions(graph)
    dag = nx.DiGraph(edges)
    dag.add_nodes_from(range(count))
    longest = {
        node: number
        for number, layer in enumerate(nx.topological_generations(dag))
        for node in layer
    }
    for node, readers in dag.adj.items():
        first = min((longest[reader] for reader in readers), default=1) - 1
        assert positions[node, 0] == (longest[node] if dag.pred[node] else first)
    for number in set(positions[:, 0]):
        layer = positions[:, 0] == number
        heights = sorted(positions[layer, 1])
        assert np.diff(heights).tolist() == [1.0] * (layer.sum() - 1)
        assert sum(heights) == 0
