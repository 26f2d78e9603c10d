"""All baselines on two problems, as Markdown.

``python -m placeto_tools.benchmarks.baselines_table`` prints it.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placeto_baselines import (
    BaselineError,
    CpuOnly,
    CriticalPathPlacer,
    ExpertPlacer,
    Heft,
    LocalSearch,
    MEtf,
    MetisPlacer,
    MSct,
    MTopo,
    RandomPlacer,
    RnnPlacer,
    RnnSettings,
    ScotchPlacer,
    SingleDevice,
    lower_bound,
)
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    PlacementResult,
    Placer,
    colocate,
    colocate_by_id,
    load_pipedream_profile,
    measured_compute_time,
    merge_and_colocate,
    parse_cluster,
)
from placeto_graphs.benchmark import random_training_graph_fields
from placeto_simulator import Simulator

BLOCKS = 8
BRANCHES = ((1, 0.4), (3, 1.8), (3, 2.4), (1, 0.6))  # kernel width, forward milliseconds
CHANNELS = 64
ACTIVATION_BYTES = 4 * 64 * CHANNELS * 14 * 14  # float32, batch 64, 14x14 pixels
GPU_FLOPS, CPU_FLOPS = 2e12, 1e11  # per second, of the random graph's ops


def sample_profile() -> str:
    """Return a profile in PipeDream's format: blocks of four parallel branches, as in Inception."""
    lines: list[str] = []

    def layer(description: str, milliseconds: float, parameters: int, inputs: list[str]) -> str:
        name = f"node{1 + sum(line.startswith('node') for line in lines)}"
        lines.append(
            f"{name} -- {description} -- forward_compute_time={milliseconds:.3f}, "
            f"backward_compute_time={2 * milliseconds:.3f}, "
            f"activation_size={ACTIVATION_BYTES:.1f}, parameter_size={parameters:.1f}"
        )
        lines.extend(f"\t{source} -- {name}" for source in inputs)
        return name

    previous = layer("Input", 0, 0, [])
    for _ in range(BLOCKS):
        ends = []
        for width, milliseconds in BRANCHES:
            kernel = f"Conv2d({CHANNELS}, {CHANNELS}, kernel_size=({width}, {width}))"
            weights = 4 * CHANNELS * CHANNELS * width * width
            convolution = layer(kernel, milliseconds, weights, [previous])
            ends.append(layer("ReLU(inplace)", 0.1, 0, [convolution]))
        previous = layer("Concat(1)", 0.2, 0, ends)
    layer("Linear(in_features=64, out_features=1000)", 0.3, 4 * 64 * 1000, [previous])
    return "\n".join(lines) + "\n"


