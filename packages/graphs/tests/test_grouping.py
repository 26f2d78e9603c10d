"""Which ops move together: co-location, merging, and reachability among the groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import diamond, diamond_problem, plain_graph, refused
from graph_strategies import op_graphs
from placeto_graphs import (
    DEFAULT_RULES,
    FREE_TYPE,
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

Rule = Callable[[OpGraph], Grouping]
RULES: tuple[Rule, ...] = (*DEFAULT_RULES, partial(colocate_scopes, pattern=r"lstm\.\d"))


def graph_of(text: str, **changes: Any) -> OpGraph:
    """Build a graph from lines ``NAME [PHASE] [SCOPE] [< OPS READ]``; weights begin with ``w``.

    Each op makes one tensor, the phase is f, b or u, and forward by default.
    """
    rows = [line.partition("<") for line in text.strip().splitlines()]
    ops = [[*head.split(), "f", "-"][:3] for head, *_ in rows]
    names = [name for name, *_ in ops]
    edges = [
        (names.index(read), consumer)
        for consumer, (*_, reads) in enumerate(rows)
        for read in reads.split()
    ]
    return plain_graph(
        names,
        range(len(names)),
        [1] * len(names),
        edges,
        scopes=[scope.strip("-") for _, _, scope in ops],
        phases=["fbu".index(phase) for _, phase, _ in ops],
        parameter_bytes=[int(name[0] == "w") for name in names],
        **changes,
    )


def groups(grouping: Grouping, names: tuple[str, ...]) -> set[str]:
    """Return each group as the names of its ops, in one text."""
    return {" ".join(names[op] for op in members) for members in grouping.members}


INPUT_GRADIENT = """
    w
    cast      f - < w
    gradient  b
    of_input  b - < w gradient
    of_weight b - < gradient
    before    b - < of_input
    update    u - < w of_weight
"""
PERCEPTRON = """
    w1        f layer1
    w2        f layer2
    mm1       f layer1 < w1
    relu      f relu   < mm1
    mm2       f layer2 < relu w2
    loss      f -      < mm2
    loss_grad b -      < mm2 loss
    mm2_grad  b layer2 < loss_grad relu w2
    bias_grad b layer2 < loss_grad
    relu_grad b relu   < mm2_grad relu
    mm1_grad  b layer1 < relu_grad w1
    w1_step   u -      < w1 mm1_grad
    w2_step   u -      < w2 mm2_grad
    norm      u -      < w1 w2
