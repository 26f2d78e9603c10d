"""Small problems to place: one to read in examples, and random ones of every kind."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    Device,
    Grouping,
    OpGraph,
    PlacementProblem,
    grouping_of_labels,
)


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
    memory: int = 10**9,
    bandwidth: float = 1.0,
    overhead: float = 0.0,
    groups: Sequence[int] | None = None,
    **fields: Any,
) -> PlacementProblem:
    """Return ops of some seconds on all GPUs, or on each; tensors have one byte, of a second."""
    times = np.array(seconds, float)
    if times.ndim == 1:
        times = np.tile(times[:, None], (1, count))
    fields = {name: np.array(values) for name, values in fields.items()}
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
    """Return a small problem: unequal devices and links, several ops a group, scarce memory, waits.

    Half of the problems have ops that wait for others, and outputs that are held.
    """
    num_ops = int(generator.integers(1, 13))
    num_devices = int(generator.choice([1, 2, 3, 3]))
    parameter_bytes = _sometimes(generator, 0.4, generator.integers(1, 10**9, num_ops))
    graph = op_graph(
        num_ops,
        _random_edges(generator, num_ops),
        tensor_bytes=_sometimes(generator, 0.8, generator.integers(1, 10**9, num_ops)),
        parameter_bytes=parameter_bytes,
        workspace_bytes=_sometimes(generator, 0.3, generator.integers(1, 10**9, num_ops)),
        **_random_waits(generator.spawn(1)[0], num_ops),
    )
    grouping = grouping_of_labels(graph, generator.integers(0, max_groups, num_ops))
    return PlacementProblem(
        graph=graph,
        cluster=_random_cluster(generator, num_devices),
        compute_time=_random_times(generator, grouping.group_of, num_devices),
        grouping=grouping,
    )


def random_problems(
    count: int, max_groups: int = 6, *, shared_links: bool = False
) -> list[PlacementProblem]:
    """Return random problems, the same ones each time; also with any pairs on any links."""
    generator = np.random.default_rng(2019)
    found = [random_problem(generator, max_groups) for _ in range(count)]
    if shared_links:
        return [replace(problem, cluster=relinked(generator, problem.cluster)) for problem in found]
    return found


def relinked(generator: np.random.Generator, on: Cluster) -> Cluster:
    """Return the same devices with a link for each pair, one for all, or any pairs on any links."""
    apart = ~np.eye(on.num_devices, dtype=bool)
    num_pairs = int(apart.sum())
    any_links = generator.integers(0, 3, num_pairs)
    labels = [np.arange(num_pairs), np.zeros(num_pairs, int), any_links][generator.integers(0, 3)]
    link = np.full(apart.shape, -1, np.int32)
    link[apart] = np.unique(labels, return_inverse=True)[1]
    names = tuple(f"link {number}" for number in range(int(link.max()) + 1))
    return replace(on, link=link, link_names=names)


def _random_edges(generator: np.random.Generator, num_ops: int) -> list[tuple[int, int]]:
    density = generator.choice([0.0, 0.2, 0.5])
    pairs = [(maker, reader) for reader in range(num_ops) for maker in range(reader)]
    return [pair for pair in pairs if generator.random() < density]


def _random_waits(generator: np.random.Generator, num_ops: int) -> dict[str, NDArray[np.int32]]:
    pairs = np.array([(op, before) for op in range(num_ops) for before in range(op)], np.int32)
    density = generator.choice([0.0, 0.2])
    chosen = generator.random(len(pairs)) < density
    held = np.flatnonzero(generator.random(num_ops) < density).astype(np.int32)
    return {"waits": pairs.reshape(-1, 2)[chosen], "held_tensors": held}


def _random_cluster(generator: np.random.Generator, num_devices: int) -> Cluster:
    shape = (num_devices, num_devices)
    memory = generator.choice([2 * 10**8, 10**9, 3 * 10**9, 10**11], num_devices)
    overhead = generator.choice([0.0, 0.01, 0.1], (2, num_devices))
    kinds = generator.choice(["cpu", "k80", "v100"], num_devices)
    return Cluster(
        devices=tuple(
            Device(f"{kinds[index]}:{index}", str(kinds[index]), int(memory[index]), *times)
            for index, times in enumerate(overhead.T.tolist())
        ),
        bandwidth=generator.choice([3e8, 3e9, np.inf], shape),
        latency=generator.choice([0.0, 0.05], shape),
    )


def _random_times(
    generator: np.random.Generator, group_of: NDArray[np.int32], num_devices: int
) -> NDArray[np.float64]:
    shape = (len(group_of), num_devices)
    speed = generator.choice([1.0, 1.0, 4.0], num_devices)
    seconds = np.tile(generator.random((len(group_of), 1)), (1, num_devices)) / speed
    seconds = np.where(generator.random(shape) < 0.2, generator.random(shape), seconds)
    seconds[generator.random(len(group_of)) < 0.15] = 0.0
    # A whole group cannot run on a device, but for the one that is drawn for it.
    num_groups = int(group_of.max()) + 1
    nowhere = generator.random((num_groups, num_devices)) < 0.1
    nowhere[np.arange(num_groups), generator.integers(0, num_devices, num_groups)] = False
    seconds[nowhere[group_of]] = np.inf
    return seconds


def _sometimes(
    generator: np.random.Generator, part: float, values: NDArray[np.int64]
) -> NDArray[np.int64]:
    return np.where(generator.random(len(values)) < part, values, 0)
