"""Capture, size and cost of the full-size models: ``python -m placeto_workloads.benchmark``.

Each model is captured in a process of its own, into an empty cache, and loaded from the cache in
another one. What a process needs at most is read from the kernel: Python and PyTorch are in it.
"""

import argparse
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from placeto_graphs import OpGraph
from placeto_graphs import Phase
from placeto_workloads.cache import FOLDER_VARIABLE
from placeto_workloads.costs.backward_convolutions import performed_flops
from placeto_workloads.costs.fit import PUBLISHED_STEPS
from placeto_workloads.costs.kinds import DEVICE_KINDS
from placeto_workloads.costs.memory import activation_bytes
from placeto_workloads.costs.memory import bytes_held_twice
from placeto_workloads.costs.memory import gradient_term_bytes
from placeto_workloads.costs.memory import peak_bytes
from placeto_workloads.costs.op_classes import RESIDENT_TYPES
from placeto_workloads.costs.roofline import single_device_runtime
from placeto_workloads.registry import load
from placeto_workloads.registry import model_names

# Ops of the graphs of TensorFlow (Addanki et al. 2019).
TENSORFLOW_OPS = {
    "inception-v3": 3_002,
    "nasnet": 12_942,
    "nmt-2": 6_361,
    "nmt-4": 10_812,
}
GIGABYTE = 10**9
MEGABYTE = 10**6


@dataclass(frozen=True)
class Loading:
    """What it took to load a graph.

    Attributes
    ----------
    seconds : float
        Of the call, imports not counted.
    peak_bytes : int
        The most memory that the process held.
    graph : `OpGraph`
        What was loaded.
    """

    seconds: float
    peak_bytes: int
    graph: OpGraph


def measure_load(name: str, cache: str) -> Loading:
    """Load a model's graph with a cache folder; captures it if it is not there."""
    os.environ[FOLDER_VARIABLE] = cache
    start = time.perf_counter()
    graph = load(name)
    seconds = time.perf_counter() - start
    return Loading(seconds, peak_memory(), graph)


def measure(name: str) -> tuple[Loading, Loading]:
    """Return what it takes to capture a model, and then to load it from the cache."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as cache,
        context.Pool(1, maxtasksperchild=1) as pool,
    ):
        captured = pool.apply(measure_load, (name, cache))
        loaded = pool.apply(measure_load, (name, cache))
    return captured, loaded


def capture_table(measured: Mapping[str, tuple[Loading, Loading]]) -> str:
    """Return what capture and loading took as a Markdown table."""
    lines = [
        "| model | ops | capture | most memory | load from the cache | most memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {captured.graph.num_ops:,} "
        f"| {captured.seconds:.2f} s | {captured.peak_bytes / MEGABYTE:,.0f} MB "
        f"| {loaded.seconds:.2f} s | {loaded.peak_bytes / MEGABYTE:,.0f} MB |"
        for name, (captured, loaded) in measured.items()
    ]
    return "\n".join(lines)


def size_table(graphs: Mapping[str, OpGraph]) -> str:
    """Return the sizes of graphs as a Markdown table."""
    lines = [
        "| model | ops | forward | backward | update | parameters, inputs | edges "
        "| read along edges | ops in TensorFlow | FLOPs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, graph in graphs.items():
        resident = sum(op_type in RESIDENT_TYPES for op_type in graph.op_types)
        phases = np.bincount(graph.phases, minlength=len(Phase)).tolist()
        lines.append(
            f"| {name} | {graph.num_ops:,} | {phases[0] - resident:,} | {phases[1]:,} "
            f"| {phases[2]:,} | {resident:,} | {graph.num_edges:,} "
            f"| {read_bytes(graph) / GIGABYTE:.1f} GB | {TENSORFLOW_OPS[name]:,} "
            f"| {performed_flops(graph).sum() / 1e12:.3f} T |"
        )
    return "\n".join(lines)


def read_bytes(graph: OpGraph) -> int:
    """Return the bytes of the tensors that ops read of each other, counted at every reader."""
    return int(graph.tensor_bytes[graph.edges[:, 0]].sum())


def memory_table(graphs: Mapping[str, OpGraph]) -> str:
    """Return what graphs hold in memory as a Markdown table."""
    lines = [
        "| model | parameters | activations | terms of gradients | all three "
        "| most in order of capture | of it twice |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, graph in graphs.items():
        held = [
            int(graph.parameter_bytes.sum()),
            activation_bytes(graph),
            gradient_term_bytes(graph),
        ]
        most = peak_bytes(graph), bytes_held_twice(graph)
        sizes = [f"{size / GIGABYTE:.2f} GB" for size in (*held, sum(held), *most)]
        lines.append(f"| {name} | {' | '.join(sizes)} |")
    return "\n".join(lines)


def runtime_table(graphs: Mapping[str, OpGraph]) -> str:
    """Return the single-device runtimes of graphs on every kind as a Markdown table."""
    published = {(step.model, step.kind): step.seconds for step in PUBLISHED_STEPS}
    lines = [f"| model | {' | '.join(DEVICE_KINDS)} |", "|---|" + "---:|" * len(DEVICE_KINDS)]
    for name, graph in graphs.items():
        cells = []
        for kind in DEVICE_KINDS:
            seconds = f"{single_device_runtime(graph, kind):.3g} s"
            known = published.get((name, kind))
            cells.append(seconds if known is None else f"{seconds} ({known:.3g})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Capture and load models and print tables."""
    parser = argparse.ArgumentParser(prog="placeto_workloads.benchmark", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=model_names(), default=model_names())
    options = parser.parse_args(arguments)
    measured = {}
    for name in options.models:
        print(f"capturing {name}", file=sys.stderr)
        measured[name] = measure(name)
    graphs = {name: captured.graph for name, (captured, _) in measured.items()}
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.machine()}")
    print(f"\n{capture_table(measured)}")
    print(f"\n{size_table(graphs)}")
    print(f"\n{memory_table(graphs)}")
    print(f"\n{runtime_table(graphs)}")


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    import resource  # noqa: PLC0415 (Windows has no such module)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
