"""Hypothesis strategies for problems in which much happens at the same time."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import Cluster, Device, Grouping, OpGraph, PlacementProblem
from placeto_simulator.conformance import (
    BANDWIDTHS,
    DURATIONS,
    OVERHEADS,
    QUEUES,
    SIZES,
    random_link_map,
)

durations = st.sampled_from(DURATIONS)
overheads = st.sampled_from(OVERHEADS)
sizes = st.sampled_from(SIZES)


def listed(elements: st.SearchStrategy[float], count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(elements, min_size=count, max_size=count)


@st.composite
def op_graphs(draw: st.DrawFn, max_ops: int) -> OpGraph:
    """Draw graphs with several outputs per op, shared inputs, control edges and unread tensors."""
    count = draw(st.integers(1, max_ops))
    rank = draw(st.permutations(range(count)))
    producers = draw(st.lists(st.integers(0, count - 1), max_size=2 * count))
    possible = [
        (tensor, reader)
        for tensor, producer in enumerate(producers)
        for reader in range(count)
        if rank[producer] < rank[reader]
    ]
    edges = draw(st.lists(st.sampled_from(possible), unique=True, max_size=40)) if possible else []
    return OpGraph(
        op_names=tuple(f"op{op}" for op in range(count)),
        op_types=("op",) * count,
        scopes=("",) * count,
        phases=np.array(draw(listed(st.integers(0, 2), count)), np.int8),
        flops=np.zeros(count),
        bytes_accessed=np.zeros(count),
        parameter_bytes=np.array(draw(listed(sizes, count)), np.int64),
        workspace_bytes=np.array(draw(listed(sizes, count)), np.int64),
        colocation=np.full(count, -1, np.int32),
        tensor_producer=np.array(producers, np.int32),
        tensor_bytes=np.array(draw(listed(sizes, len(producers))), np.int64),
        edges=np.array(edges, np.int32).reshape(-1, 2),
    )


@st.composite
def clusters(draw: st.DrawFn, max_devices: int) -> Cluster:
    count = draw(st.integers(1, max_devices))
    bandwidth = st.sampled_from(BANDWIDTHS)
    seed = draw(st.integers(0, 2**32 - 1))
    return Cluster(
        devices=tuple(
            Device(f"device{number}", "kind", 1000, draw(overheads), draw(overheads))
            for number in range(count)
        ),
        bandwidth=np.array([draw(listed(bandwidth, count)) for _ in range(count)]),
        latency=np.array([draw(listed(overheads, count)) for _ in range(count)]),
        link=random_link_map(np.random.default_rng(seed), count),
        queue=draw(st.sampled_from(QUEUES)),
    )


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 14, max_devices: int = 8) -> PlacementProblem:
    """Draw problems; in half of them several ops share a group."""
    graph = draw(op_graphs(max_ops))
    cluster = draw(clusters(max_devices))
    rows = [draw(listed(durations, cluster.num_devices)) for _ in range(graph.num_ops)]
    labels: NDArray[np.int64] = np.arange(graph.num_ops)
    if draw(st.booleans()):
        labels = np.unique(
            np.array(draw(listed(st.integers(0, 3), graph.num_ops))), return_inverse=True
        )[1]
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=np.array(rows),
        grouping=Grouping(
            group_of=labels.astype(np.int32),
            group_names=tuple(f"group{group}" for group in range(int(labels.max()) + 1)),
        ),
    )


@st.composite
def placed_problems(draw: st.DrawFn) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Draw a problem and a few of its placements."""
    problem = draw(problems())
    devices = st.integers(0, problem.num_devices - 1)
    rows = draw(st.lists(listed(devices, problem.num_groups), min_size=1, max_size=4))
    return problem, np.array(rows, np.int32)
