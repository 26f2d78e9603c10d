"""The search of `placeto place` against the best chain of layers, on ten pipelines.

    python lab/pipelines.py --evaluations 4000 --seeds 3 [NAME ...]

The chain is that of a person with patience: all orders of the devices (24 of them at random, where
there are more), each from the best of 24 random splits by moving one cut or two by a layer. This
shares no code with the search, but for the layers.
"""

import argparse
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto import read_problem
from placeto.placing.place_problem import PlaceSettings, place_problem, search_problem
from placeto.progress import PlainProgress
from placeto_baselines.search.layers import layers_of_groups
from placeto_graphs import PlacementProblem, placement_ranks
from placeto_simulator import Simulator

ORDERS = SPLITS = 24
# Source, options, devices, micro-batches, and the part of the memory that there is.
PROBLEMS: dict[str, tuple[str, dict[str, Any], str, int, float]] = {
    "gpt, 2 unlike": ("transformers:gpt2", {"batch_size": 8}, "1xrtx4090+1xrtx3060", 8, 1.0),
    "gpt, scarce": ("transformers:gpt2", {"batch_size": 8}, "1xrtx4090+2xrtx3060", 8, 0.25),
    "gpt, 1": ("transformers:gpt2", {"batch_size": 8}, "2x(1xv100+1xk80)", 1, 1.0),
    "gpt, 32": ("transformers:gpt2", {"batch_size": 32}, "2x(1xv100+1xk80)", 32, 1.0),
    "bert, 8": ("transformers:bert", {"batch_size": 16}, "1x(2xv100)+2x(1xrtx3060)", 8, 1.0),
    "bert, 8 on 8": ("transformers:bert", {"batch_size": 16}, "1x(4xv100)+2x(2xk80)", 8, 1.0),
    "bert, scarce": ("transformers:bert", {"batch_size": 16}, "2x(1xv100+1xrtx3060)", 8, 0.1),
    "vit, 1": ("timm:vit_base_patch16_224", {"batch_size": 32}, "1xv100+2xk80", 1, 1.0),
    "vit, 8": ("timm:vit_base_patch16_224", {"batch_size": 32}, "2x(1xv100+1xk80)", 8, 1.0),
    "nmt, 8": ("nmt-2", {}, "1xv100+2xk80", 8, 1.0),
}


def read_pipeline(name: str) -> PlacementProblem:
    """Return a problem at the level where a search ends."""
    source, sizes, cluster, micro_batches, memory = PROBLEMS[name]
    problem = read_problem(source, cluster, micro_batches=micro_batches, sizes=sizes)
    devices = tuple(
        replace(device, memory_bytes=int(memory * device.memory_bytes))
        for device in problem.cluster.devices
    )
    return search_problem(replace(problem, cluster=replace(problem.cluster, devices=devices)))


def best_chain(problem: PlacementProblem) -> tuple[bool, float]:
    """Return whether the best chain lacks memory, and its cost."""
    generator = np.random.default_rng(0)
    layers, devices = layers_of_groups(problem)[0], problem.num_devices
    count, simulator = int(layers.max()) + 1, Simulator(problem)

    def ranks(order: tuple[int, ...], cuts: NDArray[np.int64]) -> list[tuple[bool, float]]:
        stage = (layers[None, :, None] >= cuts[:, None, :]).sum(axis=2)
        batch = simulator.evaluate(np.array(order, np.int32)[stage])
        return placement_ranks(batch, problem.cluster.memory_bytes)

    orders = list(itertools.permutations(range(devices)))
    if len(orders) > ORDERS:
        orders = [orders[index] for index in generator.permutation(len(orders))[:ORDERS]]
    steps = [np.zeros(devices - 1, np.int64)]
    for pair in itertools.product(range(devices - 1), repeat=2):
        for step in itertools.product((-1, 1), repeat=2):
            steps.append(np.zeros(devices - 1, np.int64))
            np.add.at(steps[-1], list(pair), step)
    best = (True, np.inf)
    for order in orders:
        cuts = np.sort(generator.integers(0, count + 1, (SPLITS, devices - 1)), axis=1)
        rank = (True, np.inf)
        while True:
            ranks_of_cuts = ranks(order, cuts)
            if min(ranks_of_cuts) >= rank:
                break
            rank = min(ranks_of_cuts)
            best_cuts = cuts[ranks_of_cuts.index(rank)]
            cuts = np.sort(np.clip(best_cuts + np.stack(steps), 0, count), axis=1)
        best = min(best, rank)
    return best


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--evaluations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for name in options.names:
        problem = read_pipeline(name)
        lacks, chain = best_chain(problem)
        costs = []
        for seed in range(options.seeds):
            settings = PlaceSettings(max_evaluations=options.evaluations, seed=seed)
            placed = place_problem(problem, settings, PlainProgress(None))
            chains = [choice for choice in placed.choices if choice.kind == "chain"]
            costs.append(placed.result.runtime if placed.result.fits(problem.cluster) else np.inf)
        row = f"{name}: chain {chain:.4g} s{' lacks memory' if lacks else ''}, own chain "
        row += f"{chains[0].result.runtime:.4g} s, " if chains else "none, "
        relative = ", ".join(f"{cost / chain:.3f}" for cost in costs)
        print(row + f"search {relative} of the chain", flush=True)


if __name__ == "__main__":
    main()
