"""States that a policy learns from, with target probabilities, made of one demonstration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from placeto_policy.costs import PlacementCosts
from placeto_policy.demonstrations import Demonstration, target_probs
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.states import NOWHERE, States


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """The hyperparameters of `Imitation`.

    Attributes
    ----------
    graphs, states : int
        Number of demonstrations in a step, and of states on the way to each.
    own_graphs, own_rollouts, own_states : int
        Number of problems in a step that the policy places itself, of sampled rollouts of each, and
        of states of each rollout.
    learning_rate : float
        Learning rate of Adam. It rises over the first 50 steps, and falls to a twentieth.
    misplaced : floats
        Fractions of the placed groups that are not where the demonstration has them. Each state
        draws one of these.
    max_gradient_norm : float
        Norm to which a longer gradient is scaled down.

    Examples
    --------
    >>> ImitationSettings(states=8).learning_rate
    0.002
    """

    graphs: int = 3
    states: int = 24
    own_graphs: int = 1
    own_rollouts: int = 6
    own_states: int = 8
    learning_rate: float = 2e-3
    misplaced: tuple[float, ...] = (0.0, 0.0, 0.02, 0.05)
    max_gradient_norm: float = 1.0


@dataclass(frozen=True, eq=False)
class LabelledStates:
    """N states of one problem, with target probabilities.

    Attributes
    ----------
    states : `States`
        The states.
    target_probs : float32[N, D]
        Probabilities of the devices for the current group.
    together : float32[N, D, D]
        1 for two devices that are one choice: the same, or alike and empty. Else 0.
    """

    states: States
    target_probs: torch.Tensor
    together: torch.Tensor


class Lesson:
    """A demonstration, and the states that a policy learns from with its help.

    Parameters
    ----------
    demonstration
        The demonstration.
    network
        Settings of the policy.
    """

    def __init__(self, demonstration: Demonstration, network: Settings) -> None:
        self.demonstration = demonstration
        self.environment = PlacementEnvironment.for_policy(
            demonstration.evaluator, network, reward="terminal"
        )
        self.topology = self.environment.topology
        self.costs = PlacementCosts(demonstration.evaluator, network.memory_penalty)
        self.allowed = self.topology.allowed.numpy()

    def demonstrated(
        self, settings: ImitationSettings, generator: np.random.Generator
    ) -> LabelledStates:
        """Return states on the way to the demonstrated placement, a few groups being elsewhere."""
        order, count = self.topology.order, settings.states
        current_time = generator.integers(len(order), size=count)
        visited = np.argsort(order) < current_time[:, None]
        placements = np.where(visited, self._misplaced(settings, generator), NOWHERE)
        return self._labelled(
            States(
                topology=self.topology,
                placement=torch.from_numpy(placements.astype(np.int64)),
                current=torch.from_numpy(order[current_time]),
                visited=torch.from_numpy(visited),
            )
        )

    def own(
        self,
        policy: PlacementPolicy,
        settings: ImitationSettings,
        generator: np.random.Generator,
    ) -> LabelledStates:
        """Return states of sampled rollouts of the policy."""
        environment = self.environment
        environment.reset(num_episodes=settings.own_rollouts)
        generators = generator.spawn(settings.own_rollouts)
        choice = sampling(generators, self.topology.num_groups)
        episodes = run_episodes(policy, environment, choice)
        steps = np.sort(generator.integers(self.topology.num_groups, size=settings.own_states))
        return self._labelled(_joined([states for _, states in episodes.states(steps)]))

    def _labelled(self, states: States) -> LabelledStates:
        """Return states with target probabilities.

        These follow from the cost if the remaining groups go where the demonstration has them. It
        is the cost to go of Ross and Bagnell 2014, *Reinforcement and Imitation Learning via
        Interactive No-Regret Learning*. Devices that are alike have other numbers in a rollout
        than in the demonstration. Those that have most work in common count as the same.
        """
        current = states.current.numpy()
        costs = self.costs.of_devices(self._completed(states), current)
        targets = target_probs(costs, self.allowed[current])
        return LabelledStates(
            states=states,
            target_probs=torch.from_numpy(targets).float(),
            together=torch.from_numpy(one_choice(self.demonstration.alike, states)),
        )

    def _completed(self, states: States) -> NDArray[np.int32]:
        """Return int32[N, G]: visited groups where they are, the others as demonstrated."""
        own, visited = states.placement.numpy(), states.visited.numpy()
        demonstrated = self.demonstration.placement
        renumbered = np.stack(
            [
                self._numbering(row, seen)[demonstrated]
                for row, seen in zip(own, visited, strict=True)
            ]
        )
        return np.where(visited, own, renumbered).astype(np.int32)

    def _numbering(
        self, placement: NDArray[np.int64], visited: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return int64[D], the device of the rollout for each one of the demonstration."""
        alike = self.demonstration.alike
        work = self.topology.shares.numpy() + 1e-6  # groups that take no time count a little
        common = np.zeros((len(alike), len(alike)))
        there = self.demonstration.placement[visited], placement[visited]
        np.add.at(common, there, work[visited])
        common[alike[:, None] != alike] = -1e6
        _, numbering = linear_sum_assignment(common, maximize=True)
        return np.asarray(numbering, np.int64)

    def _misplaced(
        self, settings: ImitationSettings, generator: np.random.Generator
    ) -> NDArray[np.int32]:
        """Return the placement for each state, each with a share of groups on a random device."""
        placement, allowed, count = self.demonstration.placement, self.allowed, settings.states
        share = generator.choice(settings.misplaced, size=(count, 1))
        moved = generator.random((count, len(placement))) < share
        keys = np.where(allowed, generator.random((count, *allowed.shape)), -1.0)
        return np.where(moved, keys.argmax(axis=2), placement).astype(np.int32)


def _joined(parts: Sequence[States]) -> States:
    """Return the states of several batches of one graph as one."""
    return States(
        topology=parts[0].topology,
        placement=torch.cat([part.placement for part in parts]),
        current=torch.cat([part.current for part in parts]),
        visited=torch.cat([part.visited for part in parts]),
    )


def one_choice(alike: NDArray[np.int64], states: States) -> NDArray[np.float32]:
    """Return float32[N, D, D], 1 for two devices that are the same, or alike and empty.

    Parameters
    ----------
    alike : int64[D]
        Numbers that are equal for devices that can take each other's place.
    states
        N states.
    """
    placement = states.placement.numpy().copy()
    num_devices = len(alike)
    placement[np.arange(len(placement)), states.current.numpy()] = num_devices  # counts nowhere
    holds = (placement[:, :, None] == np.arange(num_devices)).any(axis=1)
    empty = ~holds
    same = empty[:, :, None] & empty[:, None, :] & (alike[:, None] == alike)
    together: NDArray[np.float32] = (same | np.eye(num_devices, dtype=bool)).astype(np.float32)
    return together
