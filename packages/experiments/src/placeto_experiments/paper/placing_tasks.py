"""Trials that place one graph in experiments alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placeto.placing.costs import costs_of
from placeto.placing.warming import warm_up
from placeto.progress import cpu_seconds
from placeto.trials.placing_tasks import Place
from placeto.trials.records import Episode, Outcome, Record
from placeto.trials.trials import Watch, Workspace
from placeto_baselines import LocalSearch, TrainedRnnPlacer, lower_bound
from placeto_experiments.paper.orders import PlaceInOrder, read_by_rnn, run_greedily
from placeto_graphs import PlacementProblem, Placer
from placeto_policy import PlacementEnvironment, PlacetoPlacer, load_policy
from placeto_simulator import Simulator

LOWER_BOUND, RANDOM = "lower-bound", "random"
RANDOM_PLACEMENTS = 100


@dataclass(frozen=True, kw_only=True)
class PlaceByHillClimbing(Place):
    """Moves single groups while that helps, from one random placement after the other.

    Local search spends most of its budget on annealing, which finds good placements late. Hill
    climbing finds fair ones early.
    """

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return LocalSearch(self.budget or 1, restarts=1, annealing=0.0)


@dataclass(frozen=True, kw_only=True)
class PlaceZeroShot(Place):
    """Places with a policy that was trained on other graphs."""

    warms_as: ClassVar[str] = "placeto"

    policy: str
    rollouts: int  # number of sampled rollouts besides the greedy one
    refinement_rounds: int  # number of rounds of coordinate descent from the best of them

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        policy = load_policy(workspace.policy_file(self.policy))
        if self.graph.order is not None:
            return PlaceInOrder(policy, self.graph.order)
        return PlacetoPlacer(
            policy=policy, num_rollouts=self.rollouts, refinement_rounds=self.refinement_rounds
        )


@dataclass(frozen=True, kw_only=True)
class PlaceRnnZeroShot(Place):
    """Places with an RNN that was trained on other graphs."""

    warms_as: ClassVar[str] = "rnn"

    policy: str

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the problem, in the order in which the RNN reads it."""
        return read_by_rnn(workspace.problem(self.graph), self.graph.order)

    def placer(self, workspace: Workspace, problem: PlacementProblem) -> Placer:  # noqa: ARG002
        """Return the placer."""
        return TrainedRnnPlacer.load(workspace.policy_file(self.policy))


@dataclass(frozen=True, kw_only=True)
class PlaceAtRandom(Place):
    """Draws single placements at random."""

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the means over 100 placements."""
        warm_up("random")
        problem = workspace.problem(self.graph)
        began = cpu_seconds()
        shape = (RANDOM_PLACEMENTS, problem.num_groups)
        generator = np.random.default_rng(self.seed or 0)
        placements = generator.integers(problem.num_devices, size=shape, dtype=np.int32)
        batch = Simulator(problem, 1).evaluate(placements)
        costs = costs_of(problem, batch)
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

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the bound."""
        warm_up("single")
        problem = workspace.problem(self.graph)
        began = cpu_seconds()
        bound = lower_bound(problem)
        watch.update("done")
        return Outcome(
            runtime=bound,
            cost=bound,
            fits=True,
            evaluations=0,
            seconds=cpu_seconds() - began,
        )


@dataclass(frozen=True, kw_only=True)
class FinalEpisode(Place):
    """Runs the greedy episode of a policy, and evaluates each of its steps."""

    policy: str

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return the memory-penalised runtime before the first step and after each."""
        problem = workspace.problem(self.graph)
        policy = load_policy(workspace.policy_file(self.policy))
        environment = PlacementEnvironment.for_policy(Simulator(problem, 1), policy.settings)
        environment.reset(num_episodes=1)
        costs = run_greedily(policy, environment)
        watch.update("done")
        return Episode(cost=costs[-1], steps=costs)
