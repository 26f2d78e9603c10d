"""Which groups have work at about the same time, against the definition taken literally."""

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, from_networkx, grouping_of_labels, parse_cluster
from placeto_policy.earliest import NEAR, SLICES, concurrency, earliest_times
from scheduled_problems import without_seconds

SEEDS = st.integers(0, 10**6)


def random_ops(seed: int, num_ops: int) -> nx.DiGraph:
    """Return ops that take 0 to 3 s, so that many of them start at the same time."""
    generator = np.random.default_rng(seed)
    ops = nx.DiGraph()
    for op in range(num_ops):
        ops.add_node(op, seconds=float(generator.integers(0, 4)))
        for earlier in range(op):
            if generator.random() < 0.25:
                ops.add_edge(earlier, op, bytes=1)
    return ops


def in_groups(ops: nx.DiGraph, group_of: NDArray[np.int64], unit: float = 1.0) -> PlacementProblem:
    graph = from_networkx(without_seconds(ops))
    seconds = unit * np.array([ops.nodes[op]["seconds"] for op in ops])
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.stack([seconds, 3 * seconds], axis=1),  # 2 of them on the mean
        grouping=grouping_of_labels(graph, group_of),
    )


def earliest_starts(ops: nx.DiGraph) -> dict[int, float]:
    """Return the longest path to each op, in seconds, by networkx."""
    weighed = ops.copy()
    for before, after in ops.edges:
        weighed[before][after]["weight"] = ops.nodes[before]["seconds"]
    return {
        op: float(nx.dag_longest_path_length(weighed.subgraph(nx.ancestors(weighed, op) | {op})))
        for op in ops
    }


def work_of_ops(ops: nx.DiGraph) -> NDArray[np.float64]:
    """Return float64[V, SLICES], the part of each op in each slice."""
    starts = earliest_starts(ops)
    longest = max(starts[op] + ops.nodes[op]["seconds"] for op in ops) or 1.0
    first = np.array([[starts[op] / longest] for op in ops])
    last = np.array([[(starts[op] + ops.nodes[op]["seconds"]) / longest] for op in ops])
    edges = np.linspace(0, 1, SLICES + 1)
    inside: NDArray[np.float64] = np.minimum(last, edges[1:]) - np.maximum(first, edges[:-1])
    return inside.clip(min=0.0)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 14), st.integers(1, 5))
def test_concurrency_by_its_definition(seed: int, num_ops: int, num_labels: int) -> None:
    ops = random_ops(seed, num_ops)
    labels = np.random.default_rng(seed).integers(0, num_labels, num_ops)
    problem = in_groups(ops, labels)
    group_of, work = problem.grouping.group_of, work_of_ops(ops)
    middle = (np.arange(SLICES) + 0.5) / SLICES
    expected = np.zeros((len(NEAR), problem.num_groups, problem.num_groups))
    for scale, near in enumerate(NEAR):
        close = np.exp(-np.abs(middle[:, None] - middle) / near)
        for i, one in enumerate(group_of):
            for j, other in enumerate(group_of):
                if one != other:
                    expected[scale, one, other] += work[i] @ close @ work[j]
    np.testing.assert_allclose(
        concurrency(problem, earliest_times(problem)), expected, rtol=1e-9, atol=1e-12
    )


def test_ops_that_take_no_time_are_near_to_nothing() -> None:
    ops = random_ops(seed=3, num_ops=6)
    nx.set_node_attributes(ops, 0.0, "seconds")
    problem = in_groups(ops, np.arange(6))
    assert not concurrency(problem, earliest_times(problem)).any()
