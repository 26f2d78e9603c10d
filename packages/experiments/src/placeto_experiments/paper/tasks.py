"""Trials of experiments alone: those that place one graph, also in an order, and trainings."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from placeto.outputs import decode_json
from placeto.placing.evaluators import STEP
from placeto.placing.place_problem import best_text
from placeto.placing.placers import fitting, warm_up
from placeto.progress import cpu_seconds
from placeto.texts import seconds_text
from placeto.training.loop import run_training
from placeto.trials.placing_tasks import Place
from placeto.trials.records import Episode, Outcome, Trained, TrialRecord
from placeto.trials.trials import Graph, StoppedError, Watch, Workspace
from placeto_baselines import LocalSearch, RnnPlacer, RnnSettings, TrainedRnnPlacer, lower_bound
from placeto_baselines.devices import random_placements
from placeto_baselines.placement_trials import WatchedEvaluator
from placeto_graphs import (
    BestSoFar,
    Evaluator,
    Grouping,
    PlacementProblem,
    PlacementResult,
    Placer,
    memory_penalised_runtime,
)
from placeto_policy import (
    JsonLinesLog,
    PlacementEnvironment,
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Settings,
    Trainer,
    UpdateSummary,
    load_policy,
    most_evaluations,
    resume_training,
)
from placeto_simulator import Simulator

RANDOM_PLACEMENTS = 100
HILL_CLIMBING_EVALUATIONS = 5000
UPDATES_BETWEEN_CHECKPOINTS = 10


def random_order(num_groups: int, order_index: int) -> NDArray[np.int64]:
    """Return int64[G], one of all orders of the groups; each number has its own.

    Examples
    --------
    >>> random_order(5, 1)
    array([4, 0, 1, 2, 3])
    """
    return np.random.default_rng(order_index).permutation(num_groups)


class FixedOrders(PlacementEnvironment):
    """Episodes that visit the groups in one of some numbered orders, sampled uniformly."""

    order_indices: Sequence[int]  # set before the first episode

    def reset(self, **options: Any) -> None:
        """Begin new episodes; see `PlacementEnvironment.reset`."""
        groups = self.evaluator.problem.num_groups
        order_indices = [
            self.order_indices[generator.integers(len(self.order_indices))]
            for generator in options["generators"]
        ]
        order = np.stack([random_order(groups, order_index) for order_index in order_indices])
        super().reset(**{**options, "order": order})


@dataclass(frozen=True)
class PlaceInOrder:
    """Places greedily with a policy of Placeto in a numbered order."""

    policy: PlacementPolicy
    order_index: int
    name: str = "placeto"

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002 (nothing is drawn)
    ) -> PlacementResult:
        """Return the placement at the end of the greedy episode."""
        began = time.perf_counter()
        settings = self.policy.settings
        environment = PlacementEnvironment.for_policy(evaluator, settings, reward="terminal")
        environment.reset(num_episodes=1, order=random_order(problem.num_groups, self.order_index))
        run_greedily(self.policy, environment)
        placement = environment.placement[0]
        batch = evaluator.evaluate(placement[None])
        runtime = float(batch.runtime[0])
        evaluations = most_evaluations(problem, "terminal", settings)
        return PlacementResult(
            placement=placement,
            runtime=runtime,
            peak_memory=batch.peak_memory[0],
            evaluations=evaluations,
            seconds=time.perf_counter() - began,
            curve=np.array([[evaluations, runtime]]),
        )


def run_greedily(policy: PlacementPolicy, environment: PlacementEnvironment) -> list[float]:
    """Run one episode; return the costs of the placements before it and after each step."""
    costs = [float(environment.costs[0])]
    while not environment.is_over:
        log_probabilities = policy(environment.states()).detach().numpy()
        environment.step(log_probabilities.argmax(axis=1))
        costs.append(float(environment.costs[0]))
    return costs


def problem_in_order(problem: PlacementProblem, order_index: int | None) -> PlacementProblem:
    """Return a problem that the RNN reads in a random order; None for the usual one.

    The groups are numbered anew, which does not change the cost of a placement.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> problem_in_order(two_chains(), 1).grouping.group_names
    ('b1', 'a0', 'a2', 'a1', 'b2', 'b0')
    """
    if order_index is None:
        return problem
    order = random_order(problem.num_groups, order_index)
    grouping = Grouping(
        group_of=np.argsort(order)[problem.grouping.group_of].astype(np.int32),
        group_names=tuple(problem.grouping.group_names[group] for group in order.tolist()),
    )
    reordered = replace(problem, grouping=grouping, hierarchy=None)
    # Only for policies that take this property for the order in which they read.
    vars(reordered.group_graph)["topological_order"] = np.arange(len(order), dtype=np.int32)
    return reordered


@dataclass(frozen=True, kw_only=True)
class PlaceByHillClimbing(Place):
    """Moves single groups while that helps, from one random placement after the other.

    Local search spends most of its budget on annealing, which finds good placements late. Hill
    climbing finds fair ones early.
    """

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        evaluations = min(self.limits.max_evaluations or 1, HILL_CLIMBING_EVALUATIONS)
        return LocalSearch(evaluations, restarts=1, annealing=0.0)


@dataclass(frozen=True, kw_only=True)
class PlaceZeroShot(Place):
    """Places with a policy that was trained on other graphs."""

    warms_as: ClassVar[str] = "placeto"

    policy: str
    rollouts: int = 0  # number of sampled rollouts besides the greedy one
    refinement_rounds: int = 0  # number of rounds of coordinate descent from the best of them

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        policy = load_policy(workspace.policy_file(self.policy))
        if self.graph.order is not None:
            return PlaceInOrder(policy, self.graph.order)
        return PlacetoPlacer(
            policy=policy,
            num_rollouts=self.rollouts,
            starts=(),
            refinement_rounds=self.refinement_rounds,
        )


@dataclass(frozen=True, kw_only=True)
class PlaceRnnZeroShot(Place):
    """Places with an RNN that was trained on other graphs."""

    warms_as: ClassVar[str] = "rnn"

    policy: str

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the problem, in the order in which the RNN reads it."""
        return problem_in_order(workspace.problem(self.graph), self.graph.order)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        return TrainedRnnPlacer.load(workspace.policy_file(self.policy))


