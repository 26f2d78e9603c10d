"""How much faster than its definition the simulator is: ``python reference_comparison.py``."""

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np

from placeto_simulator import Simulator, reference
from placeto_simulator.benchmark import PLACEMENTS, median_seconds, problems

NUM_DEVICES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate the same placements with both, and print a table."""
    parser = argparse.ArgumentParser(prog="reference_comparison", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=(3_000, 13_000))
    parser.add_argument("--repeats", type=int, default=5, help="timed placements per case")
    options = parser.parse_args(arguments)
    print("| graph | ops | placement | reference | compiled | |")
    print("|---|---:|---|---:|---:|---:|")
    for num_ops in options.ops:
        for graph, problem in problems(num_ops, NUM_DEVICES, num_ops, seed=0):
            simulator = Simulator(problem, num_threads=1)
            for name, sample in PLACEMENTS.items():
                placements = sample(problem, 100, np.random.default_rng(0))
                simulator.evaluate(placements[:1])
                slow, batch = median_seconds(
                    [
                        partial(reference.simulate, problem, placements[0].tolist()),
                        partial(simulator.evaluate, placements),
                    ],
                    options.repeats,
                )
                compiled = batch / len(placements)
                print(
                    f"| {graph} | {problem.graph.num_ops:,} | {name} | {slow * 1e3:.1f} ms "
                    f"| {compiled * 1e3:.3f} ms | {slow / compiled:.0f} times as fast |"
                )


if __name__ == "__main__":
    main()
