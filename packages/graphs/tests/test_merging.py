from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, plain_graph, refused
from graph_strategies import op_graphs
from placeto_graphs import (
    DEFAULT_RULES,
    GraphError,
    Grouping,
    OpGraph,
    colocate,
    colocate_by_id,
    merge_and_colocate,
)


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


targets = st.tuples(
    st.none() | st.integers(1, 6), st.none() | st.integers(1, 5) | st.integers(1, 2**41)
).filter(lambda pair: pair != (None, None))
starts = st.sampled_from([(), (colocate_by_id,), DEFAULT_RULES])


@given(op_graphs(), targets, starts)
def test_merging_follows_its_definition(
    graph: OpGraph, target: tuple[int | None, int | None], rules: Any
) -> None:
    num_groups, min_output_bytes = target
    start = colocate(graph, rules)
    merged = merge_and_colocate(
        graph, start, num_groups=num_groups, min_output_bytes=min_output_bytes
    )
    oracle = merged_step_by_step(graph, start, num_groups, min_output_bytes)
    assert partition(merged.group_of) == oracle


@given(op_graphs(), targets, starts)
def test_merging_keeps_every_group_together_and_loses_no_op(
    graph: OpGraph, target: tuple[int | None, int | None], rules: Any
) -> None:
    start = colocate(graph, rules)
    merged = merge_and_colocate(graph, start, num_groups=target[0], min_output_bytes=target[1])
    assert merged.num_ops == graph.num_ops
    for members in partition(start.group_of):
        assert len(set(merged.group_of[list(members)].tolist())) == 1


@given(op_graphs(), starts)
def test_merging_what_is_merged_changes_nothing(graph: OpGraph, rules: Any) -> None:
    once = merge_and_colocate(graph, colocate(graph, rules), num_groups=3)
    assert merge_and_colocate(graph, once, num_groups=3) == once


def chain(count: int, sizes: Any) -> OpGraph:
    edges = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
    return plain_graph([f"op{op}" for op in range(count)], np.arange(count - 1), sizes, edges)


def test_groups_stop_at_the_target_number() -> None:
    graph = chain(1000, np.random.default_rng(0).integers(1, 10**6, 999))
    for target in (1, 2, 128, 999, 1000, 5000):
        merged = merge_and_colocate(graph, colocate(graph, rules=()), num_groups=target)
        assert merged.num_groups == min(target, 1000)


def test_no_group_is_left_below_the_threshold() -> None:
    graph = chain(1000, np.random.default_rng(0).integers(1, 100, 999))
    merged = merge_and_colocate(graph, colocate(graph, rules=()), min_output_bytes=1000)
    costs = np.bincount(merged.group_of[graph.tensor_producer], graph.tensor_bytes)
    assert merged.num_groups > 10
    assert costs.min() >= 1000


def test_groups_without_neighbours_join_each_other() -> None:
    graph = diamond(edges=[[0, 1]])
    three = merge_and_colocate(graph, colocate(graph, rules=()), num_groups=3)
    assert partition(three.group_of) == {frozenset({0, 1}), frozenset({2}), frozenset({3})}
    one = merge_and_colocate(graph, colocate(graph, rules=()), num_groups=1)
    assert one.num_groups == 1


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
        ({"num_groups": 1.5}, "num_groups: expected integers, got floating-point"),
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
