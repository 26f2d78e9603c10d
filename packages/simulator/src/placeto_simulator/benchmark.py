"""Speed of the simulator: ``python -m placeto_simulator.benchmark``."""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from placeto_graphs import PlacementProblem
from placeto_simulator.benchmark_problems import contiguous_placements
from placeto_simulator.benchmark_problems import random_layered_problem
from placeto_simulator.benchmark_problems import random_placements
from placeto_simulator.benchmark_problems import random_training_problem
from placeto_simulator.simulator import Simulator

DEFAULT_SIZES = (3_000, 13_000, 100_000, 1_000_000)
DEFAULT_DEVICES = (2, 4, 8)
OPS_PER_BATCH = 300_000
EPISODE_GROUPS = 128
EPISODE_MAX_OPS = 20_000  # larger graphs take minutes, one placement after the other

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
class EpisodeRow:
    """What trying every device for each group in turn took: median seconds."""

    graph: str
    num_ops: int
    num_devices: int
    incremental: float
    one_by_one: float


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


def measure_episodes(num_ops: int, num_devices: int, repeats: int, seed: int) -> list[EpisodeRow]:
    """Measure trying every device for each of 128 groups in turn, and keeping the best."""
    rows = []
    for graph, problem in problems(num_ops, num_devices, EPISODE_GROUPS, seed):
        simulator = Simulator(problem, num_threads=1)
        one_by_one_episode(simulator)
        incremental_episode(simulator)
        medians = median_seconds(
            [partial(incremental_episode, simulator), partial(one_by_one_episode, simulator)],
            repeats,
        )
        rows.append(EpisodeRow(graph, problem.graph.num_ops, num_devices, *medians))
    return rows


def incremental_episode(simulator: Simulator) -> float:
    """Put each group in turn where the step is fastest; return the last runtime in seconds."""
    simulation = simulator.incremental(np.zeros(simulator.problem.num_groups, np.int32))
    for group in range(simulator.problem.num_groups):
        runtime = simulation.moves(group).runtime
        best = int(runtime.argmin())
        if best != simulation.placement[group]:
            simulation.try_move(group, best)
            simulation.commit()
    return float(runtime.min())


def one_by_one_episode(simulator: Simulator) -> float:
    """Do the same with a simulation from the beginning for every device."""
    placement = np.zeros(simulator.problem.num_groups, np.int32)
    for group in range(simulator.problem.num_groups):
        runtimes = []
        for device in range(simulator.problem.num_devices):
            placement[group] = device
            runtimes.append(simulator.evaluate(placement[None]).runtime[0])
        placement[group] = np.argmin(runtimes)
    return float(min(runtimes))


def median_seconds(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each of several actions, which take turns."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, taken in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def batch_table(rows: Sequence[BatchRow]) -> str:
    """Return what was measured of batches as a Markdown table."""
    lines = [
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
        for row in rows
    ]
    return "\n".join(lines)


def episode_table(rows: Sequence[EpisodeRow]) -> str:
    """Return what was measured of episodes as a Markdown table."""
    lines = [
        "| graph | ops | devices | incremental | one by one | |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.graph} | {row.num_ops:,} | {row.num_devices} | {row.incremental * 1e3:.1f} ms "
        f"| {row.one_by_one * 1e3:.1f} ms | {row.one_by_one / row.incremental:.2f} times as fast |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure graphs of several sizes on clusters of several sizes, and print two tables."""
    parser = argparse.ArgumentParser(prog="placeto_simulator.benchmark", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=DEFAULT_SIZES, help="graph sizes")
    parser.add_argument("--devices", type=int, nargs="+", default=DEFAULT_DEVICES)
    parser.add_argument("--repeats", type=int, default=5, help="timed batches per case")
    parser.add_argument("--seed", type=int, default=0, help="of graphs and placements")
    options = parser.parse_args(arguments)
    batches: list[BatchRow] = []
    episodes: list[EpisodeRow] = []
    for num_ops in options.ops:
        for num_devices in options.devices:
            print(f"measuring {num_ops:,} ops on {num_devices} devices", file=sys.stderr)
            case = (num_ops, num_devices, options.repeats, options.seed)
            batches += measure_batches(*case)
            if num_ops <= EPISODE_MAX_OPS:
                episodes += measure_episodes(*case)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}")
    print(f"\n{batch_table(batches)}\n\n{episode_table(episodes)}")


if __name__ == "__main__":
    main()
