"""Seconds, memory and growth of each step of placing synthetic graphs of up to a million ops.

    python lab/million_ops.py --ops 100000 1000000 --devices 8 64 --graphs layered transformer wide

Each problem has a process of its own, whose CPU seconds and peak memory are printed. `--steps`
chooses what is measured; `--write FOLDER` writes problem files instead.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    GeneralEvaluator,
    OpGraph,
    Phase,
    PlacementProblem,
    Placer,
    colocate,
    colocate_by_id,
    contracted,
    micro_batched,
    nested_groupings,
    parse_cluster,
    save_problem,
)

CLUSTERS = {8: "8xa100", 64: "8x(8xa100)"}
MICRO_BATCHES, LAYERS, PARAMETERS, TOKENS, WIDTH = 32, 80, 70e9, 128, 8192
FLOPS = 150e12  # per second, reached
COLUMNS, REACH = 64, 4  # of the layered graph: how far apart in a row an op's inputs may be
BRANCHES, LENGTH = 24, 4  # of a cell of the wide net
SECONDS = 10.0


def layered(num_ops: int, generator: np.random.Generator) -> tuple[OpGraph, NDArray[np.float64]]:
    """Return rows of ops that read one to three tensors of near columns of the row before."""
    readers = np.repeat(np.arange(COLUMNS, num_ops), 3)
    columns = (readers + generator.integers(-REACH, REACH + 1, len(readers))) % COLUMNS
    edges = np.unique(np.stack([(readers // COLUMNS - 1) * COLUMNS + columns, readers], 1), axis=0)
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.integers(0, 10**6, num_ops),
        edges=edges.astype(np.int32),
    )
    return graph, generator.random(num_ops) * 1e-3


def training_step(
    pairs: NDArray[np.int64], output_bytes: NDArray[np.int64], weight_bytes: NDArray[np.int64]
) -> OpGraph:
    """Return the step of N forward ops: (producer, consumer) pairs, and a weight of some ops.

    The backward op of each reads the op's inputs, and the gradients of its readers.
    """
    count, owners = len(output_bytes), np.flatnonzero(weight_bytes)
    forward, backward = np.arange(count), count + np.arange(count)
    weights = 2 * count + np.arange(len(owners))
    updates = weights + len(owners)
    made, read = pairs.T
    edges = np.concatenate(
        [
            pairs,
            np.stack([made, backward[read]], 1),
            np.stack([backward[read], backward[made]], 1),
            np.stack([weights, forward[owners]], 1),
            np.stack([weights, backward[owners]], 1),
            np.stack([2 * count + 2 * len(owners) + np.arange(len(owners)), updates], 1),
        ]
    )
    makers = np.concatenate([forward, backward, weights, updates, backward[owners]])
    of_weights, none = weight_bytes[owners], np.zeros(len(owners), np.int64)
    kinds = [("matmul", Phase.FORWARD, count), ("matmul_backward", Phase.BACKWARD, count)]
    kinds += [("parameter", Phase.FORWARD, len(owners)), ("adam", Phase.UPDATE, len(owners))]
    return OpGraph(
        op_names=tuple(f"{kind}_{i}" for kind, _, number in kinds for i in range(number)),
        op_types=tuple(kind for kind, _, number in kinds for _ in range(number)),
        phases=np.repeat([int(phase) for _, phase, _ in kinds], [n for *_, n in kinds]).astype(
            np.int8
        ),
        parameter_bytes=np.concatenate([np.zeros(2 * count, np.int64), of_weights, none]),
        colocation=np.concatenate([forward, forward, owners, owners]).astype(np.int32),
        tensor_producer=makers.astype(np.int32),
        tensor_bytes=np.concatenate([output_bytes, output_bytes, of_weights, none, of_weights]),
        edges=edges.astype(np.int32),
    )


def _forward_seconds(graph: OpGraph, forward: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds of all ops: backward ops take twice as long, weights and updates none."""
    rest = graph.num_ops - 2 * len(forward)
    return np.concatenate([forward, 2 * forward, np.zeros(rest)])


