"""Graphs of ops, and with them the checks that all records share."""

import copy
import re
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, plain_graph, refused
from graph_strategies import op_graphs
from placeto_graphs import GraphError, OpGraph


def test_what_is_not_given_is_that_of_a_plain_op_and_tensor() -> None:
    graph = plain_graph([*"ab"], [0], [8], [])
    assert (graph.op_types, graph.scopes, graph.dtype) == (("op",) * 2, ("",) * 2, ("",) * 2)
    expected = {
        "phases": ([0, 0], np.int8),
        "flops": ([0, 0], np.float64),
        "bytes_accessed": ([0, 0], np.float64),
        "parameter_bytes": ([0, 0], np.int64),
        "workspace_bytes": ([0, 0], np.int64),
        "colocation": ([-1, -1], np.int32),
        "tensor_producer": ([0], np.int32),
        "tensor_bytes": ([8], np.int64),
        "edges": ([], np.int32),
        "groups": ([1, 1], np.int32),
        "group_channels": ([0, 0], np.int32),
        "computed_part": ([1, 1], np.float64),
        "micro_batch": ([-1, -1], np.int32),
        "waits": ([], np.int32),
        "held_tensors": ([], np.int32),
    }
    defaults = {name: getattr(graph, name) for name in expected}
    assert {name: (array.tolist(), array.dtype) for name, array in defaults.items()} == expected
    assert graph.edges.shape == graph.waits.shape == (0, 2)


def test_arrays_are_read_only_and_do_not_change_with_the_arrays_that_were_given() -> None:
    flops = np.ones(4)
    graph = diamond(flops=flops)
    flops[0] = 7
    assert graph.flops[0] == 1
    for twin in (graph, copy.copy(graph), copy.deepcopy(graph)):
        assert twin == graph
        with pytest.raises(ValueError, match="read-only"):
            twin.flops[0] = 2
        with pytest.raises(TypeError):
            twin.measured_time["cpu"] = flops  # type: ignore[index]


def test_no_view_of_a_given_array_changes_a_graph() -> None:
    flops, parameter_bytes = np.ones(4), np.ones((2, 4), np.int64)
    writable = flops[:]
    flops.flags.writeable = False
    row = parameter_bytes[0]
    row.flags.writeable = False
    graph = diamond(flops=flops, parameter_bytes=row)
    writable[0] = parameter_bytes[0, 0] = 7
    flops.flags.writeable = True
    flops[1] = 7
    assert graph.flops.tolist() == graph.parameter_bytes.tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="WRITEABLE"):
        graph.flops.flags.writeable = True
    assert replace(graph, tokens=1).flops is graph.flops


def test_an_op_comes_behind_those_that_it_waits_for() -> None:
    graph = diamond(waits=[[3, 0], [1, 2]])
    assert graph.topological_order.tolist() == [0, 2, 1, 3]
    assert graph.waits.tolist() == [[1, 2], [3, 0]]  # in ascending order
    assert graph.waiters_of_op[0].tolist() == [3]
    assert graph.precedences[-2:].tolist() == [[2, 1], [0, 3]]


def test_graphs_differ_when_any_field_does() -> None:
    from_numpy = diamond(op_names=np.array(["split", "left", "right", "join"]))
    assert from_numpy == diamond()
    assert {type(name) for name in from_numpy.op_names} == {str}
    assert diamond() != diamond(flops=[0.0, 1e9, 2e9, 2e6])
    assert diamond() != diamond(measured_time={})
    assert diamond() != diamond(waits=[[3, 0]])
    assert diamond() != "graph"


