"""Measurements of this machine as a cluster, by steps that run on it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto_execution.devices import is_cuda
from placeto_execution.errors import ExecutionError
from placeto_execution.measuring import executor_on
from placeto_graphs import Cluster, Device, ExecutableStep

BYTES_PER_NUMBER = 4
HOPS = 24  # from one device to the other
HOPS_OF_LARGE = 4
LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class LinkMeasurement:
    """Times of tensors from one device to another.

    Attributes
    ----------
    source, destination
        Indices of the devices.
    num_bytes
        Bytes of the tensors, ascending.
    seconds
        Median seconds of each, from the end of the op that makes it to the start of its reader.
    """

    source: int
    destination: int
    num_bytes: tuple[int, ...]
    seconds: Sequence[float]

    @property
    def latency(self) -> float:
        """Seconds of the smallest tensor."""
        return self.seconds[0]

    @property
    def bandwidth(self) -> float:
        """Bytes per second, of those that the largest has more than the smallest."""
        return (self.num_bytes[-1] - self.num_bytes[0]) / (self.seconds[-1] - self.seconds[0])


@dataclass(frozen=True)
class Calibration:
    """Measures the devices of this machine.

    Attributes
    ----------
    devices
        Names of devices, such as ``["cpu:0", "cpu:1"]``.
    make_step
        Function that makes the steps which are measured, as ``placeto_capture.executable_step``.
    runs
        Number of runs of each step.
    threads
        Number of threads of an op on each CPU.
    """

    devices: Sequence[str]
    make_step: Callable[..., ExecutableStep]
    runs: int
    threads: int = 1

    def links(self, sizes: Sequence[int]) -> list[LinkMeasurement]:
        """Measure tensors of some sizes between each two devices, in both ways.

        Parameters
        ----------
        sizes
            Sizes of the tensors in bytes, ascending.

        Raises
        ------
        ExecutionError
            If the largest tensor takes no longer than the smallest, so that no bandwidth is known.
        """
        devices = range(len(self.devices))
        seconds = {pair: list[float]() for pair in permutations(devices, 2)}
        for size in sizes:
            hops = HOPS if size < LARGE else HOPS_OF_LARGE
            for first, second in combinations(devices, 2):
                gaps = self._gaps(size, hops, [first, second])
                seconds[first, second].append(float(np.median(gaps[:, ::2])))
                seconds[second, first].append(float(np.median(gaps[:, 1::2])))
        links = [LinkMeasurement(*pair, tuple(sizes), medians) for pair, medians in seconds.items()]
        for link in links:
            if not 0 <= link.latency < link.seconds[-1]:
                raise ExecutionError(
                    f"{self.devices[link.source]} to {self.devices[link.destination]}: expected "
                    f"{sizes[-1]} bytes to take longer than {sizes[0]}, got {link.seconds[-1]:.3g} "
                    f"s and {link.latency:.3g} s; measure larger tensors, or more steps"
                )
        return links

    def op_overhead(self, device: int) -> float:
        """Return the seconds from the end of a cheap op to the start of the next one.

        Parameters
        ----------
        device
            Index of the device.
        """
        return float(np.median(self._gaps(BYTES_PER_NUMBER, 4 * HOPS, [device])))

    def cluster(self, links: Sequence[LinkMeasurement], kinds: Sequence[str]) -> Cluster:
        """Return the devices as a cluster, after measuring their overheads.

        Parameters
        ----------
        links
            Measurements of `links`.
        kinds
            Kind of each device.
        """
        count = len(self.devices)
        bandwidth, latency = np.full((count, count), np.inf), np.zeros((count, count))
        for link in links:
            latency[link.source, link.destination] = link.latency
            bandwidth[link.source, link.destination] = link.bandwidth
        memory = memory_of(self.devices)
        return Cluster(
            devices=tuple(
                Device(name, kind, memory[name], self.op_overhead(device), 0.0)
                for device, (name, kind) in enumerate(zip(self.devices, kinds, strict=True))
            ),
            bandwidth=bandwidth,
            latency=latency,
        )

    def _gaps(self, num_bytes: int, length: int, devices: Sequence[int]) -> NDArray[np.float64]:
        """Return float64[N, length - 1], the seconds from each op to the next, of N runs.

        Ops run on the devices in turn, so that each sends its tensor to the next device.
        """
        step = self.make_step(
            nn.Sequential(*[nn.ReLU()] * length),
            (torch.zeros(num_bytes // BYTES_PER_NUMBER),),
            mode="inference",
            results=[],
            target="gpu" if any(is_cuda(name) for name in self.devices) else "cpu",
            threads_per_device=self.threads,
        )
        chain = np.flatnonzero(step.graph.bytes_accessed > 0)
        op_device = np.zeros(step.graph.num_ops, np.int32)
        op_device[chain] = np.arange(len(chain)) % len(devices)
        with executor_on(step, [self.devices[device] for device in devices]) as executor:
            placement = np.zeros(executor.problem.num_groups, np.int32)
            placement[executor.problem.grouping.group_of] = op_device
            timelines = executor.measure(placement, self.runs)
        return np.array(
            [timeline.op_start[chain][1:] - timeline.op_end[chain][:-1] for timeline in timelines]
        )


def memory_of(devices: Sequence[str]) -> dict[str, int]:
    """Return the bytes that each device may hold; CPUs share those of the machine equally."""
    num_cpus = sum(not is_cuda(name) for name in devices)
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // max(1, num_cpus)
    return {
        name: torch.cuda.get_device_properties(name).total_memory if is_cuda(name) else share
        for name in devices
    }
