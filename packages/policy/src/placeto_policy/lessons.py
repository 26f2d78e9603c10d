"""States that a policy learns from, and what is wanted in them, from one demonstration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from placeto_policy.costs import PlacementCosts
from placeto_policy.demonstrations import Demonstration, wanted_devices
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.imitation_settings import ImitationSettings
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.states import States, lookahead_features


@dataclass(frozen=True, eq=False)
class WantedStates:
    """N states of one problem, and what is wanted in them.

    Attributes
    ----------
    states : `States`
        The states.
    wanted : float32[N, D]
        How much each device is wanted for the current group; rows sum up to 1.
    together : float32[N, D, D]
        1 where two devices are alike and hold nothing, or are the same: they are one choice.
    """

    states: States
    wanted: torch.Tensor
    together: torch.Tensor


class Lesson:
    """A demonstration, and the states that a policy learns from with its help.

    Parameters
    ----------
    demonstration
        The demonstration.
    network
        What the policy is shown.
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
    ) -> WantedStates:
        """Return states on the way to the demonstrated placement, a few groups being elsewhere.

        What is wanted in them is what the demonstration says.
        """
        order, count = self.topology.order, settings.states
        current_time = generator.integers(len(order), size=count)
        current = order[current_time]
        visited = np.argsort(order) < current_time[:, None]
        before = self._misplaced(settings.misplaced_before, count, generator)
        after = self._misplaced(settings.misplaced_after, count, generator)
        later = generator.random((count, 1)) < settings.later_passes
        placements = np.where(visited, before, np.where(later, after, self._start()))
        states = States(
            topology=self.topology,
            placement=torch.from_numpy(placements.astype(np.int64)),
            current=torch.from_numpy(current),
            visited=torch.from_numpy(visited),
            lookahead=self._lookahead(placements.astype(np.int32), current),
        )
        return self._wanted(states, self.demonstration.wanted[current])

    def own(
        self,
        policy: PlacementPolicy,
        settings: ImitationSettings,
        generator: np.random.Generator,
    ) -> WantedStates:
        """Return states that the policy comes to by itself.

        What is wanted in them is what the step would cost in the end, if the groups that are still
        to come went where the demonstration has them: the cost to go of Ross and Bagnell 2014,
        *Reinforcement and Imitation Learning via Interactive No-Regret Learning*. Devices that are
        alike have other numbers in the policy's pass than in the demonstration; those that hold
        most in common count as the same.
        """
        environment = self.environment
        environment.reset(num_episodes=settings.own_passes)
        generators = generator.spawn(settings.own_passes)
        choice = sampling(generators, self.topology.num_groups)
        episodes = run_episodes(policy, environment, choice)
        steps = np.sort(generator.integers(self.topology.num_groups, size=settings.own_states))
        parts = [states for _, states in episodes.states(steps)]
        states = _joined(parts)
        completed = self._completed(states)
        current = states.current.numpy()
        costs = self.costs.of_devices(completed, current)
        return self._wanted(states, wanted_devices(costs, self.allowed[current]))

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
        """Return int64[D], which device of a pass is which one of the demonstration."""
        alike = self.demonstration.alike
        work = self.topology.shares.numpy() + 1e-6  # groups that take no time count a little
        common = np.zeros((len(alike), len(alike)))
        there = self.demonstration.placement[visited], placement[visited]
        np.add.at(common, there, work[visited])
        common[alike[:, None] != alike] = -1e6
        _, numbering = linear_sum_assignment(common, maximize=True)
        return np.asarray(numbering, np.int64)

    def _wanted(self, states: States, wanted: NDArray[np.float64]) -> WantedStates:
        return WantedStates(
            states=states,
            wanted=torch.from_numpy(wanted).float(),
            together=torch.from_numpy(one_choice(self.demonstration.alike, states)),
        )

    def _lookahead(
        self, placements: NDArray[np.int32], current: NDArray[np.int64]
    ) -> torch.Tensor | None:
        if not self.environment.looks_ahead:
            return None
        of_devices = self.costs.of_devices(placements, current)
        seconds_of_group = self.environment.seconds_of_work / self.topology.num_groups
        return torch.from_numpy(lookahead_features(of_devices, seconds_of_group))

    def _misplaced(
        self, shares: Sequence[float], count: int, generator: np.random.Generator
    ) -> NDArray[np.int32]:
        """Return the placement N times, each time with a share of its groups on a random device."""
        placement, allowed = self.demonstration.placement, self.allowed
        share = generator.choice(shares, size=(count, 1))
        moved = generator.random((count, len(placement))) < share
        keys = np.where(allowed, generator.random((count, *allowed.shape)), -1.0)
        return np.where(moved, keys.argmax(axis=2), placement).astype(np.int32)

    def _start(self) -> NDArray[np.int64]:
        """Return where a first pass has all groups at first: with the first one it visits.

        Which of several equal devices that is, nothing tells; so it is where it can stay.
        """
        device = self.demonstration.placement[self.topology.order[0]]
        allowed = self.allowed
        start: NDArray[np.int64] = np.where(allowed[:, device], device, allowed.argmax(axis=1))
        return start


def _joined(parts: Sequence[States]) -> States:
    """Return the states of several batches of one graph as one."""
    lookaheads = [part.lookahead for part in parts if part.lookahead is not None]
    return States(
        topology=parts[0].topology,
        placement=torch.cat([part.placement for part in parts]),
        current=torch.cat([part.current for part in parts]),
        visited=torch.cat([part.visited for part in parts]),
        lookahead=torch.cat(lookaheads) if lookaheads else None,
    )


def one_choice(alike: NDArray[np.int64], states: States) -> NDArray[np.float32]:
    """Return float32[N, D, D], 1 where two devices are alike and hold nothing, or are the same.

    Parameters
    ----------
    alike : int64[D]
        Equal numbers for devices that can take each other's place.
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
