from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given

from example_graphs import diamond, plain_graph, refused
from graph_strategies import op_graphs
from placeto_graphs import (
    DEFAULT_RULES,
    Grouping,
    OpGraph,
    Phase,
    colocate,
    colocate_by_id,
    colocate_gradients,
    colocate_scopes,
    colocate_single_consumers,
    colocate_updates,
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


def test_an_op_with_two_outputs_joins_only_when_one_op_reads_both() -> None:
    both = diamond(edges=[[0, 1], [1, 1]])
    assert groups(both, colocate_single_consumers) == {"split left", "right", "join"}
    apart = diamond(edges=[[0, 1], [1, 2]])
    assert groups(apart, colocate_single_consumers) == {"split", "left", "right", "join"}


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


def test_gradients_of_a_layer_used_twice_join_the_use_that_they_belong_to() -> None:
    graph = graph_of(
        {
            "w": (FORWARD, "cell", ""),
            "x": (FORWARD, "", ""),
            "h1": (FORWARD, "cell", "w x"),
            "h2": (FORWARD, "cell", "w h1"),
            "h2_grad": (BACKWARD, "cell", "w h1"),
            "h1_grad": (BACKWARD, "cell", "w x h2_grad"),
        },
        weights="w",
    )
    assert groups(graph, colocate_gradients) == {"w", "x", "h1 h1_grad", "h2 h2_grad"}


def test_a_colocation_id_says_which_forward_op_a_gradient_belongs_to() -> None:
    ops = two_layers()
    colocation = ops.colocation.copy()
    colocation[[ops.op_names.index(name) for name in ("mm1", "relu_grad")]] = 3
    told = replace(ops, colocation=colocation)
    assert "mm1 relu_grad mm1_grad" in groups(told, colocate_gradients)


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


def test_without_rules_each_op_is_its_own_group() -> None:
    assert colocate(diamond(), rules=()).num_groups == 4


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
