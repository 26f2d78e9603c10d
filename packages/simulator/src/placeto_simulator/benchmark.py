"""Speed of the simulator: ``python -m placeto_simulator.benchmark``."""

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from placeto_graphs import PlacementProblem
from placeto_simulator.benchmark_problems import (
    contiguous_placements,
    random_layered_problem,
    random_placements,
    random_training_problem,
)
from placeto_simulator.simulator import Simulator

DEFAULT_SIZES = (3_000, 100_000, 1_000_000)
DEFAULT_DEVICES = (2, 8)
OPS_PER_BATCH = 4_000_000
FIRST_EVALUATION = """
import time
start = time.perf_counter()
import placeto_simulator
imported = time.perf_counter()
import numpy as np
from placeto_simulator.benchmark_problems import random_layered_problem
problem = random_layered_problem(3_000, 2, 128, np.random.default_rng(0))
made = time.perf_counter()
placeto_simulator.Simulator(problem).evaluate(np.zeros((1, 128), np.int32))
print(imported - start, time.perf_counter() - made)
"""

Sample = Callable[[PlacementProblem, int, np.random.Generator], np.ndarray]
PLACEMENTS: dict[str, Sample] = {
    "random": random_placements,
    "contiguous": contiguous_placements,
}


@dataclass(frozen=True)
class BatchRow:
    """What one case took: median seconds per placement, and ratios of medians."""

    graph: str
    num_ops: int
    num_devices: int
    placement: str
    runtime_only: float
    with_memory: float
    two_threads: float


@dataclass(frozen=True)
class SimulatorReport:
    """What was measured, and on what; seconds of importing, and of the first evaluation then."""

    machine: str
    import_seconds: float
    first_evaluation_seconds: float
    batches: Sequence[BatchRow]

    def markdown(self) -> str:
        """Return the batches as a table."""
        lines = [
            self.machine,
            f"import {self.import_seconds:.2f} s, "
            f"first evaluation {self.first_evaluation_seconds:.2f} s\n",
            "| graph | ops | devices | placement | runtime only | per op | placements/s "
            "| with memory | two threads |",
            "|---|---:|---:|---|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.graph} | {row.num_ops:,} | {row.num_devices} | {row.placement} "
            f"| {row.runtime_only * 1e3:.3f} ms | {row.runtime_only / row.num_ops * 1e9:.0f} ns "
            f"| {1 / row.runtime_only:,.0f} | {row.with_memory * 1e3:.3f} ms, "
            f"{row.with_memory / row.runtime_only:.2f} times "
            f"| {row.with_memory / row.two_threads:.2f} times as fast |"
            for row in self.batches
        ]
        return "\n".join(lines)


def problems(
    num_ops: int, num_devices: int, num_groups: int, seed: int
) -> list[tuple[str, PlacementProblem]]:
    """Return both kinds of graph with a name."""
    generator = np.random.default_rng(seed)
    return [
        ("layered", random_layered_problem(num_ops, num_devices, num_groups, generator)),
        ("PipeDream", random_training_problem(num_ops, num_devices, num_groups, generator)),
    ]


def measure_batches(num_ops: int, num_devices: int, repeats: int, seed: int) -> list[BatchRow]:
    """Measure batches of random and of contiguous placements, every op a group of its own."""
    generator = np.random.default_rng(seed)
    count = max(2, OPS_PER_BATCH // num_ops)
    rows = []
    for graph, problem in problems(num_ops, num_devices, num_ops, seed):
        one, two = (Simulator(problem, num_threads=threads) for threads in (1, 2))
        for name, sample in PLACEMENTS.items():
            placements = sample(problem, count, generator)
            one.evaluate(placements[:2])  # compiles, or loads what is compiled
            one.runtimes(placements[:2])
            two.evaluate(placements[:2])
            medians = median_seconds(
                [
                    partial(one.runtimes, placements),
                    partial(one.evaluate, placements),
                    partial(two.evaluate, placements),
                ],
                repeats,
            )
            seconds = [median / count for median in medians]
            rows.append(BatchRow(graph, problem.graph.num_ops, num_devices, name, *seconds))
    return rows


def measure_start(repeats: int) -> tuple[float, float]:
    """Return the median seconds of importing the package, and of the first evaluation after it."""
    rows = []
    for _ in range(repeats + 1):  # the first one compiles, or loads what is compiled
        run = subprocess.run(  # noqa: S603 (its own text)
            [sys.executable, "-c", FIRST_EVALUATION], capture_output=True, text=True, check=True
        )
        rows.append([float(seconds) for seconds in run.stdout.split()])
    imported, evaluated = zip(*rows[1:], strict=True)
    return statistics.median(imported), statistics.median(evaluated)


def median_seconds(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each of several actions, which take turns."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, taken in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def measured(arguments: Sequence[str] | None = None) -> SimulatorReport:
    """Measure graphs of several sizes on clusters of several sizes."""
    parser = argparse.ArgumentParser(prog="placeto_simulator.benchmark", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=DEFAULT_SIZES, help="graph sizes")
    parser.add_argument("--devices", type=int, nargs="+", default=DEFAULT_DEVICES)
    parser.add_argument("--repeats", type=int, default=5, help="timed batches per case")
    parser.add_argument("--seed", type=int, default=0, help="of graphs and placements")
    options = parser.parse_args(arguments)
    imported, evaluated = measure_start(options.repeats)
    batches: list[BatchRow] = []
    for num_ops in options.ops:
        for num_devices in options.devices:
            print(f"measuring {num_ops:,} ops on {num_devices} devices", file=sys.stderr)
            batches += measure_batches(num_ops, num_devices, options.repeats, options.seed)
    machine = f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"
    return SimulatorReport(machine, imported, evaluated, batches)


if __name__ == "__main__":
    print(measured().markdown())
