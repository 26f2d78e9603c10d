"""Seconds and memory of capture as models grow: ``python -m placeto_workloads.capture_growth``.

Each model is captured in a process of its own, after a small one that loads what PyTorch loads when
it is first used. Seconds are those of the processor, so that what else runs on the machine counts
little; the most memory is that of the process, in which Python and PyTorch are.
"""

import argparse
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from placeto_workloads.benchmark import MEGABYTE, peak_memory
from placeto_workloads.libraries.named import library_step
from placeto_workloads.models.training_step import TrainingStep
from placeto_workloads.registry import capture_step

WIDTH = 8
BATCH_SIZE = 4


class Chain(nn.Module):
    """Residual layers with a weight each."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the last layer gives, float32[batch, width]."""
        for layer in self.layers:
            hidden = hidden + layer(hidden).relu()
        return hidden


class Recurrence(nn.Module):
    """One layer, unrolled over time."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.num_steps = num_steps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the last step gives, float32[batch, width]."""
        for _ in range(self.num_steps):
            hidden = self.layer(hidden).tanh()
        return hidden


def chain(num_layers: int) -> TrainingStep:
    """Return a step of residual layers, twelve ops each."""
    return _step(lambda: Chain(num_layers))


def recurrence(num_steps: int) -> TrainingStep:
    """Return a step of an unrolled layer, eight ops per time step."""
    return _step(lambda: Recurrence(num_steps))


def llama(num_layers: int) -> TrainingStep:
    """Return a step of the transformers library's usual Llama, 4,096 wide, with so many layers."""
    return library_step("transformers:llama", batch_size=BATCH_SIZE, num_hidden_layers=num_layers)


MODELS: Mapping[str, Callable[[int], TrainingStep]] = {
    "chain": chain,
    "recurrence": recurrence,
    "llama": llama,
}
SIZES: Mapping[str, Sequence[int]] = {
    "chain": (85, 850, 4250),
    "recurrence": (125, 1250, 6250),
    "llama": (8, 32, 128),
}
SMALL = 2  # layers or steps of what is captured first


@dataclass(frozen=True)
class Growth:
    """What it took to capture a model of some size.

    Attributes
    ----------
    model, size : text, int
        The model, and how many layers or steps it has.
    num_ops : int
        Of the graph.
    seconds : float
        Of the processor.
    peak_bytes : int
        The most memory that the process held.
    """

    model: str
    size: int
    num_ops: int
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class GrowthReport:
    """What was measured, and on what."""

    machine: str
    captures: Sequence[Growth]

    def markdown(self) -> str:
        """Return the captures as a table."""
        lines = [
            f"{self.machine}\n",
            "| model | layers | ops | capture | per op | most memory |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {growth.model} | {growth.size:,} | {growth.num_ops:,} | {growth.seconds:.2f} s "
            f"| {growth.seconds / growth.num_ops * 1e3:.2f} ms "
            f"| {growth.peak_bytes / MEGABYTE:,.0f} MB |"
            for growth in self.captures
        ]
        return "\n".join(lines)


def measure_capture(model: str, size: int) -> Growth:
    """Capture a model with so many layers or steps."""
    capture_step(MODELS[model](SMALL))
    step = MODELS[model](size)
    start = time.process_time()
    graph = capture_step(step)
    seconds = time.process_time() - start
    return Growth(model, size, graph.num_ops, seconds, peak_memory())


def measured(arguments: Sequence[str] | None = None) -> GrowthReport:
    """Capture growing models."""
    parser = argparse.ArgumentParser(prog="placeto_workloads.capture_growth", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layers", nargs="+", type=int, help="instead of the usual ones")
    options = parser.parse_args(arguments)
    captures = []
    context = multiprocessing.get_context("spawn")
    for model in options.models:
        for size in options.layers or SIZES[model]:
            print(f"capturing {model} of {size}", file=sys.stderr)
            with context.Pool(1, maxtasksperchild=1) as pool:
                captures.append(pool.apply(measure_capture, (model, size)))
    machine = (
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.machine()}"
    )
    return GrowthReport(machine, captures)


def _step(make: Callable[[], nn.Module]) -> TrainingStep:
    with torch.device("meta"):
        return TrainingStep(make(), (torch.empty(BATCH_SIZE, WIDTH),))


if __name__ == "__main__":
    print(measured().markdown())