@dataclass(frozen=True, kw_only=True)
class PlaceAtRandom(Place):
    """Draws single placements at random."""

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Return the means over 100 placements."""
        warm_up("random")
        problem = workspace.problem(self.graph)
        began = cpu_seconds()
        generator = np.random.default_rng(self.seed or 0)
        placements = random_placements(problem, RANDOM_PLACEMENTS, generator)
        batch = Simulator(problem, 1).evaluate(placements)
        costs = memory_penalised_runtime(batch, problem.cluster.memory_bytes)
        watch.update("done")
        return Outcome(
            runtime=float(batch.runtime.mean()),
            cost=float(costs.mean()),
            fits=bool((costs == batch.runtime).all()),
            evaluations=1,
            seconds=(cpu_seconds() - began) / len(costs),
        )


@dataclass(frozen=True, kw_only=True)
class Bound(Place):
    """Computes the runtime that no placement beats."""

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Return the bound."""
        warm_up("single")
        problem = workspace.problem(self.graph)
        began = cpu_seconds()
        bound = lower_bound(problem)
        watch.update("done")
        seconds = cpu_seconds() - began
        return Outcome(runtime=bound, cost=bound, fits=True, evaluations=0, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class FinalEpisode(Place):
    """Runs the greedy episode of a policy, and evaluates each of its steps."""

    policy: str

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Return the memory-penalised runtime before the first step and after each."""
        simulator = Simulator(workspace.problem(self.graph), 1)
        policy = load_policy(workspace.policy_file(self.policy))
        environment = PlacementEnvironment.for_policy(simulator, policy.settings)
        environment.reset(num_episodes=1)
        costs = run_greedily(policy, environment)
        watch.update("done")
        return Episode(cost=costs[-1], steps=costs)


@dataclass(frozen=True)
class TrainPlaceto:
    """Trains one policy on some graphs; resumes from the last checkpoint."""

    kind: ClassVar[str] = "placeto-training"

    policy: str
    # Graphs: each episode of an update has another one. If one graph has several orders, each
    # episode samples an order.
    graphs: tuple[Graph, ...]
    settings: Settings
    seed: int
    # Other graphs, on which the best policy is chosen
    validation: tuple[Graph, ...] = ()

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Train, and return the mean runtime and entropy of each update."""
        warm_up("placeto")
        path = workspace.policy_file(self.policy)
        log_path = path.with_suffix(".jsonl")
        path.parent.mkdir(exist_ok=True)
        trainer = self._trainer(workspace, path)

        def report(summary: UpdateSummary) -> None:
            progress = f"update {summary.update} of {self.settings.updates}"
            watch.show(f"{progress}, runtime {seconds_text(summary.runtime)}")

        done = run_training(
            trainer,
            path,
            [JsonLinesLog(log_path, updates=trainer.updates)],
            watch.stopping,
            updates_between_checkpoints=UPDATES_BETWEEN_CHECKPOINTS,
            report=report,
        )
        if not done:
            raise StoppedError
        return trained_of(log_path)

    def _trainer(self, workspace: Workspace, path: Path) -> Trainer:
        """Return a new trainer, or that of the checkpoint."""
        orders: dict[str, list[int]] = {graph.name: [] for graph in self.graphs}
        for graph in self.graphs:
            if graph.order is not None:
                orders[graph.name].append(graph.order)

        evaluators = [Simulator(workspace.problem(Graph(name)), 1) for name in orders]
        validation = [Simulator(workspace.problem(graph), 1) for graph in self.validation]
        if path.exists():
            trainer = resume_training(path, evaluators, validation=validation)
        else:
            trainer = Trainer(evaluators, self.settings, seed=self.seed, validation=validation)
        for index, order_indices in enumerate(orders.values()):
            if order_indices:
                reward = self.settings.reward
                ordered = FixedOrders.for_policy(evaluators[index], self.settings, reward=reward)
                ordered.order_indices = order_indices
                trainer.environments[index] = ordered
        return trainer


@dataclass(frozen=True)
class TrainRnn:
    """Trains one RNN on some graphs."""

    kind: ClassVar[str] = "rnn-training"

    policy: str
    graphs: tuple[Graph, ...]
    settings: RnnSettings
    seed: int

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Train, and return the evaluations and seconds."""
        warm_up("rnn")
        began = time.perf_counter()
        total = self.settings.evaluations * len(self.graphs)
        evaluators: list[WatchedEvaluator] = []

        def report(best: BestSoFar) -> None:
            count = sum(evaluator.evaluations for evaluator in evaluators)
            watch.update(f"{count:,} of {total:,} evaluations, {best_text(best, STEP)}")

        problems = [
            problem_in_order(workspace.problem(graph), graph.order) for graph in self.graphs
        ]
        evaluators += [WatchedEvaluator(Simulator(problem, 1), report) for problem in problems]
        settings = fitting(self.settings, problems)
        trained = RnnPlacer(settings).train(evaluators, seed=self.seed)
        path = workspace.policy_file(self.policy)
        path.parent.mkdir(exist_ok=True)
        trained.save(path)
        return Trained(
            evaluations=sum(evaluator.evaluations for evaluator in evaluators),
            seconds=time.perf_counter() - began,
        )


def trained_of(path: Path) -> Trained:
    """Return the record of a training from its log; it may have been interrupted several times."""
    problem = f"{path}: expected a line for each update"
    rows = [decode_json(line, UpdateSummary, problem) for line in path.read_bytes().splitlines()]
    if not rows:
        raise PolicyError(f"{problem}, got none")
    counts = np.diff([row.evaluations for row in rows], prepend=0)
    return Trained(
        evaluations=rows[-1].evaluations,
        seconds=float((counts / [row.evaluations_per_second for row in rows]).sum()),
        runtimes=[row.runtime for row in rows],
        entropies=[row.entropy for row in rows],
    )
