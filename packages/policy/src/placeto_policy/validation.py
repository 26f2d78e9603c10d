"""Selection of the policy whose greedy placements are best."""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch

from placeto_graphs import Evaluator
from placeto_policy.costs import most_evaluations
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import greedy, run_episodes
from placeto_policy.policy import PlacementPolicy
from placeto_policy.reports import WorkerReport, from_rows, reports_of, to_rows
from placeto_policy.settings import Settings
from placeto_policy.workers import Processes


class Validation:
    """Graphs that a policy places greedily, to evaluate it.

    Parameters
    ----------
    evaluators
        Evaluators, one for each graph.
    policy
        Settings of the policies.
    memory_penalty
        Penalty of the memory-penalised runtime, seconds per byte.
    processes
        Processes that share the graphs.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> from placeto_policy.workers import OneProcess
    >>> policy = PlacementPolicy(num_devices=2)
    >>> evaluators = [BusiestDevice(two_chains())]
    >>> validation = Validation(evaluators, policy.settings, 2e-9, OneProcess())
    >>> 0.5 <= validation.cost(validation.run(policy)) <= 1
    True
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        policy: Settings,
        memory_penalty: float,
        processes: Processes,
    ) -> None:
        self._environments = [
            PlacementEnvironment.for_policy(
                evaluator, policy, reward="terminal", memory_penalty=memory_penalty
            )
            for evaluator in evaluators
        ]
        self._evaluations = [
            most_evaluations(evaluator.problem, "terminal", policy) for evaluator in evaluators
        ]
        self._processes = processes

    def run(self, policy: PlacementPolicy) -> list[WorkerReport]:
        """Return a report for each graph, in the order of the graphs."""
        own = range(self._processes.rank, len(self._environments), self._processes.count)
        reports = [report for graph in own for report in self._place(policy, graph)]
        group_counts = [environment.topology.num_groups for environment in self._environments]
        rows = self._processes.gather(to_rows(reports, max(group_counts)))
        return from_rows(rows, group_counts)

    def cost(self, reports: Sequence[WorkerReport]) -> float:
        """Return the mean cost of the placements, as fractions of the work of their graphs."""
        work = [environment.seconds_of_work for environment in self._environments]
        return float(
            np.mean([report.cost / max(work[report.graph], MIN_SECONDS) for report in reports])
        )

    def _place(self, policy: PlacementPolicy, graph: int) -> list[WorkerReport]:
        environment = self._environments[graph]
        environment.reset(num_episodes=1)
        episodes = run_episodes(policy, environment, greedy)
        evaluations = [self._evaluations[graph]]
        return reports_of(episodes, environment.best, graph, [graph], evaluations, discount=1.0)


class BestPolicy:
    """The best weights so far.

    A policy that is nearly sure of each step may leave a good solution, and not return to it.

    Attributes
    ----------
    cost : float
        Least cost so far; infinity before the first.
    weights : dict of tensors
        Weights of the policy of that cost; empty before the first.

    Examples
    --------
    >>> policy = PlacementPolicy(num_devices=2)
    >>> best = BestPolicy()
    >>> best.offer(policy, 0.6)
    >>> best.cost
    0.6
    """

    def __init__(self) -> None:
        self.cost = math.inf
        self.weights: dict[str, torch.Tensor] = {}

    def offer(self, policy: PlacementPolicy, cost: float) -> None:
        """Keep the weights of a policy if it costs less than all before."""
        if cost < self.cost:
            self.cost = cost
            self.weights = {name: value.clone() for name, value in policy.state_dict().items()}

    def restored(self, policy: PlacementPolicy) -> PlacementPolicy:
        """Return a copy of a policy with these weights, or with its own if there are none."""
        found = copy.deepcopy(policy)
        if self.weights:
            found.load_state_dict(self.weights)
        return found
