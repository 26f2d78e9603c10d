"""Which ops move together: co-location, merging, and reachability among the groups."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, plain_graph, refused
from graph_strategies import op_graphs
from placeto_graphs import (
    DEFAULT_RULES,
    GraphError,
    GroupGraph,
    Grouping,
    OpGraph,
    Phase,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_scopes,
    colocate_single_consumers,
    colocate_updates,
    merge_and_colocate,
    reachability,
)

FORWARD, BACKWARD, UPDATE = Phase
RULES: tuple[Callable[[OpGraph], Grouping], ...] = (
    *DEFAULT_RULES,
    partial(colocate_scopes, pattern=r"lstm\.\d"),
)


def graph_of(ops: dict[str, tuple[Phase, str, str]], weights: str = "") -> OpGraph:
    """Build a graph from op name -> (phase, scope, ops read), each op with one tensor."""
    names = list(ops)
    edges = [
        (names.index(read), consumer)
        for consumer, (_, _, reads) in enumerate(ops.values())
        for read in reads.split()
    ]
    return plain_graph(
        names,
        range(len(names)),
        [1] * len(names),
        edges,
        scopes=[scope for _, scope, _ in ops.values()],
        phases=[phase for phase, _, _ in ops.values()],
        parameter_bytes=[int(name in weights.split()) for name in names],
    )


def groups(graph: OpGraph, rule: Callable[[OpGraph], Grouping]) -> set[str]:
    """Return each group as the names of its ops, in one text."""
    grouping = rule(graph)
    return {
        " ".join(graph.op_names[op] for op in grouping.members[group])
        for group in range(grouping.num_groups)
    }


def test_equal_colocation_ids_share_a_group() -> None:
    graph = diamond(colocation=[7, -1, 0, 7])
    assert groups(graph, colocate_by_id) == {"split join", "left", "right"}


def test_an_op_with_one_reader_joins_it_recursively() -> None:
    graph = plain_graph([*"abcde"], range(5), [1] * 5, [(0, 1), (1, 2), (2, 3), (2, 4)])
    assert groups(graph, colocate_single_consumers) == {"a b c", "d", "e"}
    # It is ops that have one reader, not groups: "a" stays apart from the one group that reads it.
    forked = plain_graph([*"abcd"], range(4), [1] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert groups(forked, colocate_single_consumers) == {"a", "b c d"}


def test_an_op_with_two_outputs_joins_only_when_one_op_reads_both() -> None:
    both = diamond(edges=[[0, 1], [1, 1]])
    assert groups(both, colocate_single_consumers) == {"split left", "right", "join"}
    apart = diamond(edges=[[0, 1], [1, 2]])
    assert groups(apart, colocate_single_consumers) == {"split", "left", "right", "join"}


def test_the_gradient_of_an_input_joins_no_other_layer() -> None:
    graph = graph_of(
        {
            "w": (FORWARD, "", ""),
            "gradient": (BACKWARD, "", ""),
            "of_input": (BACKWARD, "", "w gradient"),
            "of_weights": (BACKWARD, "", "gradient"),
            "before": (BACKWARD, "", "of_input"),
            "update": (UPDATE, "", "w of_weights"),
        },
        weights="w",
    )
    assert groups(graph, colocate_single_consumers) == {
        "w",
        "gradient",
        "of_input",
        "of_weights update",
        "before",
    }


def test_the_gradient_of_an_input_joins_no_other_layer_where_weights_are_cast() -> None:
    graph = graph_of(
        {
            "w": (FORWARD, "", ""),
            "cast": (FORWARD, "", "w"),
            "gradient": (BACKWARD, "", ""),
            "of_input": (BACKWARD, "", "cast gradient"),
            "of_weights": (BACKWARD, "", "gradient"),
            "before": (BACKWARD, "", "of_input"),
        },
        weights="w",
    )
    assert "of_input before" not in groups(graph, colocate_single_consumers)


def two_layers() -> OpGraph:
    """A two-layer perceptron: weights, forward, backward, and updates."""
    return graph_of(
        {
            "w1": (FORWARD, "layer1", ""),
            "w2": (FORWARD, "layer2", ""),
            "mm1": (FORWARD, "layer1", "w1"),
            "relu": (FORWARD, "relu", "mm1"),
            "mm2": (FORWARD, "layer2", "relu w2"),
            "loss": (FORWARD, "", "mm2"),
            "loss_grad": (BACKWARD, "", "mm2 loss"),
            "mm2_grad": (BACKWARD, "layer2", "loss_grad relu w2"),
            "bias2_grad": (BACKWARD, "layer2", "loss_grad"),
            "relu_grad": (BACKWARD, "relu", "mm2_grad relu"),
            "mm1_grad": (BACKWARD, "layer1", "relu_grad w1"),
            "w1_step": (UPDATE, "", "w1 mm1_grad"),
            "w2_step": (UPDATE, "", "w2 mm2_grad"),
            "norm": (UPDATE, "", "w1 w2"),
        },
        weights="w1 w2",
    )


def test_gradients_join_the_forward_op_of_their_scope_whose_inputs_or_output_they_read() -> None:
    found = groups(two_layers(), colocate_gradients)
    # relu_grad reads what relu made; mm2_grad reads what mm2 read; only weights tie mm1_grad.
    assert {"relu relu_grad", "mm2 mm2_grad", "mm1 mm1_grad", "loss loss_grad"} <= found
    assert "bias2_grad" in found


def owner_by_definition(graph: OpGraph, gradient: int) -> int | None:
    """Return the forward op that a gradient op belongs to, one candidate after the other."""
    order: list[int] = graph.topological_order.tolist()
    forward = [op for op in order if graph.phases[op] == FORWARD]
    same_id = [op for op in forward if graph.colocation[op] == graph.colocation[gradient] >= 0]
    if same_id:
        return same_id[-1]
    in_scope = [op for op in forward if graph.scopes[op] == graph.scopes[gradient]]
    for weights in (False, True):
        shared = [
            tensor
            for tensor in graph.inputs_of_op[gradient].tolist()
            if bool(graph.parameter_bytes[graph.tensor_producer[tensor]]) is weights
        ]
        found = [
            op
            for op in in_scope
            if any(
                graph.tensor_producer[tensor] == op or op in graph.consumers_of_tensor[tensor]
                for tensor in shared
            )
        ]
        if found:
            return found[-1]
    return None


def test_gradients_join_forward_ops_as_defined_whatever_the_order_of_ops() -> None:
    generator = np.random.default_rng(0)
    num_owned = 0
    for count in [*range(4, 12)] * 25:
        plain = random_graph(generator, count)
        graph = replace(
            plain,
            phases=generator.integers(0, 2, count, np.int8),
            scopes=generator.choice(["a", "b"], count).tolist(),
            colocation=generator.choice([-1, -1, -1, 0, 1], count),
            parameter_bytes=generator.choice([0, 0, 4], count),
        )
        owners = nx.empty_graph(count)
        for op in np.flatnonzero(graph.phases == BACKWARD).tolist():
            owner = owner_by_definition(graph, op)
            if owner is not None:
                owners.add_edge(op, owner)
                num_owned += 1
        expected = set(map(frozenset, nx.connected_components(owners)))
        assert partition(colocate_gradients(graph).group_of) == expected
    assert num_owned > 300


def test_updates_join_the_one_parameter_that_they_read() -> None:
    found = groups(two_layers(), colocate_updates)
    assert {"w1 w1_step", "w2 w2_step", "norm"} <= found


def test_scopes_that_begin_alike_share_a_group() -> None:
    graph = graph_of(
        {
            "a": (FORWARD, "lstm.0.gate", ""),
            "b": (FORWARD, "lstm.1", ""),
            "c": (FORWARD, "lstm.0.cell", ""),
            "d": (FORWARD, "head.lstm.0", ""),
        }
    )
    assert groups(graph, partial(colocate_scopes, pattern=r"lstm\.\d+")) == {"a c", "b", "d"}


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "*"])
def test_a_pattern_that_is_none_is_named(pattern: str) -> None:
    with refused(f"pattern: expected a regular expression, got {pattern!r}"):
        colocate_scopes(diamond(), pattern)


@given(op_graphs())
def test_rules_together_keep_what_each_alone_puts_together_and_no_more(graph: OpGraph) -> None:
    joined = colocate(graph, RULES).group_of
    ties = {(op, op) for op in range(graph.num_ops)}
    for rule in RULES:
        alone = rule(graph).group_of
        ties |= {(a, b) for a, b in np.argwhere(alone[:, None] == alone[None, :]).tolist()}
    reached = np.zeros((graph.num_ops, graph.num_ops), bool)
    reached[tuple(np.array(sorted(ties)).T)] = True
    for _ in range(graph.num_ops):
        reached = reached @ reached
    np.testing.assert_array_equal(reached, joined[:, None] == joined[None, :])


@given(op_graphs())
def test_the_first_op_names_a_group(graph: OpGraph) -> None:
    grouping = colocate(graph)
    position = {op: index for index, op in enumerate(graph.topological_order.tolist())}
    for group, name in enumerate(grouping.group_names):
        first = min(grouping.members[group].tolist(), key=position.__getitem__)
        assert graph.op_names[first] == name


def merged_step_by_step(
    graph: OpGraph, grouping: Grouping, num_groups: int | None, min_output_bytes: int | None
) -> set[frozenset[int]]:
    """Merge as the definition reads aloud, with a scan of all groups and edges per merge."""
    group_of = dict(enumerate(grouping.group_of.tolist()))
    position = {op: index for index, op in enumerate(graph.topological_order.tolist())}
    edges = [
        (int(graph.tensor_bytes[tensor]), int(graph.tensor_producer[tensor]), consumer)
        for tensor, consumer in graph.edges.tolist()
    ]

    def cost(group: int) -> int:
        return sum(
            int(size)
            for producer, size in zip(graph.tensor_producer, graph.tensor_bytes, strict=True)
            if group_of[int(producer)] == group
        )

    def neighbour(group: int) -> int | None:
        sent = [
            (-size, position[consumer], position[producer], group_of[consumer])
            for size, producer, consumer in edges
            if group_of[producer] == group != group_of[consumer]
        ]
        received = [
            (-size, position[producer], position[consumer], group_of[producer])
            for size, producer, consumer in edges
            if group_of[consumer] == group != group_of[producer]
        ]
        found = min(sent, default=None) or min(received, default=None)
        return found[-1] if found else None

    waiting: int | None = None
    while len(set(group_of.values())) > (num_groups or 1):
        candidates = [
            (cost(group), group)
            for group in set(group_of.values())
            if group != waiting and (min_output_bytes is None or cost(group) < min_output_bytes)
        ]
        if not candidates:
            break
        _, cheapest = min(candidates)
        target = neighbour(cheapest)
        if target is None and waiting is None:
            waiting = cheapest
            continue
        if target is None:
            cheapest, target, waiting = waiting, cheapest, None
        group_of = {op: target if group == cheapest else group for op, group in group_of.items()}
    return partition(np.array(list(group_of.values())))


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


def random_graph(generator: np.random.Generator, count: int, density: float = 0.2) -> OpGraph:
    """Return a graph of few sizes of tensors, so that costs are often equal; ops in any order."""
    rank = generator.permutation(count)
    producers = generator.integers(0, count, 2 * count)
    edges = [
        (tensor, op)
        for tensor, producer in enumerate(producers.tolist())
        for op in range(count)
        if rank[producer] < rank[op] and generator.random() < density
    ]
    sizes = generator.integers(0, 5, 2 * count)
    return plain_graph([f"op{op}" for op in range(count)], producers, sizes, edges)


def test_merging_follows_its_definition_where_much_is_equal() -> None:
    generator = np.random.default_rng(0)
    num_merges = 0
    for count, density in [(8, 0.2), (12, 0.2), (12, 0.02), (40, 0.2)] * 60:
        graph = random_graph(generator, count, density)
        start = colocate(graph, rules=())
        target = int(generator.integers(1, graph.num_ops))
        least = [None, int(generator.integers(1, 12))][int(generator.integers(2))]
        merged = merge_and_colocate(graph, start, num_groups=target, min_output_bytes=least)
        assert partition(merged.group_of) == merged_step_by_step(graph, start, target, least)
        num_merges += graph.num_ops - merged.num_groups
    assert num_merges > 1500


def chain(count: int, sizes: Any) -> OpGraph:
    edges = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
    return plain_graph([f"op{op}" for op in range(count)], np.arange(count - 1), sizes, edges)


def test_a_graph_of_many_parts_is_merged_to_the_target_number() -> None:
    """As of counters, one per layer, that nothing but their own update reads."""
    count = 3000
    graph = chain(count, np.random.default_rng(0).integers(0, 100, count - 1))
    graph = replace(graph, edges=graph.edges[::3])
    for target in (1, 2, 10, 999, 1500):
        merged = merge_and_colocate(graph, colocate(graph, rules=()), num_groups=target)
        assert merged.num_groups == target


@pytest.mark.parametrize(
    "edges",
    [
        [(0, leaf) for leaf in range(1, 100_000)],
        [(leaf, 99_999) for leaf in range(99_999)],
        [(op, op + 1) for op in range(99_999)],
    ],
    ids=["one op feeds all", "all feed one op", "chain"],
)
def test_hubs_and_long_chains_of_costless_ops_are_merged(edges: list[tuple[int, int]]) -> None:
    """With a scan of a hub's edges per merge, this would take 10^10 steps."""
    count = 100_000
    names, zeros = [f"op{op}" for op in range(count)], np.zeros(count, np.int64)
    graph = plain_graph(names, np.arange(count), zeros, edges)
    merged = merge_and_colocate(graph, colocate(graph, rules=()), num_groups=2)
    assert merged.num_groups == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "num_groups, min_output_bytes: expected one of the two, got neither"),
        ({"num_groups": 0}, "num_groups: expected an integer from 1 to"),
        ({"num_groups": 1.5}, "num_groups: expected integers, got float64"),
        ({"min_output_bytes": -1}, "min_output_bytes: expected an integer from 1 to"),
    ],
)
def test_a_wrong_target_is_named(arguments: dict[str, Any], message: str) -> None:
    graph = diamond()
    with refused(message):
        merge_and_colocate(graph, colocate(graph), **arguments)


def test_a_grouping_of_another_graph_is_refused() -> None:
    other = Grouping(group_of=np.zeros(3, np.int32), group_names=("all",))
    with pytest.raises(GraphError, match="expected the groups of 4 ops, got 3"):
        merge_and_colocate(diamond(), other, num_groups=1)


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
    """Draw DAGs, small and with more than a hundred groups, numbered at random."""
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


def test_a_graph_that_would_not_fit_memory_is_refused() -> None:
    with pytest.raises(GraphError, match="expected at most 2 groups, got 3; merge them first"):
        reachability(group_graph(3, []), max_groups=2)
    assert reachability(group_graph(3, []), max_groups=3).parallel.sum() == 6
