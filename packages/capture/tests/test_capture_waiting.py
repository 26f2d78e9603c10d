"""A write waits for who reads what it replaces, where no other path says so already."""

import networkx as nx
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from placeto_capture import capture
from placeto_capture.tracing import op_graph
from placeto_graphs import OpGraph


class Writes(nn.Module):
    """Reads and writes some tensors in an order that is given."""

    def __init__(self, accesses: list[tuple[int, int, bool]]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.accesses = accesses

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        tensors = [self.weight * 1, *(inputs + number for number in range(3))]
        with torch.no_grad():
            for target, source, in_place in self.accesses:
                if in_place:
                    tensors[target] += tensors[source]
                else:
                    tensors[target] = tensors[target] + tensors[source]
        return sum(tensors[1:], tensors[0])


ACCESSES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans()), min_size=4, max_size=12
)
BY_WAY_OF_OTHERS = [(2, 1, False), (3, 2, False), (1, 3, True)]


def order_of(graph: OpGraph) -> nx.DiGraph:
    order = nx.DiGraph()
    order.add_nodes_from(range(graph.num_ops))
    producers = graph.tensor_producer[graph.edges[:, 0]].tolist()
    order.add_edges_from(zip(producers, graph.edges[:, 1].tolist(), strict=True))
    return order


@settings(max_examples=15, deadline=None)
@given(accesses=ACCESSES)
@example(accesses=BY_WAY_OF_OTHERS)
def test_an_edge_to_wait_for_is_one_that_no_other_path_implies(
    accesses: list[tuple[int, int, bool]],
) -> None:
    graph = capture(Writes(accesses), torch.ones(2))
    order = order_of(graph)
    waits = graph.tensor_bytes == 0
    home = {op for op, kind in enumerate(graph.op_types) if kind == "parameter"}
    for tensor, writer in graph.edges.tolist():
        reader = int(graph.tensor_producer[tensor])
        if waits[tensor] and reader not in home and graph.phases[writer] == 0:
            order.remove_edge(reader, writer)
            assert not nx.has_path(order, reader, writer)
            order.add_edge(reader, writer)


@settings(max_examples=15, deadline=None)
@given(accesses=ACCESSES)
@example(accesses=BY_WAY_OF_OTHERS)
def test_where_the_search_ends_early_edges_say_again_what_others_say(
    accesses: list[tuple[int, int, bool]],
) -> None:
    step = Writes(accesses), torch.ones(2)
    graph = capture(*step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_graph, "LONGEST_SEARCH", 0)
        hasty = capture(*step)
    assert hasty.num_edges >= graph.num_edges
    assert nx.transitive_closure_dag(order_of(hasty)).edges == (
        nx.transitive_closure_dag(order_of(graph)).edges
    )
