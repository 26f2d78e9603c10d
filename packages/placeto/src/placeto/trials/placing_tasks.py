"""Trials that place one graph, each with another placer."""

import time
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of_result, costs_of
from placeto.placing.placements import run_placer
from placeto.placing.placers import fitting, make_placer
from placeto.placing.warming import warm_up, warm_up_placer
from placeto.trials.comparison import CPU, on_a_cpu
from placeto.trials.curves import evaluations_to_best, short_curve
from placeto.trials.orders import PlaceInOrder, read_by_rnn, run_greedily
from placeto.trials.records import Drawn, Episode, Outcome, Placed, Record, finite
from placeto.trials.trials import Graph, Watch, Workspace
from placeto_baselines import (
    LocalSearch,
    RandomPlacer,
    RnnPlacer,
    RnnSettings,
    TrainedRnnPlacer,
    lower_bound,
)
from placeto_graphs import EvaluationBatch, PlacementProblem, PlacementResult, Placer
from placeto_policy import PlacementEnvironment, PlacetoPlacer, Settings, load_policy
from placeto_simulator import Simulator

LOWER_BOUND, RANDOM = "lower-bound", "random"
RANDOM_PLACEMENTS = 100


class Labels(TypedDict):
    """Labels of a record: the placer, the graph and the seed."""

    scheme: str
    graph: str
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places a graph; others say with which placer."""

    scheme: str  # name of the placer in records
    graph: Graph
    seed: int | None  # seed that fixes every random choice; None where there is none
    budget: int | None = None  # number of placements that it samples, if that is known

    @property
    def kind(self) -> str:
        """The name of the placer, which takes about as long on another graph."""
        return self.scheme

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Place, and return what came of it; the clock runs while the placer places."""
        problem = self.problem(workspace)
        placer = self.placer(workspace, problem)
        warm_up_placer(placer)
        began = time.perf_counter()
        result = run_placer(
            placer,
            problem,
            watch,
            seed=self.seed or 0,
            budget=self.budget,
            label=self.scheme,
            num_threads=1,
        )
        seconds = time.perf_counter() - began
        watch.update("done")
        return self.placed(problem, result, seconds)

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return what is placed."""
        return workspace.problem(self.graph)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:
        """Return the placer."""
        raise NotImplementedError

    def labels(self) -> Labels:
        """Return the labels of its record."""
        return {"scheme": self.scheme, "graph": self.graph.label, "seed": self.seed}

    def placed(self, problem: PlacementProblem, result: PlacementResult, seconds: float) -> Placed:
        """Return the record of a run of a placer."""
        return Placed(
            **self.labels(),
            runtime=finite(result.runtime),
            cost=finite(cost_of_result(problem, result)),
            fits=result.fits(problem.cluster),
            evaluations=result.evaluations,
            seconds=seconds,
            peak_memory=result.peak_memory.tolist(),
            evaluations_to_best=evaluations_to_best(result.curve),
            curve=short_curve(result.curve),
            placement=result.placement.tolist(),
        )


@dataclass(frozen=True, kw_only=True)
class PlaceByName(Place):
    """Places with one of the placers of `placeto.placing.placers`."""

    name: str

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return what is placed: for CPU only the same groups on a CPU, if there is none."""
        problem = workspace.problem(self.graph)
        return on_a_cpu(problem) if self.name == CPU else problem

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return make_placer(self.name, problem, self.budget)


@dataclass(frozen=True, kw_only=True)
class PlaceByHillClimbing(Place):
    """Moves single groups while that helps, from one random placement after the other.

    Local search spends most of its budget on annealing, which comes to good placements late; this
    is what comes to fair ones early.
    """

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return LocalSearch(self.budget or 1, restarts=1, annealing=0.0)


@dataclass(frozen=True, kw_only=True)
class PlaceOptimized(Place):
    """Trains a policy on the graph."""

    settings: Settings

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return PlacetoPlacer(training_evaluations=self.budget or 1, settings=self.settings)


@dataclass(frozen=True, kw_only=True)
class PlaceZeroShot(Place):
    """Places with a policy that was trained on other graphs."""

    policy: str
    samples: int  # number of rollouts that are sampled besides the greedy one
    sweeps: int  # number of rounds of coordinate descent that begin at the best of them

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        policy = load_policy(workspace.policy_file(self.policy))
        if self.graph.order is not None:
            return PlaceInOrder(policy, self.graph.order)
        return PlacetoPlacer(policy=policy, samples=self.samples, sweeps=self.sweeps)


@dataclass(frozen=True, kw_only=True)
class PlaceRnnOptimized(Place):
    """Trains an RNN on the graph."""

    settings: RnnSettings

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return RnnPlacer(fitting(self.settings, [problem]))


@dataclass(frozen=True, kw_only=True)
class PlaceRnnZeroShot(Place):
    """Places with an RNN that was trained on other graphs."""

    policy: str

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return what is placed, in the order in which it is read."""
        return read_by_rnn(workspace.problem(self.graph), self.graph.order)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return TrainedRnnPlacer.load(workspace.policy_file(self.policy))


@dataclass(frozen=True, kw_only=True)
class PlaceAtRandom(Place):
    """Draws placements, each of which is a result of its own: the mean is what one comes to."""

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the mean of what 100 placements come to."""
        warm_up("random")
        problem = workspace.problem(self.graph)
        began = time.perf_counter()
        kept = _KeepingEvaluator(Simulator(problem, 1))
        seed = self.seed or 0
        runtime = RandomPlacer(RANDOM_PLACEMENTS).runtimes(problem, kept, seed=seed)
        costs = np.concatenate(kept.costs)
        watch.update("done")
        return Drawn(
            **self.labels(),
            runtime=float(runtime.mean()),
            cost=float(costs.mean()),
            standard_deviation=float(costs.std()),
            fits=bool((costs == runtime).all()),
            evaluations=1,
            seconds=(time.perf_counter() - began) / len(costs),
        )


@dataclass(frozen=True, kw_only=True)
class Bound(Place):
    """Computes the runtime that no placement beats."""

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the bound."""
        warm_up("single")
        problem = workspace.problem(self.graph)
        began = time.perf_counter()
        bound = lower_bound(problem)
        watch.update("done")
        return Outcome(
            **self.labels(),
            runtime=bound,
            cost=bound,
            fits=True,
            evaluations=0,
            seconds=time.perf_counter() - began,
        )


@dataclass(frozen=True, kw_only=True)
class FinalEpisode(Place):
    """Runs the greedy episode of a policy, and looks at each of its steps."""

    policy: str

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the memory-penalised runtime before the first step and after each."""
        problem = workspace.problem(self.graph)
        policy = load_policy(workspace.policy_file(self.policy))
        environment = PlacementEnvironment.for_policy(Simulator(problem, 1), policy.settings)
        environment.reset(num_episodes=1)
        costs = run_greedily(policy, environment)
        watch.update("done")
        return Episode(**self.labels(), cost=costs[-1], steps=costs)


class _KeepingEvaluator:
    """Evaluates placements, and keeps their memory-penalised runtimes."""

    def __init__(self, simulator: Simulator) -> None:
        self.problem = simulator.problem
        self.costs: list[NDArray[np.float64]] = []
        self._simulator = simulator

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        batch = self._simulator.evaluate(placements)
        self.costs.append(costs_of(self.problem, batch))
        return batch
