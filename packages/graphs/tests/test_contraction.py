"""Contracted problems: what of the whole one they keep."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import plain_graph
from graph_strategies import problems
from placeto_graphs import Grouping, PlacementProblem, contracted, micro_batched, parse_cluster


def bytes_between_groups(problem: PlacementProblem) -> dict[frozenset[int], int]:
    """Sum the bytes that two groups send to each other, each tensor once to a group."""
    graph, group_of = problem.graph, problem.grouping.group_of.tolist()
    sent = {
        (tensor, group_of[reader])
        for tensor, reader in graph.edges.tolist()
        if group_of[graph.tensor_producer[tensor]] != group_of[reader]
    }
    totals: dict[frozenset[int], int] = defaultdict(int)
    for tensor, group in sent:
        pair = frozenset([group_of[graph.tensor_producer[tensor]], group])
        totals[pair] += int(graph.tensor_bytes[tensor])
    return totals


@given(problems(), st.integers(1, 11))
def test_blocks_keep_groups_work_weights_and_traffic(
    problem: PlacementProblem, max_ops: int
) -> None:
    small = contracted(problem, max_ops)
    if problem.graph.num_ops <= max_ops:
        assert small is problem
        return
    assert small.num_groups == problem.num_groups  # few groups have one level
    assert small.grouping.group_names == problem.grouping.group_names
    overhead = np.array([device.op_overhead for device in problem.cluster.devices])
    for group in range(problem.num_groups):
        ops, blocks = problem.grouping.members[group], small.grouping.members[group]
        seconds = problem.compute_time[ops]
        busy = seconds.sum(axis=0) + overhead * (seconds > 0).sum(axis=0)
        of_blocks = small.compute_time[blocks]
        busy_blocks = of_blocks.sum(axis=0) + overhead * (of_blocks > 0).sum(axis=0)
        np.testing.assert_allclose(busy_blocks, busy)
        weights = problem.graph.parameter_bytes[ops].sum()
        assert small.graph.parameter_bytes[blocks].sum() == weights
    between, between_blocks = bytes_between_groups(problem), bytes_between_groups(small)
    assert between.keys() == between_blocks.keys()
    assert all(between_blocks[pair] >= size for pair, size in between.items())


def chain_of_ops(
    count: int, edges: list[tuple[int, int]], grouping: Grouping | None = None, **fields: Any
) -> PlacementProblem:
    """Return ops of a second on two devices that each make a tensor, of other sizes; op to op."""
    names = [f"op{op}" for op in range(count)]
    graph = plain_graph(names, range(count), 2 ** np.arange(count) % 1009, edges, **fields)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.ones((count, 2)),
        grouping=grouping
        or Grouping(group_of=np.arange(count, dtype=np.int32), group_names=tuple(names)),
    )


def test_tensors_between_the_same_blocks_are_one() -> None:
    grouping = Grouping(group_of=np.array([0, 0, 1, 1, 0, 0], np.int32), group_names=("a", "b"))
    problem = chain_of_ops(6, [(0, 2), (1, 2), (1, 3), (2, 4), (3, 5)], grouping)
    in_slices = contracted(problem, 4)  # ops 0 and 1, op 2, op 3, ops 4 and 5
    assert in_slices.grouping.group_of.tolist() == [0, 1, 1, 0]
    graph = in_slices.graph
    rows = zip(graph.edge_producers, graph.edge_consumers, graph.edges[:, 0], strict=True)
    sent = sorted((int(p), int(c), int(graph.tensor_bytes[tensor])) for p, c, tensor in rows)
    assert sent == [(0, 1, 1), (0, 1, 2), (0, 2, 2), (1, 3, 4), (2, 3, 8)]
    assert graph.num_tensors == 4
    whole = contracted(problem, 3).graph  # what flows back goes forwards, too
    assert (whole.edge_producers.tolist(), whole.edge_consumers.tolist()) == ([0], [1])
    assert whole.tensor_bytes.tolist() == [1 + 2 + 4 + 8]


def test_micro_batches_phases_and_weights_stay_apart() -> None:
    one = plain_graph(
        ["weight", "input", "product", "gradient"],
        [0, 1, 2, 3],
        [8, 1, 1, 1],
        [(0, 2), (1, 2), (2, 3)],
        parameter_bytes=[8, 0, 0, 0],
        phases=[0, 0, 0, 1],
    )
    step = micro_batched(one, 2)
    problem = PlacementProblem(
        graph=step,
        cluster=parse_cluster("2xk80"),
        compute_time=np.ones((step.num_ops, 2)),
        grouping=Grouping(group_of=np.zeros(step.num_ops, np.int32), group_names=("all",)),
    )
    small = contracted(problem, 5).graph
    looks = zip(small.micro_batch, small.phases, small.parameter_bytes, strict=True)
    assert sorted(looks) == [(-1, 0, 8), (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]


@pytest.mark.parametrize("max_ops", [40, 90])
def test_fewer_ops_than_groups_need_a_coarser_level(max_ops: int) -> None:
    small = contracted(chain_of_ops(100, [(op, op + 1) for op in range(99)]), max_ops)
    assert small.num_groups == max(size for size in (32, 64) if size <= max_ops)
    assert small.graph.num_ops <= max_ops
    assert small.levels[0].num_groups == 32
