"""Small problems of every kind, of which all placements can be tried."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Cluster, Device, Grouping, OpGraph, PlacementProblem

Edges = list[tuple[int, int]]


def branched_step(generator: np.random.Generator, num_modules: int) -> tuple[Edges, list[int]]:
    """Return the edges of a training step, and the layer of each op.

    Modules fork into up to four branches and join. Each layer has an op forward and one backward,
    which reads what the forward op made.
    """
    forward: Edges = []
    last, count = 0, 1
    for _ in range(num_modules):
        width = int(generator.integers(1, 5))
        forward += [(last, count + branch) for branch in range(width)]
        forward += [(count + branch, count + width) for branch in range(width)]
        last, count = count + width, count + width + 1
    backward = [(2 * count - 1 - reader, 2 * count - 1 - maker) for maker, reader in forward]
    saved = [(op, 2 * count - 1 - op) for op in range(count)]
    return forward + backward + saved, [*range(count), *reversed(range(count))]


def random_step(generator: np.random.Generator, num_ops: int) -> tuple[Edges, list[int]]:
    """Return random edges from earlier to later ops, each of which is a layer."""
    density = generator.choice([0.1, 0.3, 0.6])
    pairs = [(maker, reader) for reader in range(num_ops) for maker in range(reader)]
    return [pair for pair in pairs if generator.random() < density], list(range(num_ops))


def small_problem(generator: np.random.Generator, max_groups: int) -> PlacementProblem:
    """Return a training step or a random graph on one to three devices, with a group per layer.

    Where there are more layers than groups, some share one. Transfers and overheads take from
    nothing to as long as ops; devices may be unequal, refuse groups, or share links. In half of the
    problems some ops also wait for earlier ones.
    """
    if generator.random() < 0.5:
        edges, layers = branched_step(generator, int(generator.integers(1, 3)))
    else:
        edges, layers = random_step(generator, int(generator.integers(1, max_groups + 4)))
    num_ops, num_layers = len(layers), max(layers) + 1
    group_of_layer = np.arange(num_layers)
    more = group_of_layer >= max_groups
    group_of_layer[more] = generator.integers(0, max_groups, int(more.sum()))
    group_of = group_of_layer[layers].astype(np.int32)
    num_groups = int(group_of.max()) + 1
    num_devices = int(generator.choice([1, 2, 2, 3]))
    cluster = _cluster(generator, num_devices)
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.choice([0, 1, 2, 5, 20], num_ops),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        waits=_waits(generator.spawn(1)[0], num_ops),
    )
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=_seconds(generator, group_of, num_devices),
        grouping=Grouping(
            group_of=group_of, group_names=tuple(f"group{group}" for group in range(num_groups))
        ),
    )


def _waits(generator: np.random.Generator, num_ops: int) -> NDArray[np.int32]:
    pairs = np.stack(np.tril_indices(num_ops, -1), axis=1).astype(np.int32)
    density = generator.choice([0.0, 0.0, 0.05, 0.2])
    chosen: NDArray[np.int32] = pairs[generator.random(len(pairs)) < density]
    return chosen


def _seconds(
    generator: np.random.Generator, group_of: NDArray[np.int32], num_devices: int
) -> NDArray[np.float64]:
    """Return whole seconds mostly, so that many things happen at one time."""
    shape = (len(group_of), num_devices)
    seconds = generator.choice([0.0, 0.5, 1.0, 1.0, 2.0, 3.0], (len(group_of), 1))
    if generator.random() < 0.3:
        seconds = generator.random((len(group_of), 1))
    slower = generator.choice([1.0, 1.0, 1.0, 3.0], num_devices)
    times: NDArray[np.float64] = seconds * slower
    if generator.random() < 0.2:
        times = np.where(generator.random(shape) < 0.3, generator.random(shape), times)
    refused = generator.random((int(group_of.max()) + 1, num_devices)) < 0.05
    refused[:, generator.integers(0, num_devices)] = False
    times[refused[group_of]] = np.inf
    return times


def _cluster(generator: np.random.Generator, num_devices: int) -> Cluster:
    shape = (num_devices, num_devices)
    overheads = generator.choice([0.0, 0.25, 1.0], (2, num_devices)) * generator.integers(0, 2)
    cluster = Cluster(
        devices=tuple(
            Device(f"gpu:{index}", "gpu", 10**9, *times)
            for index, times in enumerate(overheads.T.tolist())
        ),
        bandwidth=generator.choice([5.0, 20.0, np.inf], shape),
        latency=generator.choice([0.0, 0.25], shape),
    )
    if num_devices == 1 or generator.random() < 0.7:
        return cluster
    one_link = np.where(np.eye(num_devices, dtype=bool), -1, 0).astype(np.int32)
    return replace(cluster, link=one_link, link_names=("bus",))
