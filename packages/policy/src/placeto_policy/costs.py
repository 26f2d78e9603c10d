"""Costs of placements, each evaluated once, and numbers of evaluations."""

from dataclasses import dataclass
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, Evaluator, PlacementProblem, placement_ranks
from placeto_policy.errors import PolicyError, shown
from placeto_policy.settings import RewardName, Settings

MAX_REMEMBERED = 50_000
# Cost of a placement that cannot run, in times of all work.
UNRUNNABLE_STEPS = 10


def seconds_of_work(problem: PlacementProblem) -> float:
    """Return the seconds of all groups in sequence, each on its slowest device."""
    times = problem.group_graph.compute_time
    return float(np.where(np.isinf(times), 0.0, times).max(axis=1).sum())


def check_field(batch: EvaluationBatch, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a result of an evaluator, or raise an error if its shape is wrong."""
    values = getattr(batch, name, None)
    if not isinstance(values, np.ndarray) or values.shape != shape:
        got = getattr(values, "shape", shown(values))
        raise PolicyError(f"evaluator: expected {name} of shape {shape}, got {got}")
    return values


@dataclass(frozen=True)
class Best:
    """Best of some placements: those that fit the memory come first.

    Attributes
    ----------
    lacks_memory : bool
        True if a device lacks memory, or the placement cannot run.
    cost : float
        Memory-penalised runtime, seconds; infinity if the placement cannot run.
    placement : int32[G]
        Device of each group.
    """

    lacks_memory: bool
    cost: float
    placement: NDArray[np.int32]

    def is_better_than(self, other: "Best | None") -> bool:
        """Return True if it is better than another one, or if there is no other."""
        rank = self.lacks_memory, self.cost
        return other is None or rank < (other.lacks_memory, other.cost)


class PlacementCosts:
    """Costs of placements, which are evaluated once while they are remembered.

    Late in training most episodes are alike, so most placements are known.

    Attributes
    ----------
    best : `Best` or None
        Best of all placements that were evaluated.
    """

    def __init__(self, evaluator: Evaluator, memory_penalty: float) -> None:
        self.best: Best | None = None
        self._evaluator = evaluator
        self._penalty = memory_penalty
        self._unrunnable = UNRUNNABLE_STEPS * seconds_of_work(evaluator.problem)
        self._known: dict[bytes, float] = {}

    def of_devices(
        self, placements: NDArray[np.int32], groups: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return float64[B, D], the costs of each row with ``groups[b]`` on each device."""
        count, num_devices = len(placements), self._evaluator.problem.num_devices
        rows = np.repeat(placements, num_devices, axis=0)
        devices = np.tile(np.arange(num_devices), count)
        rows[np.arange(len(rows)), np.repeat(groups, num_devices)] = devices
        return self.costs_of(rows).reshape(count, num_devices)

    def costs_of(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[N], the memory-penalised runtimes of placements int32[N, G]."""
        keys = [row.tobytes() for row in placements]
        unknown = {key: row for row, key in enumerate(keys) if key not in self._known}
        if unknown:
            rows = placements[list(unknown.values())]
            ranks = self._evaluated(rows)
            first = ranks.index(min(ranks))
            found = Best(*ranks[first], rows[first].copy())
            if found.is_better_than(self.best):
                self.best = found
            if len(self._known) + len(rows) > MAX_REMEMBERED:
                self._known = {key: self._known[key] for key in keys if key in self._known}
            costs = (self._unrunnable if isinf(cost) else cost for _, cost in ranks)
            self._known.update(zip(unknown, costs, strict=True))
        return np.array([self._known[key] for key in keys])

    def _evaluated(self, placements: NDArray[np.int32]) -> list[tuple[bool, float]]:
        """Return the ranks of placements, after a check of the evaluator's result."""
        problem, count = self._evaluator.problem, len(placements)
        batch = self._evaluator.evaluate(placements)
        check_field(batch, "runtime", (count,))
        check_field(batch, "peak_memory", (count, problem.num_devices))
        if np.isnan(batch.runtime).any() or (batch.runtime < 0).any():
            row = int(np.argmax(~(batch.runtime >= 0)))
            raise PolicyError(
                f"evaluator: expected a runtime >= 0, got runtime[{row}] = {batch.runtime[row]}"
            )
        return placement_ranks(batch, problem.cluster.memory_bytes, self._penalty)


def most_evaluations(problem: PlacementProblem, reward: RewardName, policy: Settings) -> int:
    """Return the largest number of evaluations of an episode.

    Parameters
    ----------
    problem
        Problem of G groups on D devices.
    reward
        Kind of reward; see `Settings`.
    policy
        Settings of the policy, whose features may take evaluations.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> from placeto_policy.example import two_chains
    >>> most_evaluations(two_chains(), "terminal", preset("paper"))
    1
    >>> most_evaluations(two_chains(), "counterfactual", preset("default"))
    13
    """
    counterfactuals = problem.num_groups if reward == "counterfactual" else 0
    if policy.sees_lookahead:
        # The placement after a step is one of those that the lookahead evaluated.
        return lookahead_evaluations(problem) + 1 + counterfactuals
    each_step = reward == "intermediate" or policy.sees_schedule
    return (problem.num_groups if each_step else 1) + counterfactuals


def training_evaluations(problem: PlacementProblem, settings: Settings, policy: Settings) -> int:
    """Return the largest number of evaluations of a training on one problem.

    Parameters
    ----------
    problem
        Problem.
    settings
        Settings of the training.
    policy
        Settings of the policy, whose features may take evaluations.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> from placeto_policy.example import two_chains
    >>> settings = Settings(updates=1)
    >>> training_evaluations(two_chains(), settings, settings)  # with the greedy rollout at the end
    111
    """
    episodes = settings.updates * settings.workers
    validations = sum(map(settings.validates_after, range(1, settings.updates + 1)))
    each = most_evaluations(problem, settings.reward, policy)
    return episodes * each + validations * most_evaluations(problem, "terminal", policy)


def lookahead_evaluations(problem: PlacementProblem) -> int:
    """Return the number of evaluations of the lookahead of an episode.

    Each step has one for each other device that can run the group.
    """
    devices = np.isfinite(problem.group_graph.compute_time).sum(axis=1)
    return int((devices - 1).sum())
