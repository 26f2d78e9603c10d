"""Measurements of this machine as a cluster, by steps that run on it."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto_execution.devices import is_cuda
from placeto_execution.measuring import executor_on
from placeto_graphs import Cluster, Device, ExecutableStep, StepTimeline

BYTES_PER_NUMBER = 4
HOPS = 24  # from one device to the other
HOPS_OF_LARGE = 4
LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class LinkMeasurement:
    """Times of tensors from one device to another."""

    source: int
    destination: int
    num_bytes: tuple[int, ...]  # of tensors, ascending
    # Medians from the end of the op that makes a tensor to the start of its reader.
    seconds: tuple[float, ...]

    @property
    def latency(self) -> float:
        return self.seconds[0]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the largest took longer than the smallest; inf if it did not."""
        seconds = self.seconds[-1] - self.seconds[0]
        return (self.num_bytes[-1] - self.num_bytes[0]) / seconds if seconds > 0 else math.inf


@dataclass(frozen=True)
class Slowdown:
    """Seconds of an op on one device alone, and while the others run it, too."""

    what: str
    alone: float
    together: float


class Chains(nn.Module):
    """Applies a function to each input a number of times."""

    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor], length: int) -> None:
        super().__init__()
        self.work = work
        self.length = length

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for numbers in inputs:
            made = numbers
            for _ in range(self.length):
                made = self.work(made)
            results.append(made)
        return tuple(results)


# Ops that are measured alone and on all devices at once, and the shapes of their inputs.
WORKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "matrix product, 512 x 512": (lambda numbers: numbers @ numbers, (512, 512)),
    "convolution, 32 channels of 64 x 64": (
        lambda images: torch.conv2d(images, torch.ones(32, 32, 3, 3), padding=1),
        (4, 32, 64, 64),
    ),
    "addition, 8 million numbers": (lambda numbers: numbers + 1, (8_000_000,)),
}


class Calibration:
    """Measures the devices of this machine."""

    def __init__(
        self,
        devices: Sequence[str],
        make_step: Callable[..., ExecutableStep],
        runs: int,
        threads: int = 1,
    ) -> None:
        self.devices = tuple(devices)
        self.make_step = make_step
        self.runs = runs
        self.threads = threads

    def links(self, sizes: Sequence[int]) -> list[LinkMeasurement]:
        """Measure tensors of some sizes, in bytes, between each two devices."""
        taken = {size: self._hops(size) for size in sizes}
        return [
            LinkMeasurement(
                source,
                destination,
                tuple(sizes),
                tuple(taken[size][source, destination] for size in sizes),
            )
            for source in range(len(self.devices))
            for destination in range(len(self.devices))
            if source != destination
        ]

    def op_overhead(self, device: int) -> float:
        """Return the seconds from the end of a cheap op to the start of the next one."""
        step = self._step(torch.relu, 4 * HOPS, [torch.zeros(1)])
        chain = _ops(step)
        gaps = [
            timeline.op_start[chain][1:] - timeline.op_end[chain][:-1]
            for timeline in self._timelines(step, np.zeros(step.graph.num_ops, np.int32), [device])
        ]
        return float(np.median(gaps))

    def slowdown(self, what: str) -> Slowdown:
        """Measure one of the works, on each device alone, and on all of them at once."""
        work, shape = WORKS[what]
        count = len(self.devices)
        together = self._step(work, HOPS, [torch.ones(shape) for _ in range(count)])
        alone = self._step(work, HOPS, [torch.ones(shape)])
        place = np.zeros(together.graph.num_ops, np.int32)
        for device, chain in enumerate(np.array_split(_ops(together), count)):
            place[chain] = device
        place[:count] = np.arange(count)  # its inputs
        here = np.zeros(alone.graph.num_ops, np.int32)
        seconds_alone = [self._seconds(alone, here, [device]) for device in range(count)]
        return Slowdown(
            what,
            alone=float(np.mean(seconds_alone)),
            together=self._seconds(together, place, range(count)),
        )

    def cluster(self, links: Sequence[LinkMeasurement], kinds: Sequence[str]) -> Cluster:
        """Return the devices as a cluster."""
        count = len(self.devices)
        bandwidth, latency = np.full((count, count), np.inf), np.zeros((count, count))
        for link in links:
            latency[link.source, link.destination] = link.latency
            bandwidth[link.source, link.destination] = link.bandwidth
        memory = memory_of(self.devices)
        return Cluster(
            devices=tuple(
                Device(name, kind, memory[name], self.op_overhead(number), 0.0)
                for number, (name, kind) in enumerate(zip(self.devices, kinds, strict=True))
            ),
            bandwidth=bandwidth,
            latency=latency,
        )

    def _hops(self, num_bytes: int) -> dict[tuple[int, int], float]:
        """Return the median seconds of a tensor between each two devices, in both ways."""
        hops = HOPS if num_bytes < LARGE else HOPS_OF_LARGE
        step = self._step(torch.relu, hops, [torch.zeros(num_bytes // BYTES_PER_NUMBER)])
        chain = _ops(step)
        medians = {}
        for one in range(len(self.devices)):
            for other in range(one + 1, len(self.devices)):
                place = np.zeros(step.graph.num_ops, np.int32)
                place[chain] = np.arange(len(chain)) % 2
                timelines = self._timelines(step, place, [one, other])
                gaps = np.array([t.op_start[chain][1:] - t.op_end[chain][:-1] for t in timelines])
                medians[one, other] = float(np.median(gaps[:, ::2]))
                medians[other, one] = float(np.median(gaps[:, 1::2]))
        return medians

    def _step(
        self,
        work: Callable[[torch.Tensor], torch.Tensor],
        length: int,
        inputs: Sequence[torch.Tensor],
    ) -> ExecutableStep:
        return self.make_step(
            Chains(work, length),
            tuple(inputs),
            mode="inference",
            results=[],
            target="gpu" if any(is_cuda(name) for name in self.devices) else "cpu",
            threads_per_device=self.threads,
        )

    def _seconds(
        self, step: ExecutableStep, place: NDArray[np.int32], devices: Sequence[int]
    ) -> float:
        chain = _ops(step)
        timelines = self._timelines(step, place, devices)
        return float(np.median([t.op_end[chain] - t.op_start[chain] for t in timelines]))

    def _timelines(
        self, step: ExecutableStep, place: NDArray[np.int32], devices: Sequence[int]
    ) -> list[StepTimeline]:
        with executor_on(step, [self.devices[number] for number in devices]) as executor:
            placement = np.zeros(executor.problem.num_groups, np.int32)
            placement[executor.problem.grouping.group_of] = place
            return executor.measure(placement, self.runs)


def memory_of(devices: Sequence[str]) -> dict[str, int]:
    """Return the bytes that each device may hold; CPUs share those of the machine equally."""
    num_cpus = sum(not is_cuda(name) for name in devices)
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // max(1, num_cpus)
    return {
        name: torch.cuda.get_device_properties(name).total_memory if is_cuda(name) else share
        for name in devices
    }


def _ops(step: ExecutableStep) -> NDArray[np.intp]:
    """Return the ops of a step that compute, in order."""
    return np.flatnonzero(step.graph.bytes_accessed > 0)
