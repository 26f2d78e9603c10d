"""Placements of pipelines whose waits are those of their own stages."""

from dataclasses import replace
from itertools import combinations, permutations

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from placeto.placing.place_problem import PlaceSettings, place_scheduled
from placeto.progress import PlainProgress
from placeto_graphs import (
    Cluster,
    Device,
    PlacementProblem,
    from_networkx,
    micro_batched_problem,
    scheduled,
)
from placeto_simulator import Simulator

NUM_DEVICES, MICRO_BATCHES = 3, 8


class Chains:
    """All chains of a random problem, whose devices have little more memory than one of them."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.num_layers = int(generator.integers(6, 9))
        step, seconds, activation = nx.DiGraph(), {"samples": 0.0}, 10_000
        step.add_node("samples", colocation=0)
        for layer in range(self.num_layers):
            weights = int(generator.integers(1, 6) * 10_000)
            forward, backward = f"forward{layer}", f"backward{layer}"
            step.add_node(forward, colocation=layer, parameter_bytes=weights)
            step.add_node(backward, colocation=layer, phase=1)
            previous = f"forward{layer - 1}" if layer else "samples"
            step.add_edge(previous, forward, bytes=activation)
            activation = int(generator.integers(2, 12) * 10_000)
            step.add_edge(forward, backward, bytes=activation)
            seconds[forward] = generator.uniform(0.5, 2.0)
            seconds[backward] = 2 * seconds[forward]
            if layer:
                step.add_edge(backward, f"backward{layer - 1}", bytes=activation)
        slowness = np.array([1.0, *generator.uniform(1.0, 4.0, NUM_DEVICES - 1)])
        graph = from_networkx(step)
        self.problem = micro_batched_problem(
            PlacementProblem(
                graph=graph,
                cluster=cluster(np.full(NUM_DEVICES, 2**40)),
                compute_time=np.array([seconds[name] for name in graph.op_names])[:, None]
                * slowness,
            ),
            MICRO_BATCHES,
        )
        whole = [chain for chain in self.all() if len(np.unique(chain)) == NUM_DEVICES]
        _, peaks = self.costs(whole[generator.integers(len(whole))])
        devices = cluster((peaks * 1.03).astype(np.int64))
        self.problem = replace(self.problem, cluster=replace(devices, queue="backward-first"))

    def all(self) -> list[NDArray[np.int32]]:
        """Return each cut of the layers, on each order of some devices."""
        return [
            np.repeat(np.array(order, np.int32), np.diff([0, *cuts, self.num_layers]))
            for count in range(1, NUM_DEVICES + 1)
            for cuts in combinations(range(1, self.num_layers), count - 1)
            for order in permutations(range(NUM_DEVICES), count)
        ]

    def costs(self, chain: NDArray[np.int32]) -> tuple[float, NDArray[np.int64]]:
        """Return the runtime and the peaks of a chain in its own schedule."""
        waiting = scheduled(self.problem, "1f1b", chain)
        batch = Simulator(waiting, num_threads=1).evaluate(chain[None])
        return float(batch.runtime[0]), batch.peak_memory[0]

    def best(self) -> float:
        """Return the runtime of the best chain that fits."""
        costs = [self.costs(chain) for chain in self.all()]
        memory = self.problem.cluster.memory_bytes
        return min(runtime for runtime, peaks in costs if (peaks <= memory).all())


def cluster(memory: NDArray[np.int64]) -> Cluster:
    """Return devices with some memory, and links of 0.5 MB/s."""
    names = [f"gpu{index}" for index in range(len(memory))]
    return Cluster(
        devices=tuple(
            Device(name, "gpu", int(num_bytes), 0.0, 0.0)
            for name, num_bytes in zip(names, memory, strict=True)
        ),
        bandwidth=np.full((len(memory), len(memory)), 5e5),
        latency=np.zeros((len(memory), len(memory))),
    )


@pytest.mark.parametrize("seed", range(24))
def test_no_chain_of_layers_beats_a_pipeline_where_memory_is_scarce(seed: int) -> None:
    chains = Chains(seed)
    settings = PlaceSettings(max_evaluations=500)
    placed = place_scheduled(chains.problem, "1f1b", settings, PlainProgress(None))
    assert placed.result.fits(chains.problem.cluster)
    assert placed.result.runtime <= chains.best() * 1.001
    again = scheduled(chains.problem, "1f1b", placed.result.placement)
    assert np.array_equal(again.graph.waits, placed.problem.graph.waits)
    batch = Simulator(again, num_threads=1).evaluate(placed.result.placement[None])
    assert batch.runtime[0] == placed.result.runtime
    for choice in placed.choices:
        runtime, peaks = chains.costs(choice.result.placement)
        assert runtime == choice.result.runtime
        assert np.array_equal(peaks, choice.result.peak_memory)
