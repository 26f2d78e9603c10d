"""``placeto experiment measured-curves``: learning on the simulator, and on measured steps."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from placeto.placing.watching import WatchedEvaluator
from placeto.texts import seconds_text
from placeto.trials.records import Learned, Record
from placeto.trials.trials import Experiment, Graph, Page, Results, Watch, Workspace, placing
from placeto_execution import Executor
from placeto_experiments.paper.fidelity import runnable_models
from placeto_experiments.paper.fidelity_tasks import RunnableModel, profiling
from placeto_experiments.paper.figures import bands_figure
from placeto_experiments.paper.placers import without_simulated_features
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.published import SOURCE
from placeto_experiments.paper.statistics import spread
from placeto_experiments.paper.wording import markdown_table
from placeto_graphs import Evaluator
from placeto_policy import PlacetoPlacer, Settings, UpdateSummary
from placeto_simulator import Simulator

SIMULATOR, PROCESSES = "simulator", "processes"
TITLES = {SIMULATOR: "Simulator", PROCESSES: "Two device processes"}
RUNS_OF_RESULT = 9


def _runtime(executor: Executor, placement: NDArray[np.int32]) -> float:
    timelines = executor.measure(placement, RUNS_OF_RESULT)
    return float(np.median([timeline.runtime for timeline in timelines]))


@dataclass(frozen=True)
class LearnOn:
    """Trains a policy on one graph, by the seconds of simulated or of measured steps."""

    where: str  # ``"simulator"`` or ``"processes"``
    graph: Graph
    model: RunnableModel
    settings: Settings
    evaluations: int  # number of evaluations
    seed: int

    @property
    def kind(self) -> str:
        """The source of its costs."""
        return self.where

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return its learning curve, and the measured seconds of the result."""
        problem = workspace.problem(self.graph)
        step = self.model.step()
        with ExitStack() as stack:
            simulator = Simulator(problem, num_threads=1)
            executor = stack.enter_context(
                Executor(problem, step, self.model.devices.names, schedule=simulator.timeline)
            )
            cost: Evaluator = executor if self.where == PROCESSES else simulator
            episodes: list[tuple[int, float]] = []

            def learn(summary: UpdateSummary, _updates: int) -> None:
                episodes.append((summary.update, summary.runtime))

            def report(evaluations: int, best: float) -> None:
                far = f"{evaluations:,} evaluations, {len(episodes):,} updates"
                watch.update(f"{far}, best {seconds_text(best)}")

            placer = PlacetoPlacer(
                training_evaluations=self.evaluations, settings=self.settings, on_update=learn
            )
            began = time.perf_counter()
            result = placer.place(problem, WatchedEvaluator(cost, report), seed=self.seed)
            seconds = time.perf_counter() - began
            measured = _runtime(executor, result.placement)
            single = np.zeros(problem.num_groups, np.int32)
            alone = _runtime(executor, single)
        return Learned(
            runtime=float(result.curve[-1, 1]),
            measured=measured,
            single=alone,
            evaluations=result.evaluations,
            learning_seconds=seconds,
            episodes=episodes,
        )


def measured_curves(source: str, plan: Plan) -> Experiment:
    """Return the experiment: a policy learns one graph on the simulator and on device processes.

    The source is one of the models of `fidelity`. The policy reads no simulated features, so that
    both trainings differ in their costs alone. The scales have terminal rewards, which evaluate one
    placement an episode.
    """
    ((graph, model),) = runnable_models([source], plan).items()
    settings = without_simulated_features(plan.settings)
    profile = profiling(graph, model)
    trials = [profile]
    for seed in plan.seeds:
        for where in TITLES:
            task = LearnOn(where, graph, model, settings, plan.scale.number("evaluations"), seed)
            learning = placing(task, where, graph, seed, profile.name)
            trials.append(replace(learning, measured=True))
    return Experiment(
        name="measured-curves",
        title=f"Learning {source} on the simulator and on device processes",
        options={"source": source, "sizes": dict(model.sizes)},
        problems={},
        trials=trials,
        page=partial(_page, graph=graph, seeds=plan.seeds, reward=settings.reward),
    )


def _page(results: Results, graph: Graph, seeds: Sequence[int], reward: str) -> Page:
    picture = f"{graph.name}.png"
    records = {
        where: [results.record(Learned, where, graph.label, seed) for seed in seeds]
        for where in TITLES
    }

    def told(name: str) -> Callable[[str], str]:
        return lambda where: spread(getattr(one, name) for one in records[where]).text(seconds_text)

    table = markdown_table(
        TITLES,
        {
            "learned on": TITLES.__getitem__,
            ">episodes at the end": lambda where: spread(
                record.episodes[-1][1] for record in records[where]
            ).text(seconds_text),
            ">best seen there": told("runtime"),
            ">its placement, measured": told("measured"),
            ">one process, measured": told("single"),
            ">evaluations": lambda where: f"{records[where][0].evaluations:,}",
            ">seconds of learning": told("learning_seconds"),
        },
    )
    figure = bands_figure(
        {
            TITLES[where]: [np.array(record.episodes, np.float64) for record in found]
            for where, found in records.items()
        },
        "updates",
        graph.name,
    )
    parts = [
        f"{SOURCE} show such curves on their simulator and on hardware, where they run closely "
        "together. Here the hardware is two device processes on cores of one machine. Each step is "
        f"measured once while learning, and {RUNS_OF_RESULT} times at the end (medians). The "
        f"policy reads no simulated features, so that both differ in the costs alone; rewards are "
        f"{reward}.",
        table,
        "*Episodes at the end* and *best seen there* are simulated seconds on the simulator, and "
        "measured seconds on device processes. Cells are means over the seeds, with the least and "
        "the most in brackets.",
        f"![Learning curves]({picture})",
        "Mean runtime of the placements at the end of the episodes of an update. Lines are means "
        "over the seeds; bands are from the least to the most.",
    ]
    return Page(parts, {picture: figure})