def profile_problem(num_groups: int) -> PlacementProblem:
    """Return the sample profile on four V100s, for which it gives the times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.txt")
        path.write_text(sample_profile())
        graph = load_pipedream_profile(path)
    cluster = parse_cluster("4xv100")
    grouping = colocate(graph, [colocate_by_id])
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=measured_compute_time(graph, cluster),
        grouping=merge_and_colocate(graph, grouping, num_groups=num_groups),
    )


def random_problem(num_ops: int, num_groups: int, seed: int) -> PlacementProblem:
    """Return a random training graph on a CPU and four K80s, of which the CPU is much slower."""
    graph = OpGraph(**random_training_graph_fields(num_ops, np.random.default_rng(seed)))
    cluster = parse_cluster("1xcpu+4xk80")
    speed = [CPU_FLOPS if device.kind == "cpu" else GPU_FLOPS for device in cluster.devices]
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=graph.flops[:, None] / np.array(speed),
        grouping=merge_and_colocate(graph, colocate(graph), num_groups=num_groups),
    )


def schemes(evaluations: int) -> Iterator[tuple[str, Placer]]:
    """Return every baseline with what it is called, the searching ones with so many evaluations."""
    recurrent = RnnSettings(evaluations=evaluations)
    published = replace(recurrent, learning_rate=0.1, entropy_weight=0.0)
    placers: list[Placer] = [SingleDevice(), CpuOnly(), RandomPlacer(samples=evaluations)]
    placers += [ExpertPlacer(), ScotchPlacer(), MetisPlacer(), RnnPlacer(recurrent)]
    yield from ((f"`{placer.name}`", placer) for placer in placers)
    yield "`rnn`, learning as published", RnnPlacer(published)
    placers = [Heft(), MTopo(), MEtf(), MSct(), CriticalPathPlacer(), LocalSearch(evaluations)]
    yield from ((f"`{placer.name}`", placer) for placer in placers)


@dataclass(frozen=True)
class Row:
    """What one scheme found: seconds of a step, placements evaluated, seconds of search."""

    name: str
    runtime: float
    evaluations: int
    seconds: float
    fits: bool


def compare(problem: PlacementProblem, evaluations: int, seed: int) -> list[Row]:
    """Place a problem with every baseline that can."""
    evaluator = Simulator(problem, num_threads=1)
    SingleDevice().place(problem, evaluator)  # compiles, or loads what is compiled
    rows = []
    for name, placer in schemes(evaluations):
        print(f"{name} on {problem}", file=sys.stderr)
        try:
            result = placer.place(problem, evaluator, seed=seed)
        except BaselineError as error:
            print(error, file=sys.stderr)
            continue
        rows.append(_row(name, problem, result))
        if isinstance(placer, RandomPlacer):
            mean = placer.runtimes(problem, evaluator, seed=seed).mean()
            rows.append(Row("`random`, mean", float(mean), evaluations, result.seconds, fits=True))
    return rows


def _row(name: str, problem: PlacementProblem, result: PlacementResult) -> Row:
    fits = result.fits(problem.cluster)
    return Row(name, result.runtime, result.evaluations, result.seconds, fits)


@dataclass(frozen=True)
class Comparison:
    """What all schemes found for one problem."""

    title: str
    lower_bound: float
    schemes: Sequence[Row]

    def markdown(self) -> str:
        """Return what was found as a table."""
        lines = [
            f"{self.title}\n",
            "| scheme | runtime | over the bound | evaluations | seconds |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.name} | {row.runtime * 1e3:.2f} ms{'' if row.fits else ', out of memory'} "
            f"| {row.runtime / self.lower_bound:.2f} | {row.evaluations:,} | {row.seconds:.3f} |"
            for row in self.schemes
        ]
        lines.append(f"| lower bound | {self.lower_bound * 1e3:.2f} ms | 1.00 | | |")
        return "\n".join(lines)


@dataclass(frozen=True)
class BaselinesReport:
    """What was found, and on what it ran."""

    machine: str
    problems: Sequence[Comparison]

    def markdown(self) -> str:
        """Return a table of each problem."""
        return "\n\n".join([self.machine, *(each.markdown() for each in self.problems)])


def measured(arguments: Sequence[str] | None = None) -> BaselinesReport:
    """Place two problems with every baseline."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.baselines_table", description=__doc__
    )
    parser.add_argument("--evaluations", type=int, default=2000, help="of each search")
    parser.add_argument("--groups", type=int, default=128, help="of each problem, at most")
    parser.add_argument("--ops", type=int, default=1000, help="of the random graph")
    parser.add_argument("--seed", type=int, default=0, help="of the random graph and the placers")
    options = parser.parse_args(arguments)
    problems = {
        "PipeDream profile, four V100s": profile_problem(options.groups),
        "Random training graph, a CPU and four K80s": random_problem(
            options.ops, options.groups, options.seed
        ),
    }
    machine = f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"
    comparisons = [
        Comparison(
            f"{title}: {problem.graph.num_ops} ops, {problem.num_groups} groups",
            lower_bound(problem),
            compare(problem, options.evaluations, options.seed),
        )
        for title, problem in problems.items()
    ]
    return BaselinesReport(machine, comparisons)


if __name__ == "__main__":
    print(measured().markdown())