"""


SINGLE = colocate_single_consumers
KEEPS = ("op", "op", FREE_TYPE, "op")
OF_CAST_WEIGHTS = INPUT_GRADIENT.replace("< w gradient", "< cast gradient")


@pytest.mark.parametrize(
    ("rule", "graph", "expected"),
    [
        (colocate_by_id, diamond(colocation=[7, -1, 0, 7]), "split join, left, right"),
        (SINGLE, "a\nb f - < a\nc f - < b\nd f - < c\ne f - < c", "a b c, d, e"),
        # It is ops that have one reader, not groups: "a" stays apart from the group that reads it.
        (SINGLE, "a\nb f - < a\nc f - < a\nd f - < b c", "a, b c d"),
        # An op with two outputs joins only when one op reads both.
        (SINGLE, diamond(edges=[[0, 1], [1, 1]]), "split left, right, join"),
        (SINGLE, diamond(edges=[[0, 1], [1, 2]]), "split, left, right, join"),
        # An op that only keeps what it reads is no reader.
        (SINGLE, diamond(edges=[[0, 1], [1, 2]], op_types=KEEPS), "split left, right, join"),
        # The gradient of an input joins no other layer, also where weights are cast.
        (SINGLE, INPUT_GRADIENT, "w, cast, gradient, of_input, of_weight update, before"),
        (SINGLE, OF_CAST_WEIGHTS, "w, cast of_input, gradient, of_weight update, before"),
        # relu_grad reads what relu made; mm2_grad reads what mm2 read; only weights tie mm1_grad.
        (
            colocate_gradients,
            PERCEPTRON,
            "w1, w2, mm1 mm1_grad, relu relu_grad, mm2 mm2_grad, loss loss_grad, bias_grad, "
            "w1_step, w2_step, norm",
        ),
        # Of several forward ops of its scope the last, but weights only if nothing else is shared.
        (colocate_gradients, "a\nb f s < a\nc f s < b\ng b s < a b", "a, b, c g"),
        (colocate_gradients, "w\na\nb f s < a w\nc f s < w\ng b s < a w", "w, a, b g, c"),
        # A shared colocation id comes first, and of several forward ops the last in order.
        (
            colocate_gradients,
            graph_of("a\nb f - < a\nc\ng b - < a b\nh b - < a", colocation=[-1, -1, 4, 4, -1]),
            "a, b h, c g",
        ),
        (
            colocate_updates,
            PERCEPTRON,
            "w1 w1_step, w2 w2_step, mm1, relu, mm2, loss, loss_grad, mm2_grad, bias_grad, "
            "relu_grad, mm1_grad, norm",
        ),
        (
            partial(colocate_scopes, pattern=r"lstm\.\d+"),
            "a f lstm.0.gate\nb f lstm.1\nc f lstm.0.cell\nd f head.lstm.0",
            "a c, b, d",
        ),
    ],
)
def test_a_rule_by_hand(rule: Rule, graph: OpGraph | str, expected: str) -> None:
    graph = graph_of(graph) if isinstance(graph, str) else graph
    assert groups(rule(graph), graph.op_names) == set(expected.split(", "))


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


@given(op_graphs())
def test_a_gradient_op_is_with_the_last_forward_op_that_shares_most(graph: OpGraph) -> None:
    position = graph.topological_order.tolist().index
    reads = set(map(tuple, graph.edges.tolist()))
    uses = reads | set(enumerate(graph.tensor_producer.tolist()))
    groups = nx.empty_graph(graph.num_ops)
    for op in np.flatnonzero(graph.phases == Phase.BACKWARD).tolist():
        forward = sorted(np.flatnonzero(graph.phases == Phase.FORWARD).tolist(), key=position)
        with_its_id = [
            other for other in forward if graph.colocation[other] == graph.colocation[op] >= 0
        ]
        in_its_scope = [
            (not graph.lives_in_weights[tensor], position(user), user)
            for tensor, user in uses
            if (tensor, op) in reads and user in forward and graph.scopes[user] == graph.scopes[op]
        ]
        if with_its_id:
            groups.add_edge(op, with_its_id[-1])
        elif in_its_scope:
            groups.add_edge(op, max(in_its_scope)[-1])
    expected = set(map(frozenset, nx.connected_components(groups)))
    assert partition(colocate_gradients(graph).group_of) == expected


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
        tensor = min(sent, default=None) or min(received, default=None)
        return tensor[-1] if tensor else None

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
        min_output_bytes = [None, int(generator.integers(1, 12))][int(generator.integers(2))]
        merged = merge_and_colocate(
            graph, start, num_groups=target, min_output_bytes=min_output_bytes
        )
        assert partition(merged.group_of) == merged_step_by_step(
            graph, start, target, min_output_bytes
        )
        num_merges += graph.num_ops - merged.num_groups
    assert num_merges > 1500


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
    names, zeros = [f"op{op}" for op in range(100_000)], np.zeros(100_000, np.int64)
    graph = plain_graph(names, np.arange(100_000), zeros, edges)
    assert merge_and_colocate(graph, colocate(graph, rules=()), num_groups=2).num_groups == 2


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
    of_three_ops = Grouping(group_of=np.zeros(3, np.int32), group_names=("all",))
    with pytest.raises(GraphError, match="expected the groups of 4 ops, got 3"):
        merge_and_colocate(diamond(), of_three_ops, num_groups=1)


@st.composite
def dags(draw: st.DrawFn) -> GroupGraph:
    """Draw DAGs, small and with more than a hundred groups, numbered at random."""
    count = draw(st.one_of(st.integers(1, 8), st.integers(60, 70), st.integers(126, 130)))
    group_of_rank = np.random.default_rng(draw(st.integers(0, 99))).permutation(count).tolist()
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = draw(st.lists(ends, max_size=150))
    edges = {
        (group_of_rank[min(pair)], group_of_rank[max(pair)]) for pair in drawn if pair[0] != pair[1]
    }
    zeros = np.zeros(count, np.int64)
    return GroupGraph(
        compute_time=np.ones((count, 1)),
        output_bytes=zeros,
        parameter_bytes=zeros,
        edges=np.array(sorted(edges), np.int32).reshape(-1, 2),
        edge_bytes=np.zeros(len(edges), np.int64),
    )


@given(dags())
def test_reachability_is_that_of_networkx(graph: GroupGraph) -> None:
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(graph.num_groups))
    oracle.add_edges_from(graph.edges.tolist())
    sets = reachability(graph)
    for group in oracle:
        ancestors, descendants = nx.ancestors(oracle, group), nx.descendants(oracle, group)
        assert set(np.flatnonzero(sets.ancestors[group])) == ancestors
        assert set(np.flatnonzero(sets.descendants[group])) == descendants
        parallel = set(oracle) - ancestors - descendants - {group}
        assert set(np.flatnonzero(sets.parallel[group])) == parallel


def test_a_graph_that_would_not_fit_memory_is_refused() -> None:
    groups = diamond_problem().group_graph
    with refused("graph: expected at most 3 groups, got 4; merge them first"):
        reachability(groups, max_groups=3)
    assert reachability(groups, max_groups=4).parallel.sum() == 2
