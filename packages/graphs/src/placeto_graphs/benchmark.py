"""Time and memory of this package on large graphs: ``python -m placeto_graphs.benchmark``.

Each size runs in a process of its own. What a stage needs at most is read from the kernel, which
counts the high-water mark of the whole process: the graph itself and the compiled loops are in it.
"""

import argparse
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from placeto_graphs.files.cluster_spec import parse_cluster
from placeto_graphs.files.problem_file import load_problem, save_problem
from placeto_graphs.grouping.colocation import colocate
from placeto_graphs.grouping.merging import merge_and_colocate
from placeto_graphs.grouping.reachability import reachability
from placeto_graphs.schema.group_graph import group_graph
from placeto_graphs.schema.op_graph import FREE, OpGraph, Phase
from placeto_graphs.schema.problem import PlacementProblem

DEFAULT_SIZES = (10_000, 100_000, 1_000_000)
MANY_GROUPS = 10_000
MEGABYTE = 10**6

Returned = TypeVar("Returned")


def random_training_graph_fields(num_ops: int, generator: np.random.Generator) -> dict[str, Any]:
    """Return the fields of a random `OpGraph` with about three edges per op.

    Half of the ops are forward ops, each of which reads what one to four of the 32 ops before it
    make. Each has a backward op, which reads its activation and the gradients of its readers.

    Parameters
    ----------
    num_ops
        The number V of ops, even.
    generator
        The source of randomness.

    Examples
    --------
    >>> OpGraph(**random_training_graph_fields(1000, np.random.default_rng(0)))
    OpGraph(ops=1000, tensors=1743, edges=2986)
    """
    forward = num_ops // 2
    readers = np.repeat(np.arange(1, forward), generator.integers(1, 5, forward - 1))
    reach = np.minimum(generator.integers(1, 33, len(readers)), readers)
    reads = np.unique(np.stack([readers - reach, readers], axis=1), axis=0)
    makers, readers = reads[:, 0], reads[:, 1]
    activation_bytes = generator.integers(1, 10**6, forward)
    gradients = forward + np.arange(len(reads))
    own = np.arange(forward)
    backward_of = num_ops - 1 - own  # the backward ops run in the reverse order
    edges = [(makers, readers), (gradients, backward_of[makers]), (own, backward_of)]
    layer = np.concatenate([own, own[::-1]]) // 10
    return {
        "op_names": [f"op{op}" for op in range(num_ops)],
        "op_types": ["forward"] * forward + ["backward"] * forward,
        "scopes": [f"block{number // 10}.layer{number}" for number in layer.tolist()],
        "phases": np.repeat(np.array([Phase.FORWARD, Phase.BACKWARD], np.int8), forward),
        "flops": generator.random(num_ops) * 1e9,
        "bytes_accessed": generator.random(num_ops) * 1e6,
        "parameter_bytes": np.zeros(num_ops, np.int64),
        "workspace_bytes": np.zeros(num_ops, np.int64),
        "colocation": np.full(num_ops, FREE, np.int32),
        "tensor_producer": np.concatenate([own, backward_of[readers]]).astype(np.int32),
        "tensor_bytes": np.concatenate([activation_bytes, activation_bytes[makers]]),
        "edges": np.concatenate([np.stack(pair, axis=1) for pair in edges]).astype(np.int32),
    }


@dataclass(frozen=True)
class Stage:
    """What one stage took.

    Attributes
    ----------
    num_ops : int
        Of the graph.
    name : text
        What was done.
    seconds : float
        How long it took.
    peak_bytes : int
        The most memory that the process held while it ran.
    """

    num_ops: int
    name: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class GraphsReport:
    """What was measured, and on what."""

    machine: str
    stages: Sequence[Stage]

    def markdown(self) -> str:
        """Return a table of stages and sizes: seconds, and peak memory in MB."""
        by_size: dict[int, list[Stage]] = {}
        for stage in self.stages:
            by_size.setdefault(stage.num_ops, []).append(stage)
        lines = [
            f"{self.machine}\n",
            f"| stage | {' | '.join(f'{size:,} ops' for size in by_size)} |",
            f"|---|{'---:|' * len(by_size)}",
        ]
        for stages in zip(*by_size.values(), strict=True):
            cells = [
                f"{stage.seconds:.3f} s, {stage.peak_bytes / MEGABYTE:,.0f} MB" for stage in stages
            ]
            lines.append(f"| {stages[0].name} | {' | '.join(cells)} |")
        return "\n".join(lines)


