"""How far paced steps are from simulated ones: ``python tests/execution_paced.py``.

Ops compute nothing and take the time that the problem says, times the pace. What is left of a step
is its queues, links and order, on two threads.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import spearmanr

from placeto_execution import EmptyStep, Executor
from placeto_graphs import PlacementProblem, colocate, merge_and_colocate, parse_cluster
from placeto_simulator import Simulator
from placeto_workloads import cost_model, load

NMT_SIZES = {"steps": 8, "batch_size": 32, "units": 512, "vocabulary_size": 8000}
MODELS: Mapping[str, Mapping[str, int]] = {
    "inception-v3": {"batch_size": 8},
    "nasnet": {"batch_size": 2},
    "nmt-2": NMT_SIZES,
}


def problem_of(name: str) -> PlacementProblem:
    """Return a model on two K80s, in 32 groups."""
    graph = load(name, **MODELS[name])
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=np.stack([cost_model(graph, "k80")] * 2, axis=1),
        grouping=merge_and_colocate(graph, colocate(graph), num_groups=32),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace", type=float, default=40.0)
    parser.add_argument("--placements", type=int, default=12)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args(arguments)
    print("| model | ops | a step takes | mean error | worst | rank correlation |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in options.models:
        problem = problem_of(name)
        generator = np.random.default_rng(0)
        placements = generator.integers(0, 2, (options.placements, problem.num_groups), np.int32)
        simulated = Simulator(problem, num_threads=1).evaluate(placements).runtime
        step = EmptyStep(problem.graph)
        with Executor(problem, step, ["cpu:0", "cpu:1"], pace=options.pace) as executor:
            measured = executor.evaluate(placements).runtime
        error = np.abs(measured / simulated - 1)
        span = f"{simulated.min() * 1e3:.1f} to {simulated.max() * 1e3:.1f} ms"
        print(
            f"| {name} | {problem.graph.num_ops} | {span} | {error.mean():.2%} "
            f"| {error.max():.2%} | {spearmanr(simulated, measured).statistic:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
