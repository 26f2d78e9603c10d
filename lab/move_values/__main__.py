"""Build problems, learn what their moves are worth, and place with it, beside a search as long.

    cd lab
    python -m move_values build training problems/training --shapes 24
    python -m move_values collect problems/training moves-0.npz
    python -m move_values learn moves-0.npz -o values-0.safetensors
    python -m move_values collect problems/training moves-1.npz --values values-0.safetensors
    python -m move_values evaluate values-1.safetensors problems/validation

The notes are in ../notes/move-values.md.
"""

import argparse
import time
from dataclasses import fields
from pathlib import Path
from typing import cast

import numpy as np

from move_values.learning import LabelledMoves, LearningSettings, labelled_moves, learn
from move_values.network import MoveValues, load_move_values, save_move_values
from move_values.placer import MoveValuePlacer
from placeto_baselines import CriticalPathPlacer, Heft, MultilevelSearch
from placeto_capture.costs.roofline import cost_models
from placeto_graphs import (
    PlacementProblem,
    colocate,
    load_problem,
    memory_penalised_runtime,
    nested_groupings,
    save_problem,
)
from placeto_simulator import Simulator
from pretraining.problems import Part, problem_set, random_cluster, with_drawn_memory
from pretraining.random_steps import SHAPES

SIZES = (32, 64, 128, 256, 512, 1024)


def build(part: Part, folder: Path, shapes: int) -> None:
    """Write problems of a part of the problem set, with levels of up to 1,024 groups."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, entry in enumerate(problem_set(part)):
        shape, _, seed = entry.graph.name.rpartition("-")
        if shape in SHAPES and int(seed) >= shapes:
            continue
        generator = np.random.default_rng(number)
        graph = entry.graph.build()
        cluster = with_drawn_memory(random_cluster(generator), graph, generator)
        seconds = cost_models(graph, dict.fromkeys(device.kind for device in cluster.devices))
        groups = colocate(graph, entry.graph.colocation_rules)
        sizes = [size for size in SIZES if size < groups.num_groups] or [groups.num_groups]
        levels = nested_groupings(graph, groups, sizes)
        problem = PlacementProblem(
            graph=graph,
            cluster=cluster,
            compute_time=np.stack([seconds[device.kind] for device in cluster.devices], axis=1),
            grouping=levels[-1],
            hierarchy=levels,
        )
        save_problem(problem, folder / f"{entry.name}.json.gz")


def collect(folder: Path, output: Path, values: MoveValues) -> None:
    """Label moves of all problems of a folder."""
    found = []
    for path in sorted(folder.iterdir()):
        problem = load_problem(path)
        generator = np.random.default_rng(0)
        found += labelled_moves(problem, Simulator(problem, num_threads=1), values, generator)
        print(path.name, len(found), flush=True)
    arrays = {
        f"{number}.{name}": value
        for number, each in enumerate(found)
        for name, value in vars(each).items()
    }
    np.savez(output, **arrays)


def read(path: Path) -> list[LabelledMoves]:
    """Return the labelled moves of a file."""
    with np.load(path) as arrays:
        names = [field.name for field in fields(LabelledMoves)]
        return [
            LabelledMoves(*(arrays[f"{number}.{name}"] for name in names))
            for number in range(len(arrays.files) // len(names))
        ]


def evaluate(values: MoveValues, folder: Path) -> None:
    """Print what placements cost over the best that is found in 2 s, with searches as long."""
    rows = []
    for path in sorted(folder.iterdir()):
        problem = load_problem(path)
        simulator = Simulator(problem, num_threads=1)
        memory = problem.cluster.memory_bytes
        placer = MoveValuePlacer(values=values, starts=(Heft(), CriticalPathPlacer()))
        MultilevelSearch(evaluations=50).place(problem, simulator)  # compiles
        began = time.process_time()
        placed = placer.place(problem, simulator)
        seconds = time.process_time() - began
        searches = [
            MultilevelSearch(seconds, clock=time.process_time),
            MultilevelSearch(evaluations=placed.evaluations),
            MultilevelSearch(2.0, clock=time.process_time),
        ]
        found = [placed, *(search.place(problem, simulator, seed=1) for search in searches)]
        rows.append(
            [
                float(memory_penalised_runtime(simulator.evaluate(each.placement[None]), memory)[0])
                for each in found
            ]
        )
        ratios = np.array(rows[-1]) / min(rows[-1])
        print(f"{path.name}: {ratios.round(3)} in {seconds:.2f} s", flush=True)
    ratios = np.array(rows) / np.min(rows, axis=1, keepdims=True)
    print("values, search as long, as many, 2 s:", np.exp(np.log(ratios).mean(axis=0)).round(3))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="move_values", description=__doc__)
    parser.add_argument("what", choices=("build", "collect", "learn", "evaluate"))
    parser.add_argument("given", nargs="+")
    parser.add_argument("--values", type=Path)
    parser.add_argument("--shapes", type=int, default=24)
    parser.add_argument("-o", "--output", type=Path, default=Path("values.safetensors"))
    given = parser.parse_args()
    if given.what == "build":
        build(cast(Part, given.given[0]), Path(given.given[1]), given.shapes)
    elif given.what == "collect":
        values = load_move_values(given.values) if given.values else MoveValues()
        collect(Path(given.given[0]), Path(given.given[1]), values)
    elif given.what == "learn":
        moves = [each for path in given.given for each in read(Path(path))]
        save_move_values(learn(moves, LearningSettings()), given.output)
    else:
        evaluate(load_move_values(given.given[0]), Path(given.given[1]))


if __name__ == "__main__":
    main()