def measure(num_ops: int, num_groups: int, seed: int) -> list[Stage]:
    """Run every stage once on a random graph and return what each took."""
    stages: list[Stage] = []

    def run(name: str, function: Callable[..., Returned], *inputs: Any, **options: Any) -> Returned:
        _reset_peak_memory()
        start = time.perf_counter()
        result = function(*inputs, **options)
        stages.append(Stage(num_ops, name, time.perf_counter() - start, _peak_memory()))
        return result

    small = OpGraph(**random_training_graph_fields(100, np.random.default_rng(seed)))
    merge_and_colocate(small, colocate(small), num_groups=2)  # compiles, or loads what is compiled
    fields = random_training_graph_fields(num_ops, np.random.default_rng(seed))
    graph = run("validate", OpGraph, **fields)
    del fields
    single_ops = colocate(graph, rules=())
    run(f"merge ops to {num_groups}", merge_and_colocate, graph, single_ops, num_groups=num_groups)
    grouping = run("colocate", colocate, graph)
    merged = run(
        f"merge colocated to {num_groups}",
        merge_and_colocate,
        graph,
        grouping,
        num_groups=num_groups,
    )
    compute_time = np.tile(graph.flops[:, None] / 1e12, (1, 4))
    run("group graph", group_graph, graph, merged, compute_time)
    many = merge_and_colocate(graph, single_ops, num_groups=MANY_GROUPS)
    run(f"reachability of {MANY_GROUPS:,}", reachability, group_graph(graph, many, compute_time))
    problem = PlacementProblem(
        graph=graph,
        cluster=parse_cluster("4xk80"),
        compute_time=compute_time,
        grouping=merged,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.json.gz")
        run("save .json.gz", save_problem, problem, path)
        del graph, single_ops, grouping, many, problem
        run("load .json.gz", load_problem, path)
    return stages


def typical(repeats: Sequence[Stage]) -> Stage:
    """Return the median time and the largest memory of one stage that ran several times."""
    return Stage(
        repeats[0].num_ops,
        repeats[0].name,
        statistics.median(stage.seconds for stage in repeats),
        max(stage.peak_bytes for stage in repeats),
    )


def measured(arguments: Sequence[str] | None = None) -> GraphsReport:
    """Measure graphs of several sizes."""
    parser = argparse.ArgumentParser(prog="placeto_graphs.benchmark", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=DEFAULT_SIZES, help="graph sizes")
    parser.add_argument("--groups", type=int, default=128, help="merge to so many groups")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each size")
    parser.add_argument("--seed", type=int, default=0, help="of the random graphs")
    options = parser.parse_args(arguments)
    stages: list[Stage] = []
    # A fresh process each time, so that no memory is left over from the time before.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for size in options.ops:
            runs = []
            for repeat in range(options.repeats):
                print(f"{size:,} ops: run {repeat + 1} of {options.repeats}", file=sys.stderr)
                runs.append(pool.apply(measure, (size, options.groups, options.seed)))
            stages += [typical(repeats) for repeats in zip(*runs, strict=True)]
    machine = f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"
    return GraphsReport(machine, stages)


def _reset_peak_memory() -> None:
    """Set the high-water mark to what is in use now; only Linux can."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def _peak_memory() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    import resource  # noqa: PLC0415 (Windows has no such module)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(measured().markdown())
