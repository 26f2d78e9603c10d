"""Random orders in which Placeto visits the groups of a graph, or the RNN reads them."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Evaluator, Grouping, PlacementProblem, PlacementResult
from placeto_policy import PlacementEnvironment, PlacementPolicy, most_evaluations


def random_order(num_groups: int, number: int) -> NDArray[np.int64]:
    """Return int64[G], one of all orders of the groups; each number has its own.

    Examples
    --------
    >>> random_order(5, 1)
    array([4, 0, 1, 2, 3])
    """
    return np.random.default_rng(number).permutation(num_groups)


class FixedOrders(PlacementEnvironment):
    """Episodes that visit the groups in one of some numbered orders, sampled uniformly."""

    numbers: Sequence[int]  # set before the first episode

    def reset(self, **named: Any) -> None:
        """Begin new episodes; see `PlacementEnvironment.reset`."""
        groups = self.evaluator.problem.num_groups
        drawn = [self.numbers[each.integers(len(self.numbers))] for each in named["generators"]]
        order = np.stack([random_order(groups, number) for number in drawn])
        super().reset(**{**named, "order": order})


class PlaceInOrder:
    """Places greedily with a policy of Placeto in a numbered order."""

    name = "placeto"

    def __init__(self, policy: PlacementPolicy, number: int) -> None:
        self._policy = policy
        self._number = number

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002 (nothing is drawn)
    ) -> PlacementResult:
        """Return the placement at the end of the greedy episode."""
        began = time.perf_counter()
        settings = self._policy.settings
        environment = PlacementEnvironment.for_policy(evaluator, settings, reward="terminal")
        environment.reset(num_episodes=1, order=random_order(problem.num_groups, self._number))
        run_greedily(self._policy, environment)
        placement = environment.placement[0]
        found = evaluator.evaluate(placement[None])
        runtime = float(found.runtime[0])
        evaluations = most_evaluations(problem, "terminal", settings)
        return PlacementResult(
            placement=placement,
            runtime=runtime,
            peak_memory=found.peak_memory[0],
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


def problem_in_order(problem: PlacementProblem, number: int) -> PlacementProblem:
    """Return a problem that the RNN reads in a random order.

    The groups are numbered anew, which does not change the cost of a placement.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> problem_in_order(two_chains(), 1).grouping.group_names
    ('b1', 'a0', 'a2', 'a1', 'b2', 'b0')
    """
    order = random_order(problem.num_groups, number)
    found = PlacementProblem(
        graph=problem.graph,
        cluster=problem.cluster,
        compute_time=problem.compute_time,
        grouping=Grouping(
            group_of=np.argsort(order)[problem.grouping.group_of].astype(np.int32),
            group_names=tuple(problem.grouping.group_names[group] for group in order.tolist()),
        ),
    )
    # Only for policies that take this property for the order in which they read.
    vars(found.group_graph)["topological_order"] = np.arange(len(order), dtype=np.int32)
    return found


def read_by_rnn(problem: PlacementProblem, order: int | None) -> PlacementProblem:
    """Return a problem as the RNN is to read it; None for the usual order."""
    return problem if order is None else problem_in_order(problem, order)
