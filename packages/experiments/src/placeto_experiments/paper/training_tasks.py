"""Trials that train a policy in the folder of the experiment."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from placeto.json_files import decode_json
from placeto.placing.placers import fitting
from placeto.placing.warming import warm_up
from placeto.placing.watching import WatchedEvaluator
from placeto.texts import seconds_text
from placeto.trials.curves import evenly_thinned
from placeto.trials.records import Record, Trained
from placeto.trials.trials import Graph, Watch, Workspace
from placeto_baselines import RnnPlacer, RnnSettings
from placeto_experiments.paper.orders import FixedOrders, read_by_rnn
from placeto_graphs import PlacementProblem
from placeto_policy import (
    JsonLinesLog,
    PolicyError,
    Settings,
    Trainer,
    UpdateSummary,
    resume_training,
    save_training,
)
from placeto_simulator import Simulator

UPDATES_BETWEEN_CHECKPOINTS = 10
PLACETO_TRAINING, RNN_TRAINING = "placeto-training", "rnn-training"


@dataclass(frozen=True)
class TrainPlaceto:
    """Trains one policy on some graphs; resumes from the last checkpoint."""

    kind: ClassVar[str] = PLACETO_TRAINING

    policy: str
    # Graphs: each episode of an update has another one. If one graph has several orders, each
    # episode samples an order.
    graphs: tuple[Graph, ...]
    settings: Settings
    seed: int
    # Other graphs, on which the best policy is chosen
    validation: tuple[Graph, ...] = ()

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Train, and return the mean and the best runtime of each update."""
        warm_up("placeto")
        path = workspace.policy_file(self.policy)
        log_path = path.with_suffix(".jsonl")
        path.parent.mkdir(exist_ok=True)
        trainer = self._trainer(workspace, path)
        log = JsonLinesLog(log_path, updates=trainer.updates)
        while trainer.updates < self.settings.updates:
            summary = trainer.update()
            log.write(summary)
            at_end = trainer.updates == self.settings.updates
            if watch.stopping() or at_end or trainer.updates % UPDATES_BETWEEN_CHECKPOINTS == 0:
                save_training(trainer, path)
            watch.update(
                f"update {summary.update} of {self.settings.updates}, "
                f"runtime {seconds_text(summary.runtime)}"
            )
        seconds, updates = _of_log(log_path)
        return Trained(evaluations=trainer.evaluations, seconds=seconds, updates=updates)

    def _trainer(self, workspace: Workspace, path: Path) -> Trainer:
        """Return a new trainer, or that of the checkpoint."""
        orders: dict[str, list[int]] = {graph.name: [] for graph in self.graphs}
        for graph in self.graphs:
            orders[graph.name] += [] if graph.order is None else [graph.order]
        evaluators = [Simulator(workspace.problem(Graph(name)), 1) for name in orders]
        others = [Simulator(workspace.problem(graph), 1) for graph in self.validation]
        if path.exists():
            trainer = resume_training(path, evaluators, validation=others)
        else:
            trainer = Trainer(evaluators, self.settings, seed=self.seed, validation=others)
        for index, numbers in enumerate(orders.values()):
            if numbers:
                reward = self.settings.reward
                ordered = FixedOrders.for_policy(evaluators[index], self.settings, reward=reward)
                ordered.numbers = numbers
                trainer.environments[index] = ordered
        return trainer


@dataclass(frozen=True)
class TrainRnn:
    """Trains one RNN on some graphs."""

    kind: ClassVar[str] = RNN_TRAINING

    policy: str
    graphs: tuple[Graph, ...]
    settings: RnnSettings
    seed: int

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Train, and return the evaluations and seconds."""
        warm_up("rnn")
        began = time.perf_counter()
        total = self.settings.evaluations * len(self.graphs)
        counts = [0] * len(self.graphs)

        def evaluator(index: int, problem: PlacementProblem) -> WatchedEvaluator:
            def report(evaluations: int, best: float) -> None:
                counts[index] = evaluations
                watch.update(f"{sum(counts):,} of {total:,} evaluations, best {seconds_text(best)}")

            return WatchedEvaluator(Simulator(problem, 1), report)

        problems = [read_by_rnn(workspace.problem(graph), graph.order) for graph in self.graphs]
        evaluators = [evaluator(index, problem) for index, problem in enumerate(problems)]
        settings = fitting(self.settings, problems)
        trained = RnnPlacer(settings).train(evaluators, seed=self.seed)
        path = workspace.policy_file(self.policy)
        path.parent.mkdir(exist_ok=True)
        trained.save(path)
        return Trained(
            evaluations=sum(evaluator.evaluations for evaluator in evaluators),
            seconds=time.perf_counter() - began,
        )


def _of_log(path: Path) -> tuple[float, list[tuple[int, int, float, float]]]:
    """Return seconds and curves of a training that may have been interrupted several times."""
    problem = f"{path}: expected a line for each update"
    rows = [decode_json(line, UpdateSummary, problem) for line in path.read_bytes().splitlines()]
    if not rows:
        raise PolicyError(f"{problem}, got none")
    counts = np.diff([row.evaluations for row in rows], prepend=0)
    seconds = float((counts / [row.evaluations_per_second for row in rows]).sum())
    curve = [(row.update, row.evaluations, row.runtime, row.best_runtime) for row in rows]
    return seconds, evenly_thinned(curve)
