"""Speed of the simulator, and how much faster than its definition it is: two tables."""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    PlacementProblem,
    colocate,
    colocate_by_id,
    load_pipedream_profile,
    measured_compute_time,
    merge_and_colocate,
    parse_cluster,
)
from placeto_simulator import Simulator, reference
from simulated_problems import layered_problem

OPS_PER_BATCH = 4_000_000


def random_profile(num_layers: int, generator: np.random.Generator) -> str:
    """Return a profile in PipeDream's format: a chain of layers with shortcuts."""
    milliseconds = generator.random(num_layers)
    activations = generator.integers(1, 10**7, num_layers)
    parameters = generator.integers(1, 10**6, num_layers)
    lines = [
        f"node{layer} -- Layer({layer}) -- forward_compute_time={milliseconds[layer]:.3f}, "
        f"backward_compute_time={2 * milliseconds[layer]:.3f}, "
        f"activation_size={activations[layer]}, "
        f"parameter_size={parameters[layer] if layer % 2 else 0}"
        for layer in range(num_layers)
    ]
    lines += [f"\tnode{layer - 1} -- node{layer}" for layer in range(1, num_layers)]
    shortcuts = (generator.integers(2, 6) for _ in range(num_layers))
    lines += [
        f"\tnode{layer - shortcut} -- node{layer}"
        for layer, shortcut in enumerate(shortcuts)
        if layer >= 6
    ]
    return "\n".join(lines) + "\n"


def random_training_problem(
    num_ops: int, num_devices: int, num_groups: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a training step, read from a profile in PipeDream's format.

    Two layers make five ops: forward, backward, and the weights of one of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.txt"
        path.write_text(random_profile(num_ops * 2 // 5, generator))
        graph = load_pipedream_profile(path)
    cluster = parse_cluster(f"{num_devices}xv100")
    colocated = colocate(graph, [colocate_by_id])
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=measured_compute_time(graph, cluster),
        grouping=merge_and_colocate(graph, colocated, num_groups=num_groups),
    )


def cases(
    num_ops: int, num_devices: int, count: int
) -> Iterator[tuple[str, PlacementProblem, str, NDArray[np.int32]]]:
    """Yield both kinds of graph, every op a group, with random and contiguous placements."""
    generator = np.random.default_rng(0)
    problems = {
        "layered": layered_problem(num_ops, num_devices, num_ops, generator),
        "PipeDream": random_training_problem(num_ops, num_devices, num_ops, generator),
    }
    for graph, problem in problems.items():
        groups = problem.num_groups
        mixed = generator.integers(0, num_devices, (count, groups)).astype(np.int32)
        in_row = (np.arange(groups) * num_devices // groups).astype(np.int32)
        yield graph, problem, "random", mixed
        yield graph, problem, "contiguous", np.tile(in_row, (count, 1))


def median_seconds(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each of several actions, which take turns."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, durations in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            durations.append(time.perf_counter() - start)
    return [statistics.median(durations) for durations in seconds]


def print_batches(num_ops: int, num_devices: int, repeats: int) -> None:
    """Print the seconds per placement of batches, with and without memory and a second thread."""
    count = max(2, OPS_PER_BATCH // num_ops)
    for graph, problem, placement, placements in cases(num_ops, num_devices, count):
        single, threaded = (Simulator(problem, num_threads=threads) for threads in (1, 2))
        methods = (single.runtimes, single.evaluate, threaded.evaluate)
        actions = [partial(method, placements) for method in methods]
        for action in actions:
            action()  # compiles
        plain, memory, threads = (seconds / count for seconds in median_seconds(actions, repeats))
        print(
            f"| {graph} | {num_ops:,} | {placement} | {plain * 1e3:.3f} ms "
            f"| {plain / num_ops * 1e9:.0f} ns | {1 / plain:,.0f} "
            f"| {memory * 1e3:.3f} ms, {memory / plain:.2f}x | {memory / threads:.2f}x |"
        )


def print_reference(num_ops: int, repeats: int) -> None:
    """Print the seconds per placement of the definition, and of a batch."""
    for graph, problem, placement, placements in cases(num_ops, 2, 100):
        simulator = Simulator(problem, num_threads=1)
        simulator.evaluate(placements[:1])
        slow, batch = median_seconds(
            [
                partial(reference.simulate, problem, placements[0].tolist()),
                partial(simulator.evaluate, placements),
            ],
            repeats,
        )
        fast = batch / len(placements)
        print(
            f"| {graph} | {num_ops:,} | {placement} | {slow * 1e3:.1f} ms | {fast * 1e3:.3f} ms "
            f"| {slow / fast:.0f}x |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=(3_000, 100_000, 1_000_000))
    parser.add_argument("--devices", type=int, nargs="+", default=(2, 8))
    parser.add_argument("--reference-ops", type=int, nargs="*", default=(3_000, 13_000))
    parser.add_argument("--repeats", type=int, default=5, help="timed batches per case")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}")
    for num_devices in options.devices:
        print(
            f"\n{num_devices} devices:\n\n| graph | ops | placement | runtime only "
            "| per op | placements/s | with memory | two threads |\n"
            "|---|---:|---|---:|---:|---:|---:|---:|"
        )
        for num_ops in options.ops:
            print_batches(num_ops, num_devices, options.repeats)
    print("\n| graph | ops | placement | reference | compiled | speed-up |")
    print("|---|---:|---|---:|---:|---:|")
    for num_ops in options.reference_ops:
        print_reference(num_ops, options.repeats)


if __name__ == "__main__":
    main()
