"""How near simulated pipelines come to GPipe: ``python -m gpipe_pipelines``.

A chain of k equal layers, each on a device of its own, is the case that GPipe and 1F1B have a
formula for: with m micro-batches, of which a layer takes f seconds forward and b backward, a step
takes (m + k - 1)(f + b). No schedule is faster: the last device waits (k - 1) f for its first
micro-batch, works m (f + b), and its last gradient needs (k - 1) b to the first device. A layer may
be several ops: first in, first out then begins all micro-batches before one of them is through.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import networkx as nx
import numpy as np

from placeto.texts import TextTable
from placeto_graphs import (
    Cluster,
    Device,
    PlacementProblem,
    colocate,
    colocate_by_id,
    from_networkx,
    micro_batched_problem,
)
from placeto_simulator import Simulator

STAGES = tuple(range(2, 9))
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
BACKWARD_SECONDS = (1.0, 2.0)  # where a layer's forward takes one
TRANSFER_SECONDS = (0.0, 0.1)
OPS_PER_LAYER = (1, 2, 8)
QUEUES = ("fifo", "backward-first")
BANDWIDTH = 1e9
ROUNDING = 1e-9  # what is less is none


@dataclass(frozen=True)
class Pipeline:
    """A chain of equal layers in micro-batches; the forward of a layer takes one second for each.

    Attributes
    ----------
    stages : int
        The number k of layers.
    micro_batches : int
        The number m of micro-batches.
    backward_seconds : float
        What the backward of a layer takes for a micro-batch; with 0 it is an inference step.
    transfer_seconds : float
        What the output of a layer, or its gradient, takes to another device.
    ops_per_layer : int
        How many equal ops a layer is, forward and backward each.
    queue : text
        In which order a device works off the ops that wait for it (`placeto_graphs.Cluster`).
    """

    stages: int
    micro_batches: int
    backward_seconds: float
    transfer_seconds: float = 0.0
    ops_per_layer: int = 1
    queue: str = "backward-first"

    def problem(self) -> PlacementProblem:
        """Return the problem with as many devices as layers; group i is layer i.

        Examples
        --------
        >>> Pipeline(stages=4, micro_batches=8, backward_seconds=2.0).problem()
        PlacementProblem(ops=64, groups=4, devices=4)
        """
        chain, seconds = self._chain()
        graph = from_networkx(chain)
        bandwidth = BANDWIDTH if self.transfer_seconds else np.inf
        undivided = PlacementProblem(
            graph=graph,
            cluster=devices_without_overheads(self.stages, bandwidth),
            compute_time=np.tile(np.array(seconds)[:, None], (1, self.stages)),
            grouping=colocate(graph, [colocate_by_id]),
        )
        problem = micro_batched_problem(undivided, self.micro_batches)
        return replace(problem, cluster=replace(problem.cluster, queue=self.queue))

    def simulated_seconds(self) -> float:
        """Return what the step takes with each layer on a device of its own."""
        placement = np.arange(self.stages, dtype=np.int32)[None]
        return float(Simulator(self.problem(), num_threads=1).evaluate(placement).runtime[0])

    def least_seconds(self) -> float:
        """Return (m + k - 1)(f + b), and the transfers of one micro-batch, there and back."""
        rounds = self.micro_batches + self.stages - 1
        transfers = 2 * (self.stages - 1) * self.transfer_seconds
        return rounds * (1.0 + self.backward_seconds) + transfers

    def _chain(self) -> tuple[nx.DiGraph, list[float]]:
        """Return the undivided step, and the seconds of its ops."""
        chain, seconds = nx.DiGraph(), []
        size = round(self.micro_batches * self.transfer_seconds * BANDWIDTH)
        ops = [(layer, op) for layer in range(self.stages) for op in range(self.ops_per_layer)]
        part = self.micro_batches / self.ops_per_layer
        for layer, op in ops:
            chain.add_node(f"forward{layer}.{op}", colocation=layer)
            seconds.append(part)
        nx.add_path(chain, [f"forward{layer}.{op}" for layer, op in ops], bytes=size)
        if self.backward_seconds:
            for layer, op in reversed(ops):
                chain.add_node(f"backward{layer}.{op}", colocation=layer, phase=1)
                chain.add_edge(f"forward{layer}.{op}", f"backward{layer}.{op}", bytes=size)
                seconds.append(self.backward_seconds * part)
            nx.add_path(chain, [f"backward{layer}.{op}" for layer, op in ops[::-1]], bytes=size)
        return chain, seconds


def loss_table(
    backward_seconds: float, transfer_seconds: float, ops_per_layer: int, queue: str
) -> TextTable:
    """Return how much longer than the least each pipeline takes; parameters as for `Pipeline`."""
    rows = []
    for stages in STAGES:
        row = [str(stages)]
        for count in MICRO_BATCHES:
            pipeline = Pipeline(
                stages, count, backward_seconds, transfer_seconds, ops_per_layer, queue
            )
            loss = pipeline.simulated_seconds() / pipeline.least_seconds() - 1
            row.append(f"{abs(loss):.1%}" if abs(loss) < ROUNDING else f"{loss:.1%}")
        rows.append(row)
    title = (
        f"Backward {backward_seconds:g} f, a transfer {transfer_seconds:g} f, "
        f"{ops_per_layer} ops in a layer, {queue}"
    )
    return TextTable(title, [">stages", *(f">m = {count}" for count in MICRO_BATCHES)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each queue, number of ops, transfer time and backward time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ops-per-layer", type=int, nargs="+", default=OPS_PER_LAYER)
    options = parser.parse_args(arguments)
    print("Longer than (m + k - 1)(f + b) and the transfers of one micro-batch, there and back")
    cases = product(QUEUES, options.ops_per_layer, TRANSFER_SECONDS, BACKWARD_SECONDS)
    for queue, ops_per_layer, transfer_seconds, backward_seconds in cases:
        table = loss_table(backward_seconds, transfer_seconds, ops_per_layer, queue)
        print(f"\n{table.markdown()}")


def devices_without_overheads(num_devices: int, bandwidth: float) -> Cluster:
    """Return devices that take nothing but compute times, and bytes at a bandwidth in B/s.

    Examples
    --------
    >>> devices_without_overheads(2, np.inf).device_names
    ('gpu0', 'gpu1')
    """
    return Cluster(
        devices=tuple(
            Device(
                name=f"gpu{number}",
                kind="gpu",
                memory_bytes=2**60,
                op_overhead=0.0,
                transfer_overhead=0.0,
            )
            for number in range(num_devices)
        ),
        bandwidth=np.full((num_devices, num_devices), bandwidth),
        latency=np.zeros((num_devices, num_devices)),
    )


if __name__ == "__main__":
    main()