@given(op_graphs())
def test_the_order_is_that_of_networkx_and_rows_hold_every_edge(graph: OpGraph) -> None:
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(graph.num_ops))
    oracle.add_edges_from(zip(graph.edge_producers, graph.edge_consumers, strict=True))
    oracle.add_edges_from(graph.waits[:, ::-1].tolist())
    assert graph.topological_order.tolist() == list(nx.lexicographical_topological_sort(oracle))
    edges = graph.edges.tolist()
    for tensor in range(graph.num_tensors):
        expected = [consumer for read, consumer in edges if read == tensor]
        assert graph.consumers_of_tensor[tensor].tolist() == expected
    for op in range(graph.num_ops):
        assert graph.inputs_of_op[op].tolist() == [t for t, consumer in edges if consumer == op]
        outputs = np.flatnonzero(graph.tensor_producer == op)
        assert graph.tensors_of_op[op].tolist() == outputs.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # texts
        ({"op_names": "abcd"}, "op_names: expected a sequence of texts, got 'abcd'"),
        ({"op_names": ["a", "b", "b", "c"]}, "op_names[2]: 'b' repeats op_names[1]"),
        ({"op_names": ["a", "", "b", "c"]}, "op_names[1]: expected a text that is not empty"),
        ({"op_names": ["a", "\ud800", "b", "c"]}, "op_names[1]: expected text that UTF-8 can"),
        ({"scopes": [""] * 3}, "scopes: expected 4 texts, got 3"),
        # integers
        ({"phases": [0, 1, 2, 3]}, "phases[3]: expected an integer from 0 to 2, got 3"),
        ({"phases": [0.0, 1.0, 2.0, 1.0]}, "phases: expected integers, got float64"),
        ({"colocation": [-2, 0, 0, 0]}, "colocation[0]: expected an integer from -1 to"),
        ({"tensor_bytes": [0, 2**80, 1, 1]}, "tensor_bytes[1]: expected an integer from 0 to 922"),
        ({"parameter_bytes": [2**59, 0, 2**59, 2**20]}, "parameter_bytes: expected a sum of at mo"),
        # numbers
        ({"flops": [0, 1, np.nan, 2]}, "flops[2]: expected a finite number >= 0, got nan"),
        ({"flops": ["1", "2", "3", "4"]}, "flops: expected numbers, got str"),
        ({"flops": [[1], [2, 3], 4, 5]}, "flops: expected an array of one shape, got [[1]"),
        ({"flops": [0, 0, 10**400, 1]}, "flops: expected numbers, got object"),
        ({"flops": [0, 1]}, "flops: expected shape (4,), got (2,)"),
        # of graphs
        ({"op_names": []}, "op_names: expected at least one op, got none"),
        ({"tensor_producer": [0, 0, 1, 4]}, "tensor_producer[3]: expected an integer from 0 to 3"),
        ({"edges": [[0, 1], [1, 9]]}, "edges[1, 1]: expected an integer from 0 to 3, got 9"),
        ({"edges": [[2, 3], [0, 1], [2, 3]]}, "edges[2]: expected each (tensor, op) once, got [2"),
        ({"edges": [[0, 1], [2, 2], [3, 1]]}, "edges: expected no cycle, got 'left' -> 'right' ->"),
        ({"waits": [[4, 0]]}, "waits[0, 0]: expected an integer from 0 to 3, got 4"),
        ({"waits": [[3, 0], [3, 0]]}, "waits[1]: expected each (op, op before it) once, got"),
        ({"waits": [[0, 3]]}, "edges and waits: expected no cycle, got 'split' -> '"),
        ({"held_tensors": [4]}, "held_tensors[0]: expected an integer from 0 to 3, got 4"),
        ({"held_tensors": [1, 0, 1]}, "held_tensors[2]: expected each tensor once, got 1 again"),
        ({"measured_time": [1, 2]}, "measured_time: expected a mapping, got [1, 2]"),
        ({"measured_time": {"cpu": [0, 0, 0, -1]}}, "measured_time['cpu'][3]: expected a finite"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(changes: dict[str, object], message: str) -> None:
    with refused(message):
        diamond(**changes)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), unique=True, min_size=1))
def test_a_graph_with_cycles_is_refused_with_one_of_them(edges: list[tuple[int, int]]) -> None:
    names, oracle = [*"01234"], nx.DiGraph(edges)
    if nx.is_directed_acyclic_graph(oracle):
        assert plain_graph(names, range(5), [0] * 5, edges).num_edges == len(edges)
        return
    with pytest.raises(GraphError, match="edges: expected no cycle, got ") as caught:
        plain_graph(names, range(5), [0] * 5, edges)
    cycle = [int(op) for op in re.findall(r"'(\d)'", str(caught.value))]
    assert cycle[0] == cycle[-1] == min(cycle)
    assert len(set(cycle)) == len(cycle) - 1
    assert oracle.edges >= set(pairwise(cycle))


def test_a_cycle_ahead_of_a_long_chain_is_found_at_once() -> None:
    last = 100_000  # where the work is quadratic, this does not end
    chain = [(op, op + 1) for op in range(last)][::-1]
    cycle = [(last + 1, last + 2), (last + 2, last + 1), (last + 2, 0)]
    names = [str(op) for op in range(last + 3)]
    with refused("edges: expected no cycle, got '100001' -> '100002' -> '100001'"):
        plain_graph(names, range(last + 3), [0] * (last + 3), chain + cycle)
    with refused("edges: expected no cycle, got '0' -> '1' -> '2' -> ... -> '100000' -> '0'"):
        plain_graph(names, range(last + 3), [0] * (last + 3), [*chain, (last, 0)])
