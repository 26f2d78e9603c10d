"""Small problems to place: one to read in examples, and random ones of every kind."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import simulated_problems
from placeto_graphs import Cluster, Device, Grouping, OpGraph, PlacementProblem, grouping_of_labels


def op_graph(num_ops: int, edges: list[tuple[int, int]], **fields: Any) -> OpGraph:
    """Return a graph of ops that each make one tensor; edges go from op to op."""
    defaults: dict[str, Any] = {
        "op_names": [f"op{op}" for op in range(num_ops)],
        "tensor_producer": range(num_ops),
        "tensor_bytes": np.ones(num_ops, np.int64),
        "edges": edges,
    }
    return OpGraph(**(defaults | fields))


def cluster(
    kinds: list[str], *, memory: int = 10**9, bandwidth: float = 1.0, overhead: float = 0.0
) -> Cluster:
    """Return devices of the given kinds, with equal links."""
    count = len(kinds)
    return Cluster(
        devices=tuple(
            Device(f"{kind}:{index}", kind, memory, overhead, overhead)
            for index, kind in enumerate(kinds)
        ),
        bandwidth=np.full((count, count), bandwidth),
        latency=np.zeros((count, count)),
    )


def problem_of(graph: OpGraph, on: Cluster, compute_time: Any) -> PlacementProblem:
    """Return the problem in which every op is a group of its own."""
    return PlacementProblem(graph=graph, cluster=on, compute_time=compute_time)


def gpus(
    seconds: Any,
    edges: Sequence[tuple[int, int]] = (),
    *,
    count: int = 2,
    size: int = 1,
    memory: int = 10**9,
    bandwidth: float = 1.0,
    overhead: float = 0.0,
    groups: Sequence[int] | None = None,
    **fields: Any,
) -> PlacementProblem:
    """Return ops of some seconds on all GPUs, or on each; a byte of a tensor takes a second."""
    times = np.array(seconds, float)
    if times.ndim == 1:
        times = np.tile(times[:, None], (1, count))
    fields = {name: np.array(values) for name, values in fields.items()}
    fields.setdefault("tensor_bytes", np.full(len(times), size))
    graph = op_graph(len(times), list(edges), **fields)
    kinds = ["k80"] * times.shape[1]
    on = cluster(kinds, memory=memory, bandwidth=bandwidth, overhead=overhead)
    problem = problem_of(graph, on, times)
    if groups is None:
        return problem
    names = tuple(map(str, range(max(groups) + 1)))
    grouping = Grouping(group_of=np.array(groups, np.int32), group_names=names)
    return replace(problem, grouping=grouping)


def two_chains(**changes: Any) -> PlacementProblem:
    """Return two chains of two ops, half a second each on either GPU, four times that on the CPU.

    The best placement puts each chain on a GPU of its own.
    """
    graph = op_graph(4, [(0, 2), (1, 3)], op_names=["a1", "b1", "a2", "b2"])
    fields: dict[str, Any] = {
        "graph": graph,
        "cluster": cluster(["cpu", "k80", "k80"]),
        "compute_time": np.tile([2.0, 0.5, 0.5], (4, 1)),
    }
    return PlacementProblem(**(fields | changes))


def slow_on_the_cpu(seconds: list[float], slow: int, **changes: Any) -> PlacementProblem:
    """Return independent ops of some seconds on a CPU and two GPUs; the CPU takes 60 s for one."""
    times = np.tile(np.array(seconds)[:, None], (1, 3))
    times[slow, 0] = 60.0
    graph = op_graph(len(seconds), [], **changes)
    return problem_of(graph, cluster(["cpu", "k80", "k80"]), times)


def random_problem(generator: np.random.Generator, max_groups: int = 6) -> PlacementProblem:
    """Return a small problem of the simulator's, with scarce memory and some devices barred.

    A byte there is ten megabytes here.
    """
    problem = simulated_problems.random_problem(generator, max_ops=12, max_devices=3)
    graph, on, num_devices = problem.graph, problem.cluster, problem.num_devices
    sizes = ("parameter_bytes", "workspace_bytes", "tensor_bytes")
    graph = replace(graph, **{name: 10**7 * getattr(graph, name) for name in sizes})
    kinds = generator.choice(["cpu", "k80", "v100"], num_devices).tolist()
    memory = generator.choice([2 * 10**8, 10**9, 3 * 10**9, 10**11], num_devices).tolist()
    devices = tuple(
        replace(device, kind=kind, memory_bytes=size)
        for device, kind, size in zip(on.devices, kinds, memory, strict=True)
    )
    grouping = grouping_of_labels(graph, generator.integers(0, max_groups, graph.num_ops))
    # A whole group cannot run on a device, but for the one that is drawn for it.
    nowhere = generator.random((grouping.num_groups, num_devices)) < 0.1
    drawn = generator.integers(0, num_devices, grouping.num_groups)
    nowhere[np.arange(grouping.num_groups), drawn] = False
    return PlacementProblem(
        graph=graph,
        cluster=replace(on, devices=devices, bandwidth=10**7 * on.bandwidth),
        compute_time=np.where(nowhere[grouping.group_of], np.inf, problem.compute_time),
        grouping=grouping,
    )


def random_problems(count: int, max_groups: int = 6) -> list[PlacementProblem]:
    """Return random problems, the same ones each time."""
    generator = np.random.default_rng(2019)
    return [random_problem(generator, max_groups) for _ in range(count)]