def transformer(
    num_ops: int, _generator: np.random.Generator
) -> tuple[OpGraph, NDArray[np.float64]]:
    """Return 80 layers in two halves of parallel pieces, in 32 micro-batches."""
    pieces = max((num_ops // (2 * MICRO_BATCHES * LAYERS) - 4) // 4, 1)
    half = 2 + 2 * pieces  # a norm, pieces of two ops, and their sum
    starts = np.arange(2 * LAYERS) * half
    piece = np.arange(pieces)
    inside = np.concatenate(
        [
            np.stack([np.zeros_like(piece), 1 + 2 * piece], 1),
            np.stack([1 + 2 * piece, 2 + 2 * piece], 1),
            np.stack([2 + 2 * piece, np.full_like(piece, half - 1)], 1),
        ]
    )
    between = np.concatenate([[[-1, 0]], [[-1, half - 1]]])
    pairs = (starts[:, None, None] + inside).reshape(-1, 2)
    pairs = np.concatenate([pairs, (starts[1:, None, None] + between).reshape(-1, 2)])
    is_piece = np.tile((np.arange(half) % (half - 1)) > 0, 2 * LAYERS)
    wide = TOKENS * WIDTH * 2
    per_op = PARAMETERS / (2 * LAYERS * 2 * pieces)
    graph = training_step(
        pairs,
        np.where(is_piece, wide // pieces, wide).astype(np.int64),
        np.where(is_piece, 2 * per_op, 0).astype(np.int64),
    )
    seconds = np.where(is_piece, 2 * per_op * TOKENS / FLOPS, wide / 1e12)
    steps = micro_batched(graph, MICRO_BATCHES)
    of_op = dict(zip(graph.op_names, _forward_seconds(graph, seconds).tolist(), strict=True))
    return steps, np.array([of_op.get(name.split("@")[0], 0.0) for name in steps.op_names])


def wide(num_ops: int, generator: np.random.Generator) -> tuple[OpGraph, NDArray[np.float64]]:
    """Return cells of 24 branches of four ops with weights, which read one and join into one."""
    cell = BRANCHES * LENGTH + 1
    starts = np.arange(num_ops // (4 * cell - 2)) * cell
    branch = 1 + np.arange(BRANCHES)[:, None] * LENGTH + np.arange(LENGTH)
    inside = np.concatenate(
        [
            np.stack([np.zeros(BRANCHES, np.int64), branch[:, 0]], 1),
            np.stack([branch[:, :-1].ravel(), branch[:, 1:].ravel()], 1),
            np.stack([branch[:, -1], np.full(BRANCHES, cell)], 1),
        ]
    )
    pairs = (starts[:, None, None] + inside).reshape(-1, 2)
    count = int(pairs.max()) + 1
    joins = np.arange(count) % cell == 0
    graph = training_step(pairs, generator.integers(10**4, 10**6, count), np.where(joins, 0, 10**4))
    return graph, _forward_seconds(graph, generator.exponential(1e-4, count))


GRAPHS: dict[str, Callable[[int, np.random.Generator], tuple[OpGraph, NDArray[np.float64]]]] = {
    "layered": layered,
    "transformer": transformer,
    "wide": wide,
}


def make_problem(kind: str, num_ops: int, num_devices: int) -> PlacementProblem:
    """Return a problem whose finest level has at most 4,096 groups."""
    graph, seconds = GRAPHS[kind](num_ops, np.random.default_rng(0))
    levels = nested_groupings(graph, colocate(graph, [colocate_by_id]))
    queue = "backward-first" if graph.num_micro_batches > 1 else "fifo"
    return PlacementProblem(
        graph=graph,
        cluster=replace(parse_cluster(CLUSTERS[num_devices]), queue=queue),
        compute_time=np.tile(seconds[:, None], (1, num_devices)),
        grouping=levels[-1],
        hierarchy=levels,
    )


def _measured(name: str, function: Callable[[], Any]) -> Any:
    cpu, wall = time.process_time(), time.monotonic()
    result = function()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    print(f"  {name:12} {cpu:8.2f} CPU s {wall:8.2f} s {peak:6.2f} GiB", flush=True)
    return result


def _print_prices(problem: PlacementProblem, evaluator: GeneralEvaluator) -> None:
    """Print the rank correlation of runtimes of blocks of ops with those of the whole graph.

    On 1, 2, 4 ... devices are as many random placements of groups as some with groups in order.
    """
    from scipy.stats import spearmanr  # noqa: PLC0415

    from placeto_baselines.search.contracted_search import SIZES, finer  # noqa: PLC0415
    from placeto_baselines.search.layers import order_of_groups  # noqa: PLC0415

    coarse = contracted(problem, SIZES[0])
    order = order_of_groups(coarse, coarse.grouping)
    place = np.empty(coarse.num_groups, np.int64)
    place[order] = np.arange(len(order))
    generator = np.random.default_rng(0)
    numbers = 2 ** np.arange(int(np.log2(problem.num_devices)) + 1)
    in_order = [place * number // len(place) for number in numbers]
    at_random = [generator.integers(0, number, len(place)) for number in numbers]
    placements = np.stack([*in_order, *at_random]).astype(np.int32)
    whole = evaluator.evaluate(finer(problem, coarse, placements)).runtime
    for size in SIZES:
        blocks = contracted(problem, size)
        prices = evaluator.for_problem(blocks).evaluate(finer(blocks, coarse, placements)).runtime
        correlation = spearmanr(prices, whole).statistic
        ratios = " ".join(f"{ratio:.2f}" for ratio in prices / whole)
        print(f"    {blocks.graph.num_ops} blocks: rank correlation {correlation:.2f}, {ratios}")


def measure(kind: str, num_ops: int, num_devices: int, steps: list[str]) -> None:
    """Print what each step of one problem takes, and what it finds."""
    from placeto_baselines import (  # noqa: PLC0415
        CriticalPathPlacer,
        Heft,
        MEtf,
        MetisPlacer,
        MultilevelSearch,
        PortfolioSearch,
        ScotchPlacer,
        lower_bound,
    )
    from placeto_baselines.search.chains import LayerChain, chain_placement  # noqa: PLC0415
    from placeto_baselines.search.layers import layers_of_groups  # noqa: PLC0415
    from placeto_baselines.search.subsets import placements_without_search  # noqa: PLC0415
    from placeto_simulator import Simulator  # noqa: PLC0415

    problem = make_problem(kind, 2_000, num_devices)
    Simulator(problem).evaluate(np.zeros((1, problem.num_groups), np.int32))  # compiles
    MultilevelSearch(max_evaluations=200).place(problem, Simulator(problem))
    print(f"{kind}, {num_ops:,} ops on {num_devices}", flush=True)
    problem = _measured("problem", lambda: make_problem(kind, num_ops, num_devices))
    simulator = _measured("simulator", lambda: Simulator(problem))
    one = np.zeros((1, problem.num_groups), np.int32)
    _measured("evaluation", lambda: simulator.evaluate(one))
    print(f"  {problem}", flush=True)

    def simple() -> NDArray[np.int32]:
        choices = placements_without_search(problem, simulator)
        for choice in choices:
            print(f"    {choice.kind} {choice.result.runtime:.6g}", flush=True)
        return choices[0].result.placement

    def chain() -> NDArray[np.int32] | None:
        layers, _ = layers_of_groups(problem)
        chain = LayerChain(problem, simulator, layers)
        return chain_placement(chain, range(num_devices), 30)

    search = PortfolioSearch(seconds=SECONDS, clock=time.process_time)
    placers: dict[str, Placer] = {
        "metis": MetisPlacer(),
        "scotch": ScotchPlacer(),
        "heft": Heft(),
        "m-etf": MEtf(),
        "critical": CriticalPathPlacer(),
        "multilevel": MultilevelSearch(seconds=SECONDS, clock=time.process_time),
        "place": search,
    }
    other: dict[str, Callable[[], object]] = {
        "prices": lambda: _print_prices(problem, simulator),
        "timeline": lambda: simulator.timeline(one[0]),
        "bound": lambda: lower_bound(problem),
        "simple": simple,
        "chain": chain,
    }
    for step in steps:
        if step in placers:
            result = _measured(step, partial(placers[step].place, problem, simulator))
            placement = result.placement
            print(f"    {result.evaluations} evaluations")
            if step == "place":
                for choice in search.choices:
                    print(f"    {choice.kind} {choice.result.runtime:.6g}")
                print("   ", result.curve[:12].tolist())
        else:
            placement = _measured(step, other[step])
        if isinstance(placement, np.ndarray):
            batch = simulator.evaluate(placement[None])
            lacks = (batch.peak_memory[0] / problem.cluster.memory_bytes).max()
            print(f"    {batch.runtime[0]:.6g} s, memory {lacks:.2f}", flush=True)


def main() -> None:
    """Measure each problem in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, nargs="+", default=(100_000, 300_000, 1_000_000))
    parser.add_argument("--devices", type=int, nargs="+", default=(8, 64))
    parser.add_argument("--graphs", nargs="+", default=tuple(GRAPHS))
    parser.add_argument("--steps", nargs="*", default=("simple", "metis", "multilevel", "place"))
    parser.add_argument("--write", type=Path, help="folder for problem files")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for kind in options.graphs:
        for num_devices in options.devices:
            for num_ops in options.ops:
                if options.write:
                    problem = make_problem(kind, num_ops, num_devices)
                    path = options.write / f"{kind}-{num_ops}-{num_devices}.json.gz"
                    save_problem(problem, path)
                elif options.here:
                    measure(kind, num_ops, num_devices, list(options.steps))
                else:
                    case = ["--ops", num_ops, "--devices", num_devices, "--graphs", kind]
                    arguments = [*map(str, case), "--steps", *options.steps, "--here"]
                    subprocess.run([sys.executable, __file__, *arguments], check=False)  # noqa: S603


if __name__ == "__main__":
    main()
