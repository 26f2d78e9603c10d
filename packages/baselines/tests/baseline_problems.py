"""Small problems to place: one to read in examples, and random ones of every kind."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Cluster, Device, Grouping, OpGraph, PlacementProblem, grouping_of_labels

# Few values, so that events tie; and some whose sums round, so that almost-ties are told apart.
DURATIONS = (0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 0.5, 0.1, 0.3)
OVERHEADS = (0.0, 0.0, 1.0, 1.0, 2.0, 0.5, 0.1, 1e-300)
SIZES = (0, 0, 1, 2, 4, 100)
QUEUES = ("fifo", "fifo", "backward-first")
BANDWIDTHS = (1.0, 1.0, 2.0, 3.0, np.inf)


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


def _problem_of_ties(
    generator: np.random.Generator, max_ops: int, max_devices: int
) -> PlacementProblem:
    """Return a small problem in which much happens at the same time, as the simulator's tests do.

    Ops have several outputs, shared inputs, waits and tensors that nothing reads; links are
    buses, one for each pair, or shared in any way; groups are single ops or several.
    """
    graph = _random_graph(generator, int(generator.integers(1, max_ops + 1)))
    links = _random_cluster(generator, int(generator.integers(1, max_devices + 1)))
    labels = np.arange(graph.num_ops)
    if generator.random() < 0.5:
        labels = np.unique(generator.integers(0, 4, graph.num_ops), return_inverse=True)[1]
    return PlacementProblem(
        graph=graph,
        cluster=links,
        compute_time=generator.choice(DURATIONS, (graph.num_ops, links.num_devices)),
        grouping=Grouping(
            group_of=labels.astype(np.int32),
            group_names=tuple(f"group{group}" for group in range(int(labels.max()) + 1)),
        ),
    )


def _random_graph(generator: np.random.Generator, count: int) -> OpGraph:
    rank = generator.permutation(count)
    producers = generator.integers(0, count, generator.integers(0, 2 * count + 1))
    tensors, readers = np.nonzero(rank[producers][:, None] < rank)
    chosen = generator.permutation(len(tensors))[: generator.integers(0, 40)]
    later = np.argwhere(rank[:, None] > rank)
    num_waits = generator.integers(0, 12) * generator.integers(0, 2)  # half of all have none
    return OpGraph(
        op_names=tuple(f"op{op}" for op in range(count)),
        phases=generator.integers(0, 3, count).astype(np.int8),
        parameter_bytes=generator.choice(SIZES, count),
        workspace_bytes=generator.choice(SIZES, count),
        tensor_producer=producers.astype(np.int32),
        tensor_bytes=generator.choice(SIZES, len(producers)),
        edges=np.stack([tensors[chosen], readers[chosen]], axis=1).astype(np.int32),
        waits=generator.permutation(later)[:num_waits].astype(np.int32),
        held_tensors=np.flatnonzero(generator.random(len(producers)) < 0.2).astype(np.int32),
    )


def _random_cluster(generator: np.random.Generator, count: int) -> Cluster:
    shape = (count, count)
    return Cluster(
        devices=tuple(
            Device(f"device{device}", "kind", 1000, *generator.choice(OVERHEADS, 2))
            for device in range(count)
        ),
        bandwidth=generator.choice(BANDWIDTHS, shape),
        latency=generator.choice(OVERHEADS, shape),
        link=_random_link_map(generator, count),
        queue=str(generator.choice(QUEUES)),
    )


def _random_link_map(generator: np.random.Generator, num_devices: int) -> NDArray[np.int32]:
    """Return int32[D, D], which link carries each pair: buses, one for each pair, or any."""
    pairs = num_devices * (num_devices - 1)
    kind = generator.integers(3)
    if kind == 0:
        labels = np.repeat(np.arange(num_devices), num_devices - 1)
    elif kind == 1:
        labels = generator.permutation(pairs)
    else:
        labels = generator.integers(0, int(generator.integers(1, pairs + 2)), pairs)
    link = np.full((num_devices, num_devices), -1, np.int32)
    link[~np.eye(num_devices, dtype=np.bool_)] = np.unique(labels, return_inverse=True)[1]
    return link


def random_problem(generator: np.random.Generator, max_groups: int = 6) -> PlacementProblem:
    """Return a small problem in which events tie, memory is scarce, and some devices are barred."""
    problem = _problem_of_ties(generator, max_ops=12, max_devices=3)
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
