"""What groups keep in memory at the peak, against the definition taken literally."""

from dataclasses import replace

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import OpGraph, PlacementProblem, grouping_of_labels, parse_cluster
from placeto_policy import graph_features_of
from placeto_policy.earliest import NEAR, SLICES, concurrency, earliest_times, memory_at_peak


def problem_with_tensors(seed: int, num_ops: int, num_groups: int) -> PlacementProblem:
    """Return ops of which some have weights, and whose tensors several others read, or none."""
    generator = np.random.default_rng(seed)
    num_tensors = 2 * num_ops
    producer = generator.integers(0, num_ops, num_tensors)
    edges = [
        (tensor, op)
        for tensor in range(num_tensors)
        for op in range(int(producer[tensor]) + 1, num_ops)
        if generator.random() < 0.2
    ]
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        parameter_bytes=generator.integers(0, 2, num_ops) * generator.integers(1, 100, num_ops),
        tensor_producer=producer.astype(np.int32),
        tensor_bytes=generator.integers(0, 100, num_tensors),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        waits=np.array([[op, op - 2] for op in range(2, num_ops, 3)], np.int32).reshape(-1, 2),
        held_tensors=np.flatnonzero(generator.random(num_tensors) < 0.2).astype(np.int32),
    )
    seconds = generator.integers(0, 4, num_ops).astype(np.float64)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.stack([seconds, 3 * seconds], axis=1),  # 2 of them on the mean
        grouping=grouping_of_labels(graph, generator.integers(0, num_groups, num_ops)),
    )


def kept_in(problem: PlacementProblem, index: int) -> NDArray[np.float64]:
    """Return float64[G], the bytes of each group in one slice."""
    graph = problem.graph
    start, end, _ = earliest_times(problem)
    kept_bytes = np.zeros(problem.num_groups)
    # For the first outputs of each op that reads nothing.
    room = np.where(np.isin(range(graph.num_ops), graph.edges[:, 1]), 0, graph.parameter_bytes)
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        readers = [op for read, op in graph.edges.tolist() if read == tensor]
        last = max(
            [end[producer], *(end[op] for op in readers), float(tensor in graph.held_tensors)]
        )
        first_slice, last_slice = (
            min(SLICES - 1, int(time * SLICES)) for time in (start[producer], last)
        )
        room[producer] -= graph.tensor_bytes[tensor]
        if first_slice <= index <= last_slice and room[producer] < 0:
            kept_bytes[problem.grouping.group_of[producer]] += graph.tensor_bytes[tensor]
    for op, size in enumerate(graph.parameter_bytes.tolist()):
        kept_bytes[problem.grouping.group_of[op]] += size
    return kept_bytes


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 4))
def test_the_memory_of_groups_is_that_of_the_fullest_slice(
    seed: int, num_ops: int, num_groups: int
) -> None:
    problem = problem_with_tensors(seed, num_ops, num_groups)
    slices = [kept_in(problem, index) for index in range(SLICES)]
    expected = max(slices, key=lambda kept_bytes: kept_bytes.sum())
    memory = memory_at_peak(problem, earliest_times(problem))
    assert memory.sum() == expected.sum()
    assert any((memory == kept_bytes).all() for kept_bytes in slices)


def test_earliest_times_are_parts_of_the_longest_path() -> None:
    problem = problem_with_tensors(seed=4, num_ops=8, num_groups=3)
    graph, seconds = problem.graph, problem.compute_time[:, 0]
    paths = nx.DiGraph()
    paths.add_nodes_from(range(graph.num_ops))
    edges = zip(graph.edge_producers.tolist(), graph.edge_consumers.tolist(), strict=True)
    for source, target in [*edges, *graph.waits[:, ::-1].tolist()]:
        paths.add_edge(source, target, weight=seconds[source])
    start, end, _ = earliest_times(problem)
    assert end.max() == 1.0
    for op in range(graph.num_ops):
        path_before = paths.subgraph(nx.ancestors(paths, op) | {op})
        assert start[op] * (seconds[0] / (end[0] - start[0])) == nx.dag_longest_path_length(
            path_before
        )


def test_parts_of_the_memory_of_each_device() -> None:
    problem = problem_with_tensors(seed=1, num_ops=6, num_groups=3)
    mixed = replace(problem, cluster=parse_cluster("1xk80+1xa100"))
    limits = [device.memory_bytes for device in mixed.cluster.devices]
    assert limits[0] != limits[1]
    for device, limit in enumerate(limits):
        fractions = graph_features_of(mixed).memory[device].numpy()
        np.testing.assert_allclose(
            fractions * limit, memory_at_peak(mixed, earliest_times(mixed)), rtol=1e-6
        )


SEEDS = st.integers(0, 10**6)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 14), st.integers(1, 5))
def test_concurrency_by_its_definition(seed: int, num_ops: int, num_groups: int) -> None:
    problem = problem_with_tensors(seed, num_ops, num_groups)
    times, group_of = earliest_times(problem), problem.grouping.group_of
    edges = np.linspace(0, 1, SLICES + 1)
    first, last = times.start[:, None], times.end[:, None]
    work = (np.minimum(last, edges[1:]) - np.maximum(first, edges[:-1])).clip(min=0.0)  # [V, S]
    middle = (np.arange(SLICES) + 0.5) / SLICES
    expected = np.zeros((len(NEAR), problem.num_groups, problem.num_groups))
    for scale, near in enumerate(NEAR):
        close = np.exp(-np.abs(middle[:, None] - middle) / near)
        for i, group in enumerate(group_of):
            for j, other_group in enumerate(group_of):
                if group != other_group:
                    expected[scale, group, other_group] += work[i] @ close @ work[j]
    np.testing.assert_allclose(concurrency(problem, times), expected, rtol=1e-9, atol=1e-12)
