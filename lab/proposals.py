"""What ``placeto place`` names, beside what people write down: ``python lab/proposals.py``.

Each problem is one of `MODELS` with few layers, a batch and devices, drawn at random. The margin is
the time of the best simple form over that of the placement that is named. Simple forms are one
device, the best chain of layers, and copies on all devices in equal parts, with whole and with
sharded weights. A split that is less than 1 % faster than fewer devices is not named.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placeto.placing.copies import place_source
from placeto.placing.place_problem import PlaceSettings
from placeto.problems.making import placement_by_copies, problem_of, read_problem, read_source
from placeto.problems.options import ProblemOptions
from placeto.progress import PlainProgress
from placeto_baselines import LayerChain
from placeto_baselines.placement_trials import evaluated, rank_of_result
from placeto_baselines.search.chains import chain_placement
from placeto_baselines.search.layers import layers_of_groups
from placeto_graphs import PlacementProblem
from placeto_simulator import Simulator

MODELS: dict[str, dict[str, object]] = {
    "nmt-2": {"steps": 4, "units": 512, "vocabulary_size": 8000},
    "transformers:bert": {"num_hidden_layers": 2, "sequence_length": 128},
    "transformers:gpt2": {"n_layer": 2, "sequence_length": 256},
    "transformers:resnet": {"depths": [1, 1, 1, 1]},
}
BATCHES = (8, 24, 64)
CLUSTERS = (
    *("2xv100", "4xv100", "8xv100", "4xk80", "4xrtx3090", "2x(2xrtx3090)", "2x(4xv100)"),
    *("1xv100+1xp100", "2xp100+2xk80", "1xrtx4090+1xrtx3090+2xrtx3060", "1xcpu+2xv100"),
)
CHAINS = 500  # that are evaluated
Rank = tuple[bool, float]  # whether memory lacks, and seconds


def ranked(problem: PlacementProblem, placement: NDArray[np.int32] | None) -> Rank:
    """Return the rank of a placement, the last one of none."""
    if placement is None:
        return True, np.inf
    return rank_of_result(problem, evaluated(Simulator(problem, 1), placement))


def simple_forms(problem: PlacementProblem, text: str, sizes: dict[str, object]) -> Iterator[Rank]:
    """Yield what people write down without a search."""
    devices = problem.cluster.accelerators
    for device in devices.tolist():
        yield ranked(problem, np.full(problem.num_groups, device, np.int32))
    layers = LayerChain(problem, Simulator(problem, 1), layers_of_groups(problem)[0])
    yield ranked(problem, chain_placement(layers, range(problem.num_devices), CHAINS))
    for shard in (False, True):
        options = {"sizes": sizes, "copies": len(devices), "shard": shard}
        copies = read_problem(text, problem.cluster, **options)
        ops = placement_by_copies(copies)
        yield ranked(copies, None if ops is None else copies.placement_of_ops(ops))


def main() -> None:
    """Print a line for each problem, and the least margin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    arguments = parser.parse_args()
    margins = []
    for seed in range(arguments.first, arguments.first + arguments.problems):
        rng = np.random.default_rng(seed)
        text, batch = str(rng.choice(list(MODELS))), int(rng.choice(BATCHES))
        cluster, sizes = str(rng.choice(CLUSTERS)), {**MODELS[text], "batch_size": batch}
        options = ProblemOptions.of(cluster, sizes=sizes)
        source = read_source(text, options)
        problem = problem_of(source, options)
        settings = PlaceSettings(max_evaluations=300, seed=seed)
        placed = place_source(source, problem, options, None, settings, PlainProgress(None))
        lacks, seconds = rank_of_result(placed.problem, placed.result)
        form_lacks, form_seconds = min(simple_forms(problem, text, sizes))
        margin = form_seconds / seconds - 1 if lacks == form_lacks else np.inf * (1 - 2 * lacks)
        margins.append(margin)
        print(f"{text}, {batch}, {cluster}: {placed.placer}, {seconds:.4f} s, margin {margin:.1%}")
    print(f"margins: {min(margins):.1%} to {max(margins):.1%}, median {np.median(margins):.1%}")


if __name__ == "__main__":
    main()
