"""Random problems in which much happens at the same time, and what the simulator does otherwise.

``python simulated_problems.py --problems 100000`` compares it with its definition on many of them:
every time and every byte has to be the same.
"""

import argparse
import secrets
import sys

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import Cluster, Device, Grouping, OpGraph, PlacementProblem, parse_cluster
from placeto_simulator import Simulator, reference

Placed = tuple[PlacementProblem, NDArray[np.int32]]
WIDTH = 16  # ops of a layer

# Few values, so that events tie; and some whose sums round, so that almost-ties are told apart.
DURATIONS = (0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 0.5, 0.1, 0.3)
OVERHEADS = (0.0, 0.0, 1.0, 1.0, 2.0, 0.5, 0.1, 1e-300)
SIZES = (0, 0, 1, 2, 4, 100)
QUEUES = ("fifo", "fifo", "backward-first")
BANDWIDTHS = (1.0, 1.0, 2.0, 3.0, np.inf)


def difference(problem: PlacementProblem, placement: NDArray[np.int32]) -> str | None:
    """Return how the simulator departs from its definition on a placement, if it does."""
    expected = reference.simulate(problem, placement.tolist())
    simulator = Simulator(problem, num_threads=1)
    timeline, schedule = simulator.timeline(placement), simulator.schedule(placement[None])
    batch = simulator.evaluate(placement[None])
    ops_of_group = [
        np.flatnonzero(problem.grouping.group_of == group).tolist()
        for group in range(problem.num_groups)
    ]
    pairs = {
        "runtime": (expected.runtime, batch.runtime[0]),
        "runtime alone": (expected.runtime, simulator.runtimes(placement[None])[0]),
        "peak memory": (expected.peak_memory, batch.peak_memory[0].tolist()),
        "runtime of the schedule": (expected.runtime, schedule.runtime[0]),
        "peak memory of the schedule": (expected.peak_memory, schedule.peak_memory[0].tolist()),
        "peak memory of the timeline": (expected.peak_memory, timeline.peak_memory.tolist()),
        "starts of groups": (
            [min(expected.op_start[op] for op in ops) for ops in ops_of_group],
            schedule.start[0].tolist(),
        ),
        "ends of groups": (
            [max(expected.op_end[op] for op in ops) for ops in ops_of_group],
            schedule.end[0].tolist(),
        ),
        "starts of ops": (expected.op_start, timeline.op_start.tolist()),
        "ends of ops": (expected.op_end, timeline.op_end.tolist()),
        "transfers": (
            sorted(
                (
                    transfer.tensor,
                    transfer.source,
                    transfer.destination,
                    transfer.start,
                    transfer.end,
                )
                for transfer in expected.transfers
            ),
            sorted(
                zip(
                    timeline.transfer_tensor.tolist(),
                    timeline.transfer_source.tolist(),
                    timeline.transfer_destination.tolist(),
                    timeline.transfer_start.tolist(),
                    timeline.transfer_end.tolist(),
                    strict=True,
                )
            ),
        ),
    }
    for quantity, (defined, compiled) in pairs.items():
        if defined != compiled:
            return f"{quantity}: expected {defined}, got {compiled}"
    return None


def in_weights(graph: OpGraph, tensor: int) -> bool:
    """Return whether a tensor and the outputs before it have room in the weight that makes them."""
    maker = graph.tensor_producer[tensor]
    if any(reader == maker for _, reader in graph.edges.tolist()):
        return False
    first = graph.tensor_bytes[: tensor + 1][graph.tensor_producer[: tensor + 1] == maker]
    return bool(first.sum() <= graph.parameter_bytes[maker])


def random_problem(
    generator: np.random.Generator, max_ops: int = 14, max_devices: int = 8
) -> PlacementProblem:
    """Return a small problem in which much happens at the same time.

    Ops have several outputs, shared inputs, waits and tensors that nothing reads; links are
    buses, one for each pair, or shared in any way; groups are single ops or several.
    """
    graph = _random_graph(generator, int(generator.integers(1, max_ops + 1)))
    cluster = _random_cluster(generator, int(generator.integers(1, max_devices + 1)))
    labels = np.arange(graph.num_ops)
    if generator.random() < 0.5:
        labels = np.unique(generator.integers(0, 4, graph.num_ops), return_inverse=True)[1]
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=generator.choice(DURATIONS, (graph.num_ops, cluster.num_devices)),
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


def layered_problem(
    num_ops: int, num_devices: int, num_groups: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a layered random graph, whose groups are consecutive ops.

    Each op of a layer of 16 reads one to five tensors of the layer before it, and takes up to a
    millisecond; tensors have up to a megabyte.
    """
    readers = np.repeat(np.arange(WIDTH, num_ops), generator.integers(1, 6, num_ops - WIDTH))
    layer_start = (readers // WIDTH - 1) * WIDTH
    edges = np.stack([layer_start + generator.integers(0, WIDTH, len(readers)), readers], axis=1)
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.integers(0, 10**6, num_ops),
        edges=np.unique(edges, axis=0).astype(np.int32),
    )
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(generator.random((num_ops, 1)) * 1e-3, (1, num_devices)),
        grouping=Grouping(
            group_of=(np.arange(num_ops) * num_groups // num_ops).astype(np.int32),
            group_names=tuple(f"group{group}" for group in range(num_groups)),
        ),
    )


@st.composite
def placed_problems(draw: st.DrawFn) -> Placed:
    """Draw a problem and a few of its placements."""
    size, devices, seed = st.integers(1, 14), st.integers(1, 8), st.integers(0, 2**32 - 1)
    generator = np.random.default_rng(draw(seed))
    problem = random_problem(generator, draw(size), draw(devices))
    shape = (draw(st.integers(1, 4)), problem.num_groups)
    return problem, generator.integers(0, problem.num_devices, shape).astype(np.int32)


def main(arguments: list[str]) -> int:
    """Compare random problems until one differs; return whether one did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    for index in range(options.problems):
        generator = np.random.default_rng([options.seed, index])
        problem = random_problem(generator)
        placement = generator.integers(0, problem.num_devices, problem.num_groups).astype(np.int32)
        text = difference(problem, placement)
        if text is not None:
            print(f"problem {index}, placement {placement.tolist()}: {text}")
            return 1
    print(f"{options.problems:,} problems: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
