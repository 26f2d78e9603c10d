"""Learning on the simulator, and on measured steps: ``python lab/measured_curves.py nmt-2``.

The model is one of ``fidelity.py``, in its size there. Two device processes of this
machine run the steps, so keep it idle. The table and the picture are those of
docs/results/measured-curves.md.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fidelity import RunnableModel, runnable_models
from numpy.typing import NDArray

from placeto.texts import TextTable, seconds_text
from placeto_execution import Executor
from placeto_experiments.paper.pages import bands_figure, spread
from placeto_experiments.paper.plan import without_simulated_features
from placeto_graphs import Evaluator, PlacementProblem
from placeto_policy import PlacetoPlacer, Settings, UpdateSummary
from placeto_simulator import Simulator

SIMULATOR, PROCESSES = "Simulator", "Two device processes"
RUNS_OF_RESULT = 9


class Learned(NamedTuple):
    """A training on one graph, in seconds."""

    runtime: float  # the best that it saw
    measured: float  # of its placement
    single: float  # of one device, measured
    evaluations: int
    seconds: float
    episodes: list[tuple[int, float]]  # of each update the mean runtime at the end of its episodes


def learn(
    model: RunnableModel,
    problem: PlacementProblem,
    where: str,
    settings: Settings,
    evaluations: int,
    seed: int,
) -> Learned:
    """Train a policy by the seconds of simulated or of measured steps, and measure its result."""
    episodes: list[tuple[int, float]] = []

    def on_update(summary: UpdateSummary, _updates: int) -> None:
        print(f"{where}: update {summary.update}, {seconds_text(summary.runtime)}", file=sys.stderr)
        episodes.append((summary.update, summary.runtime))

    simulator = Simulator(problem, num_threads=1)
    with Executor(
        problem, model.step(), model.devices.names, schedule=simulator.timeline
    ) as executor:

        def measured(placement: NDArray[np.int32]) -> float:
            timelines = executor.measure(placement, RUNS_OF_RESULT)
            return float(np.median([timeline.runtime for timeline in timelines]))

        cost: Evaluator = executor if where == PROCESSES else simulator
        placer = PlacetoPlacer(max_evaluations=evaluations, settings=settings, on_update=on_update)
        began = time.perf_counter()
        result = placer.place(problem, cost, seed=seed)
        seconds = time.perf_counter() - began
        return Learned(
            runtime=float(result.curve[-1, 1]),
            measured=measured(result.placement),
            single=measured(np.zeros(problem.num_groups, np.int32)),
            evaluations=result.evaluations,
            seconds=seconds,
            episodes=episodes,
        )


def table(trainings: dict[str, list[Learned]]) -> TextTable:
    """Return means over the seeds, with the minimum and the maximum in brackets."""

    def cell(seconds: Iterable[float]) -> str:
        return spread(seconds, seconds_text)

    columns = ["learned on", ">episodes at the end", ">best seen there"]
    columns += [">its placement, measured", ">one process, measured", ">evaluations", ">learning"]
    rows = [
        [
            where,
            cell(training.episodes[-1][1] for training in seeds),
            cell(training.runtime for training in seeds),
            cell(training.measured for training in seeds),
            cell(training.single for training in seeds),
            f"{seeds[0].evaluations:,}",
            cell(training.seconds for training in seeds),
        ]
        for where, seeds in trainings.items()
    ]
    return TextTable("", columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nmt-2")
    parser.add_argument("--evaluations", type=int, default=1620, help="of each training")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--picture", type=Path, default=Path("measured-curves.png"))
    options = parser.parse_args(arguments)
    (model,) = runnable_models([options.model])
    settings = replace(without_simulated_features(Settings()), reward="terminal")
    problem = model.profiled()
    trainings = {
        where: [
            learn(model, problem, where, settings, options.evaluations, seed)
            for seed in range(options.seeds)
        ]
        for where in (SIMULATOR, PROCESSES)
    }
    print(table(trainings).markdown())
    curves = {
        where: [np.array(training.episodes) for training in seeds]
        for where, seeds in trainings.items()
    }
    bands_figure(curves, "updates", model.source).savefig(options.picture)


if __name__ == "__main__":
    main()
