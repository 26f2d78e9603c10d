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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from placeto_graphs import OpGraph, Phase
from placeto_workloads.cache import FOLDER_VARIABLE
from placeto_workloads.costs.backward_convolutions import performed_flops
from placeto_workloads.costs.fit import PUBLISHED_STEPS
from placeto_workloads.costs.kinds import DEVICE_KINDS
from placeto_workloads.costs.memory import (
    activation_bytes,
    bytes_held_twice,
    gradient_term_bytes,
    peak_bytes,
)
from placeto_workloads.costs.op_classes import RESIDENT_TYPES
from placeto_workloads.costs.roofline import single_device_runtime
from placeto_workloads.registry import load, model_names

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


def read_bytes(graph: OpGraph) -> int:
    """Return the bytes of the tensors that ops read of each other, counted at every reader."""
    return int(graph.tensor_bytes[graph.edges[:, 0]].sum())


@dataclass(frozen=True)
class ModelReport:
    """What a model is: ops, bytes, and seconds of a step on one device of each kind."""

    name: str
    capture_seconds: float
    capture_peak_bytes: int
    load_seconds: float
    load_peak_bytes: int
    ops: int
    forward: int
    backward: int
    update: int
    resident: int
    edges: int
    read_bytes: int
    flops: float
    parameter_bytes: int
    activation_bytes: int
    gradient_term_bytes: int
    most_bytes: int
    most_bytes_held_twice: int
    runtimes: Mapping[str, float]


def report_of(name: str, captured: Loading, loaded: Loading) -> ModelReport:
    """Return what a model is, and what it took to get it."""
    graph = captured.graph
    resident = sum(op_type in RESIDENT_TYPES for op_type in graph.op_types)
    phases = np.bincount(graph.phases, minlength=len(Phase)).tolist()
    return ModelReport(
        name=name,
        capture_seconds=captured.seconds,
        capture_peak_bytes=captured.peak_bytes,
        load_seconds=loaded.seconds,
        load_peak_bytes=loaded.peak_bytes,
        ops=graph.num_ops,
        forward=phases[0] - resident,
        backward=phases[1],
        update=phases[2],
        resident=resident,
        edges=graph.num_edges,
        read_bytes=read_bytes(graph),
        flops=float(performed_flops(graph).sum()),
        parameter_bytes=int(graph.parameter_bytes.sum()),
        activation_bytes=activation_bytes(graph),
        gradient_term_bytes=gradient_term_bytes(graph),
        most_bytes=peak_bytes(graph),
        most_bytes_held_twice=bytes_held_twice(graph),
        runtimes={kind: single_device_runtime(graph, kind) for kind in DEVICE_KINDS},
    )


@dataclass(frozen=True)
class WorkloadsReport:
    """What was measured, and on what."""

    machine: str
    models: Sequence[ModelReport]

    def markdown(self) -> str:
        """Return tables of capture, sizes, memory and runtimes."""
        tables = [self._captures(), self._sizes(), self._memory(), self._runtimes()]
        return "\n\n".join([self.machine, *("\n".join(table) for table in tables)])

    def _captures(self) -> list[str]:
        return [
            "| model | ops | capture | most memory | load from the cache | most memory |",
            "|---|---:|---:|---:|---:|---:|",
            *(
                f"| {model.name} | {model.ops:,} "
                f"| {model.capture_seconds:.2f} s | {model.capture_peak_bytes / MEGABYTE:,.0f} MB "
                f"| {model.load_seconds:.2f} s | {model.load_peak_bytes / MEGABYTE:,.0f} MB |"
                for model in self.models
            ),
        ]

    def _sizes(self) -> list[str]:
        return [
            "| model | ops | forward | backward | update | parameters, inputs | edges "
            "| read along edges | ops in TensorFlow | FLOPs |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *(
                f"| {model.name} | {model.ops:,} | {model.forward:,} | {model.backward:,} "
                f"| {model.update:,} | {model.resident:,} | {model.edges:,} "
                f"| {model.read_bytes / GIGABYTE:.1f} GB | {TENSORFLOW_OPS[model.name]:,} "
                f"| {model.flops / 1e12:.3f} T |"
                for model in self.models
            ),
        ]

    def _memory(self) -> list[str]:
        lines = [
            "| model | parameters | activations | terms of gradients | all three "
            "| most in order of capture | of it twice |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for model in self.models:
            held = model.parameter_bytes, model.activation_bytes, model.gradient_term_bytes
            most = model.most_bytes, model.most_bytes_held_twice
            sizes = [f"{size / GIGABYTE:.2f} GB" for size in (*held, sum(held), *most)]
            lines.append(f"| {model.name} | {' | '.join(sizes)} |")
        return lines

    def _runtimes(self) -> list[str]:
        published = {(step.model, step.kind): step.seconds for step in PUBLISHED_STEPS}
        lines = [f"| model | {' | '.join(DEVICE_KINDS)} |", "|---|" + "---:|" * len(DEVICE_KINDS)]
        for model in self.models:
            cells = []
            for kind, seconds in model.runtimes.items():
                known = published.get((model.name, kind))
                cells.append(f"{seconds:.3g} s" + ("" if known is None else f" ({known:.3g})"))
            lines.append(f"| {model.name} | {' | '.join(cells)} |")
        return lines


def measured(arguments: Sequence[str] | None = None) -> WorkloadsReport:
    """Capture and load models."""
    parser = argparse.ArgumentParser(prog="placeto_workloads.benchmark", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=model_names(), default=model_names())
    options = parser.parse_args(arguments)
    models = []
    for name in options.models:
        print(f"capturing {name}", file=sys.stderr)
        models.append(report_of(name, *measure(name)))
    machine = (
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.machine()}"
    )
    return WorkloadsReport(machine, models)


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    import resource  # noqa: PLC0415 (Windows has no such module)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(measured().markdown())
