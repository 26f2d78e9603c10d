"""The Markov decision process over placements: episodes on one problem in lockstep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import (
    SECONDS_PER_BYTE,
    EvaluationBatch,
    Evaluator,
    GraphError,
    PlacementProblem,
    memory_penalised_runtime,
    placement_ranks,
)
from placeto_policy.errors import PolicyError, check_field, short_repr
from placeto_policy.graph_features import GraphFeatures, graph_features_of
from placeto_policy.schedules import GroupSchedules
from placeto_policy.settings import (
    DeviceFeaturesName,
    NodeFeaturesName,
    OrderName,
    RewardName,
    Settings,
    StartName,
)
from placeto_policy.states import NOWHERE, States, lookahead_features

MAX_REMEMBERED = 50_000
# Cost of a placement that cannot run, in times of all work.
UNRUNNABLE_STEPS = 10


def seconds_of_work(problem: PlacementProblem) -> float:
    """Return the seconds of all groups in sequence, each on its slowest device."""
    times = problem.group_graph.compute_time
    return float(np.where(np.isinf(times), 0.0, times).max(axis=1).sum())


@dataclass(frozen=True)
class Best:
    """Best of some placements: those that fit the memory come first."""

    lacks_memory: bool  # on a device, or the placement cannot run
    cost: float  # as `placement_ranks` has it; infinity if the placement cannot run
    placement: NDArray[np.int32]  # [G]

    def is_better_than(self, other: "Best | None") -> bool:
        """Return True if it is better than another one, or if there is no other."""
        rank = self.lacks_memory, self.cost
        return other is None or rank < (other.lacks_memory, other.cost)


class PlacementCosts:
    """Costs of placements, which are evaluated once while they are remembered.

    Late in training most episodes are alike, so most placements are known.
    """

    def __init__(self, evaluator: Evaluator, memory_penalty: float) -> None:
        self.best: Best | None = None  # of all placements that were evaluated
        self._evaluator = evaluator
        self._penalty, self._memory = memory_penalty, evaluator.problem.cluster.memory_bytes
        self._unrunnable = UNRUNNABLE_STEPS * seconds_of_work(evaluator.problem)
        self._costs: dict[bytes, float] = {}

    def of_devices(
        self, placements: NDArray[np.int32], groups: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return float64[B, D], the costs of each row with ``groups[b]`` on each device.

        A device that cannot run the group costs infinity: evaluators refuse such a placement.
        """
        costs = self._evaluator.problem.group_graph.compute_time[groups]
        row, device = np.nonzero(np.isfinite(costs))
        rows = placements[row]
        rows[np.arange(len(rows)), groups[row]] = device
        costs[row, device] = self.costs_of(rows)
        return costs

    def costs_of(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[N], the memory-penalised runtimes of placements int32[N, G]."""
        keys = [row.tobytes() for row in placements]
        row_of_new_key = {key: row for row, key in enumerate(keys) if key not in self._costs}
        if row_of_new_key:
            rows = placements[list(row_of_new_key.values())]
            batch = self._evaluated(rows)
            ranks = placement_ranks(batch, self._memory)
            best_row = ranks.index(min(ranks))
            best = Best(*ranks[best_row], rows[best_row].copy())
            if best.is_better_than(self.best):
                self.best = best
            if len(self._costs) + len(rows) > MAX_REMEMBERED:
                self._costs = {key: self._costs[key] for key in keys if key in self._costs}
            costs = memory_penalised_runtime(batch, self._memory, self._penalty)
            costs[np.isinf(costs)] = self._unrunnable
            self._costs.update(zip(row_of_new_key, costs.tolist(), strict=True))
        return np.array([self._costs[key] for key in keys])

    def _evaluated(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of placements, after a check of the evaluator's result."""
        problem, count = self._evaluator.problem, len(placements)
        batch = self._evaluator.evaluate(placements)
        check_field(batch, "runtime", (count,))
        check_field(batch, "peak_memory", (count, problem.num_devices))
        if np.isnan(batch.runtime).any() or (batch.runtime < 0).any():
            row = int(np.argmax(~(batch.runtime >= 0)))
            raise PolicyError(
                f"evaluator: expected a runtime >= 0, got runtime[{row}] = {batch.runtime[row]}"
            )
        return batch


class PlacementEnvironment:
    """B episodes on one problem of G groups, which take their steps together.

    An episode visits each group once and moves it to a device (Addanki et al. 2019, section 3.1).

    Parameters
    ----------
    evaluator
        Evaluator of the problem.
    reward
        ``"intermediate"``: a step earns ``R(p) - R(p')``, the seconds by which it lowers the
        memory-penalised runtime. ``"terminal"``: the last step earns ``-R(p')``, the others 0.
        ``"counterfactual"``: the same, until `run_counterfactuals` replaces the rewards.
    memory_penalty
        Penalty c of the memory-penalised runtime, seconds per byte.
    device_features
        Features of the policy. With ``"loads-and-lookahead"``, each step evaluates the current
        group on each device, and `states` has the costs.
    node_features
        Features of the policy. With ``"costs-times-and-schedule"``, each step queries the schedule,
        and `states` has it.
    starts_nowhere
        True if states show groups on no device until they are placed, in episodes that start from
        ``"single"``. The single device would depend on how devices are numbered.

    Attributes
    ----------
    order : int64[B, G]
        Groups of each episode in the order of its visits.
    placement : int32[B, G]
        Present device of each group.
    shown_start : int32[B, G]
        Device of each group before its step as states show it, which may be `NOWHERE`.
    time : int
        Number of steps that were taken; at G the episodes are over.
    seconds_of_work : float
        Seconds of all groups in sequence, each on its slowest device.
    costs : float64[B]
        R of the placements. NaN before the last step, unless the reward is intermediate or the
        features need the evaluator.
    looks_ahead : bool
        True if each step evaluates the current group on each device.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> environment = PlacementEnvironment(BusiestDevice(two_chains()))
    >>> environment.reset(num_episodes=2)
    >>> environment.states().current
    tensor([0, 0])
    >>> environment.step(np.array([0, 1]))
    array([0., 1.])
    """

    order: NDArray[np.int64]
    placement: NDArray[np.int32]
    shown_start: NDArray[np.int32]
    time: int
    costs: NDArray[np.float64]

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        reward: RewardName = "intermediate",
        memory_penalty: float = SECONDS_PER_BYTE,
        device_features: DeviceFeaturesName = "none",
        node_features: NodeFeaturesName = "costs",
        starts_nowhere: bool = False,
    ) -> None:
        self.evaluator = evaluator
        self.graph_features: GraphFeatures = graph_features_of(evaluator.problem)
        self.reward = reward
        self.looks_ahead = device_features == "loads-and-lookahead"
        self.seconds_of_work = seconds_of_work(evaluator.problem)
        self._starts_nowhere = starts_nowhere
        scheduled = node_features == "costs-times-and-schedule"
        self._schedules = GroupSchedules(evaluator) if scheduled else None
        self._placement_costs = PlacementCosts(evaluator, memory_penalty)
        # Otherwise only last placements have a cost.
        self._follows_costs = self.looks_ahead or scheduled or reward == "intermediate"

    @classmethod
    def for_policy(
        cls,
        evaluator: Evaluator,
        policy: Settings,
        *,
        reward: RewardName = "intermediate",
        memory_penalty: float | None = None,
    ) -> Self:
        """Return an environment whose states have the features of a policy of such settings.

        Costs have the memory penalty of these settings, unless you give another one.

        Examples
        --------
        >>> from placeto_policy import PlacementPolicy, preset
        >>> from placeto_policy.example import BusiestDevice, two_chains
        >>> policy = PlacementPolicy(num_devices=2, settings=preset("default"))
        >>> evaluator = BusiestDevice(two_chains())
        >>> environment = PlacementEnvironment.for_policy(evaluator, policy.settings)
        >>> environment.reset(num_episodes=1)
        >>> policy(environment.states()).shape
        torch.Size([1, 2])
        """
        return cls(
            evaluator,
            reward=reward,
            memory_penalty=policy.memory_penalty if memory_penalty is None else memory_penalty,
            device_features="loads-and-lookahead" if policy.sees_lookahead else "none",
            node_features=policy.node_features if policy.sees_schedule else "costs",
            starts_nowhere=policy.starts_nowhere,
        )

    def reset(
        self,
        *,
        num_episodes: int,
        order: OrderName | NDArray[np.integer[Any]] = "topological",
        start: StartName | NDArray[np.integer[Any]] = "single",
        generators: Sequence[np.random.Generator] = (),
    ) -> None:
        """Begin B new episodes.

        Parameters
        ----------
        num_episodes
            Number of episodes, B.
        order : text or int[G] or int[B, G]
            ``"topological"``, ``"random"`` (another one for each episode), or the groups in order.
        start : text or int[G] or int[B, G]
            ``"single"`` (all groups on the first device, or the first that can run them),
            ``"random"``, or the devices of the groups.
        generators
            Generators, one for each episode, if something is random.

        Raises
        ------
        PolicyError
            When an order or a start is invalid, or generators are missing.
        """
        something_random = any(
            isinstance(choice, str) and choice == "random" for choice in (order, start)
        )
        if something_random and len(generators) != num_episodes:
            raise PolicyError(
                f"generators: expected one for each of {num_episodes} episodes, "
                f"got {len(generators)}"
            )
        self.order = self._orders(order, num_episodes, generators)
        self.placement = self._starts(start, num_episodes, generators)
        self.shown_start = self.placement.copy()
        if self._starts_nowhere and isinstance(start, str) and start == "single":
            self.shown_start[:] = NOWHERE
        self.time = 0
        self._position = np.argsort(self.order, axis=1)
        self._lookahead_costs: NDArray[np.float64] | None = None
        if self._follows_costs:
            self.costs = self.costs_of(self.placement)
        else:
            self.costs = np.full(num_episodes, np.nan)

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return self.graph_features.num_groups

    @property
    def is_over(self) -> bool:
        """True if every group was visited."""
        return self.time == self.num_groups

    def states(self) -> States:
        """Return the states before the next actions."""
        visited = self._position < self.time
        placement = np.where(visited, self.placement, self.shown_start)
        lookahead = None
        if self.looks_ahead:
            seconds = self.seconds_of_work / self.num_groups
            lookahead = torch.from_numpy(lookahead_features(self.costs_of_devices(), seconds))
        return States(
            graph_features=self.graph_features,
            placement=torch.from_numpy(placement.astype(np.int64)),
            current=torch.from_numpy(self.order[:, self.time]),
            visited=torch.from_numpy(visited),
            lookahead=lookahead,
            schedule=(
                torch.from_numpy(self._schedules.features(self.placement))
                if self._schedules
                else None
            ),
        )

    def costs_of_devices(self) -> NDArray[np.float64]:
        """Return float64[B, D], R with the current groups on each device, in seconds."""
        if self._lookahead_costs is None:
            groups = self.order[:, self.time]
            self._lookahead_costs = self._placement_costs.of_devices(self.placement, groups)
        return self._lookahead_costs

    def step(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Move the current groups to devices.

        Parameters
        ----------
        actions : int[B]
            Device of the current group of each episode.

        Returns
        -------
        float64[B]
            Rewards, seconds.

        Raises
        ------
        PolicyError
            When the episodes are over, or a device cannot run the group.
        """
        if self.is_over:
            raise PolicyError(f"step: expected at most {self.time} steps in an episode, got more")
        episodes = np.arange(len(self.order))
        groups = self.order[:, self.time]
        self._check_actions(groups, actions)
        self.placement[episodes, groups] = actions
        self.time += 1
        self._lookahead_costs = None
        previous_costs = self.costs
        at_end = self.time == self.num_groups
        if self._follows_costs or at_end:
            self.costs = self.costs_of(self.placement)
        if self.reward == "intermediate":
            return previous_costs - self.costs
        return -self.costs if at_end else np.zeros(len(episodes))

    def costs_of(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[N], the memory-penalised runtimes of placements int32[N, G], seconds."""
        return self._placement_costs.costs_of(placements)

    @property
    def best(self) -> Best:
        """Best placement of all that were evaluated, in all episodes so far.

        Raises
        ------
        PolicyError
            When no placement was evaluated yet.
        """
        if self._placement_costs.best is None:
            raise PolicyError("best: expected an evaluated placement, got none")
        return self._placement_costs.best

    def _check_actions(self, groups: NDArray[np.int64], actions: NDArray[np.integer[Any]]) -> None:
        num_devices = self.graph_features.num_devices
        if actions.shape != groups.shape or actions.min() < 0 or actions.max() >= num_devices:
            raise PolicyError(
                f"actions: expected {len(groups)} devices from 0 to {num_devices - 1}, "
                f"got {short_repr(actions.tolist())}"
            )
        impossible = ~self.graph_features.allowed.numpy()[groups, actions]
        if impossible.any():
            row = int(np.argmax(impossible))
            raise PolicyError(
                f"actions[{row}]: expected a device that can run group {groups[row]}, "
                f"got {actions[row]}"
            )

    def _orders(
        self,
        order: OrderName | NDArray[np.integer[Any]],
        num_episodes: int,
        generators: Sequence[np.random.Generator],
    ) -> NDArray[np.int64]:
        num_groups = self.num_groups
        if isinstance(order, str):
            _check_choice("order", order, get_args(OrderName))
            if order == "random":
                return np.stack([generator.permutation(num_groups) for generator in generators])
            return np.tile(self.graph_features.order, (num_episodes, 1))
        orders = _rows("order", order, num_episodes, num_groups).astype(np.int64)
        if (np.sort(orders, axis=1) != np.arange(num_groups)).any():
            raise PolicyError(
                f"order: expected each of {num_groups} groups once, got {short_repr(order)}"
            )
        return orders

    def _starts(
        self,
        start: StartName | NDArray[np.integer[Any]],
        num_episodes: int,
        generators: Sequence[np.random.Generator],
    ) -> NDArray[np.int32]:
        allowed = self.graph_features.allowed.numpy()
        if isinstance(start, str):
            _check_choice("start", start, get_args(StartName))
            if start == "random":
                keys = np.stack([generator.random(allowed.shape) for generator in generators])
                return np.asarray(np.where(allowed, keys, -1.0).argmax(axis=2), np.int32)
            return np.tile(_single_device(allowed), (num_episodes, 1))
        problem = self.evaluator.problem
        rows = _rows("start", start, num_episodes, problem.num_groups)
        try:
            return problem.check_placements(rows).copy()  # rows may be one, many times
        except GraphError as error:
            raise PolicyError(f"start: {error}") from None


def _single_device(allowed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return int32[G]: the first device that can run all groups, or the first for each group."""
    runs_all = allowed.all(axis=0)
    if runs_all.any():
        return np.full(len(allowed), np.argmax(runs_all), np.int32)
    return np.asarray(allowed.argmax(axis=1), np.int32)


def _check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    if choice not in choices:
        raise PolicyError(
            f"{name}: expected one of {', '.join(map(repr, choices))} or an array, got {choice!r}"
        )


def _rows(
    name: str, rows: NDArray[np.integer[Any]], num_rows: int, length: int
) -> NDArray[np.integer[Any]]:
    array = np.asarray(rows)
    if array.dtype.kind not in "iu" or array.shape not in {(length,), (num_rows, length)}:
        raise PolicyError(
            f"{name}: expected integers of shape ({length},) or ({num_rows}, {length}), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return np.broadcast_to(array, (num_rows, length))


def most_evaluations(problem: PlacementProblem, reward: RewardName, policy: Settings) -> int:
    """Return the largest number of evaluations of an episode.

    Parameters
    ----------
    problem
        Problem of G groups and D devices.
    reward
        Reward of `Settings`.
    policy
        Hyperparameters of the policy, whose features may take evaluations, too.

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
    follows_costs = reward == "intermediate" or policy.sees_schedule
    return (problem.num_groups if follows_costs else 1) + counterfactuals


def training_evaluations(problem: PlacementProblem, settings: Settings, policy: Settings) -> int:
    """Return the largest number of evaluations of a training on one problem.

    For the policy see `most_evaluations`.
    """
    episodes = settings.updates * settings.workers
    validations = sum(map(settings.validates_after, range(1, settings.updates + 1)))
    evaluations = episodes * most_evaluations(problem, settings.reward, policy)
    return evaluations + validations * most_evaluations(problem, "terminal", policy)


def lookahead_evaluations(problem: PlacementProblem) -> int:
    """Return the number of evaluations of the lookahead of an episode.

    Each step has one for each other device that can run the group.
    """
    devices = np.isfinite(problem.group_graph.compute_time).sum(axis=1)
    return int((devices - 1).sum())
