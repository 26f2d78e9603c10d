"""Speed of the simulator: ``python -m placeto_simulator.benchmark``."""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Grouping
from placeto_graphs import OpGraph
from placeto_graphs import PlacementProblem
from placeto_graphs import parse_cluster
from placeto_simulator.simulator import Simulator

DEFAULT_SIZES = (3_000, 13_000, 100_000)
DEFAULT_DEVICES = (2, 4, 8)
WIDTH = 16  # ops of a layer
OPS_PER_BATCH = 300_000


def random_layered_problem(
    num_ops: int, num_devices: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a layered random graph, in which every op is a group of its own.

    Each op of a layer of 16 reads one to five tensors of the layer before it, and takes up to a
    millisecond; tensors have up to a megabyte.
    """
    readers = np.repeat(np.arange(WIDTH, num_ops), generator.integers(1, 6, num_ops - WIDTH))
    before = (readers // WIDTH - 1) * WIDTH
    edges = np.stack([before + generator.integers(0, WIDTH, len(readers)), readers], axis=1)
    names = tuple(f"op{op}" for op in range(num_ops))
    graph = OpGraph(
        op_names=names,
        op_types=("op",) * num_ops,
        scopes=("",) * num_ops,
        phases=np.zeros(num_ops, np.int8),
        flops=np.zeros(num_ops),
        bytes_accessed=np.zeros(num_ops),
        parameter_bytes=np.zeros(num_ops, np.int64),
        workspace_bytes=np.zeros(num_ops, np.int64),
        colocation=np.full(num_ops, -1, np.int32),
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.integers(0, 10**6, num_ops),
        edges=np.unique(edges, axis=0).astype(np.int32),
    )
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(generator.random((num_ops, 1)) * 1e-3, (1, num_devices)),
        grouping=Grouping(group_of=np.arange(num_ops, dtype=np.int32), group_names=names),
    )


def random_placements(
    problem: PlacementProblem, count: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G], each group on any device."""
    shape = (count, problem.num_groups)
    return generator.integers(0, problem.num_devices, shape).astype(np.int32)


def contiguous_placements(
    problem: PlacementProblem, count: int, _: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G], the first groups on the first device, and so on."""
    device = np.arange(problem.num_groups) * problem.num_devices // problem.num_groups
    return np.tile(device.astype(np.int32), (count, 1))


@dataclass(frozen=True)
class Row:
    """What one case took: median seconds per placement on one thread and on two."""

    num_ops: int
    num_devices: int
    placement: str
    one_thread: float
    two_threads: float


def measure(num_ops: int, num_devices: int, repeats: int, seed: int) -> list[Row]:
    """Measure one graph with random and with contiguous placements."""
    generator = np.random.default_rng(seed)
    problem = random_layered_problem(num_ops, num_devices, generator)
    simulators = (Simulator(problem, num_threads=1), Simulator(problem, num_threads=2))
    count = max(2, OPS_PER_BATCH // num_ops)
    rows = []
    for name, sample in (("random", random_placements), ("contiguous", contiguous_placements)):
        placements = sample(problem, count, generator)
        seconds: tuple[list[float], list[float]] = ([], [])
        for simulator in simulators:
            simulator.evaluate(placements[:2])  # compiles, or loads what is compiled
        for _ in range(repeats):
            for simulator, taken in zip(simulators, seconds, strict=True):
                start = time.perf_counter()
                simulator.evaluate(placements)
                taken.append((time.perf_counter() - start) / count)
        rows.append(Row(num_ops, num_devices, name, *map(statistics.median, seconds)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return what was measured as a Markdown table."""
    lines = [
        "| ops | devices | placement | one thread | per op | placements/s | two threads |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.num_ops:,} | {row.num_devices} | {row.placement} | {row.one_thread * 1e3:.3f} ms "
        f"| {row.one_thread / row.num_ops * 1e9:.0f} ns | {1 / row.one_thread:,.0f} "
        f"| {row.one_thread / row.two_threads:.2f} times as fast |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure graphs of several sizes on clusters of several sizes, and print a table."""
    parser = argparse.ArgumentParser(prog="placeto_simulator.benchmark", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=DEFAULT_SIZES, help="graph sizes")
    parser.add_argument("--devices", type=int, nargs="+", default=DEFAULT_DEVICES)
    parser.add_argument("--repeats", type=int, default=5, help="timed batches per case")
    parser.add_argument("--seed", type=int, default=0, help="of graphs and placements")
    options = parser.parse_args(arguments)
    rows = []
    for num_ops in options.ops:
        for num_devices in options.devices:
            print(f"measuring {num_ops:,} ops on {num_devices} devices", file=sys.stderr)
            rows += measure(num_ops, num_devices, options.repeats, options.seed)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}")
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
