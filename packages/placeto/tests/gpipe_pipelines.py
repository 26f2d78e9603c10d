"""Pipelines of equal layers, of which GPipe says how long a step takes.

A chain of k equal layers, each on a device of its own, with m micro-batches, of which a layer takes
f seconds forward and b backward, takes (m + k - 1)(f + b). No schedule is faster: the last device
waits (k - 1) f for its first micro-batch, works m (f + b), and its last gradient needs (k - 1) b to
the first device. A layer may be several ops: first in, first out then begins all micro-batches
before one of them is through.
"""

from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from placeto_graphs import (
    Cluster,
    Device,
    EvaluationBatch,
    PlacementProblem,
    from_networkx,
    micro_batched_problem,
    scheduled,
)
from placeto_simulator import Simulator

BANDWIDTH = 1e9


@dataclass(frozen=True)
class Pipeline:
    """A chain of equal layers; the forward of a layer takes one second for each micro-batch."""

    stages: int  # the number k of layers
    micro_batches: int  # their number m
    backward_seconds: float  # of a layer and a micro-batch; with 0 it is an inference step
    transfer_seconds: float = 0.0  # of the output of a layer, or its gradient, to another device
    ops_per_layer: int = 1  # equal ones, forward and backward each
    queue: str = "backward-first"  # see `placeto_graphs.Cluster`
    schedule: str = ""

    def problem(self) -> PlacementProblem:
        """Return the problem with as many devices as layers; group i is layer i."""
        chain, seconds = self._chain()
        graph = from_networkx(chain)
        bandwidth = BANDWIDTH if self.transfer_seconds else np.inf
        undivided = PlacementProblem(
            graph=graph,
            cluster=devices_without_overheads(self.stages, bandwidth),
            compute_time=np.tile(np.array(seconds)[:, None], (1, self.stages)),
        )
        problem = micro_batched_problem(undivided, self.micro_batches)
        return replace(problem, cluster=replace(problem.cluster, queue=self.queue))

    def simulated(self) -> EvaluationBatch:
        """Return the costs of the step with each layer on a device of its own."""
        problem, placement = self.problem(), np.arange(self.stages, dtype=np.int32)
        if self.schedule:
            problem = scheduled(problem, self.schedule, placement)
        return Simulator(problem, num_threads=1).evaluate(placement[None])

    def _chain(self) -> tuple[nx.DiGraph, list[float]]:
        """Return the undivided step, and the seconds of its ops."""
        chain, seconds = nx.DiGraph(), []
        size = round(self.micro_batches * self.transfer_seconds * BANDWIDTH)
        ops = [(layer, op) for layer in range(self.stages) for op in range(self.ops_per_layer)]
        op_seconds = self.micro_batches / self.ops_per_layer
        for layer, op in ops:
            chain.add_node(f"forward{layer}.{op}", colocation=layer)
            seconds.append(op_seconds)
        nx.add_path(chain, [f"forward{layer}.{op}" for layer, op in ops], bytes=size)
        if self.backward_seconds:
            for layer, op in reversed(ops):
                chain.add_node(f"backward{layer}.{op}", colocation=layer, phase=1)
                chain.add_edge(f"forward{layer}.{op}", f"backward{layer}.{op}", bytes=size)
                seconds.append(self.backward_seconds * op_seconds)
            nx.add_path(chain, [f"backward{layer}.{op}" for layer, op in ops[::-1]], bytes=size)
        return chain, seconds


def devices_without_overheads(num_devices: int, bandwidth: float) -> Cluster:
    """Return devices that take nothing but compute times, and bytes at a bandwidth in B/s."""
    names = [f"gpu{index}" for index in range(num_devices)]
    return Cluster(
        devices=tuple(Device(name, "gpu", 2**60, 0.0, 0.0) for name in names),
        bandwidth=np.full((num_devices, num_devices), bandwidth),
        latency=np.zeros((num_devices, num_devices)),
    )
