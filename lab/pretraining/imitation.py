"""Imitation of good placements, by which one policy learns many graphs and clusters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from placeto_graphs import Cluster, Evaluator, PlacementProblem
from placeto_policy import PlacementEnvironment, PlacementPolicy, Settings, States
from placeto_policy.environment import PlacementCosts
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.states import NOWHERE
from placeto_policy.workers import one_thread_of_torch
from pretraining.learning import LearningRun

SMALLEST_PROBABILITY = 1e-9
# As a fraction of the least cost: a device that costs so much more is e times less probable.
TEMPERATURE = 0.003


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """The hyperparameters of `Imitation`."""

    graphs: int = 3  # demonstrations in a step
    states: int = 24  # on the way to each
    own_graphs: int = 1  # problems in a step that the policy places itself
    own_rollouts: int = 6  # sampled ones of each of these
    own_states: int = 8  # of each rollout
    learning_rate: float = 2e-3
    # Fractions of placed groups that are not where the demonstration has them; a state draws one.
    misplaced: tuple[float, ...] = (0.0, 0.0, 0.02, 0.05)
    max_gradient_norm: float = 1.0


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A good placement int32[G] to imitate."""

    evaluator: Evaluator
    placement: NDArray[np.int32]
    alike: NDArray[np.int64]  # [D], equal for devices that can take each other's place


def demonstrate(evaluator: Evaluator, placement: NDArray[np.int32]) -> Demonstration:
    """Return a placement, as of a long search, as a demonstration."""
    problem = evaluator.problem
    return Demonstration(
        evaluator, problem.check_placement(placement), interchangeable_devices(problem)
    )


@dataclass(frozen=True, eq=False)
class LabelledStates:
    """N states of one problem, with target probabilities."""

    states: States
    target_probs: torch.Tensor  # float32[N, D], of the devices for the current group
    together: torch.Tensor  # float32[N, D, D], 1 for the same device and for alike, empty ones


class Imitation(LearningRun):
    """Trains a policy to place as demonstrated, on any graphs and clusters at once.

    A step learns from states on the way to good placements, and from states of the policy's own
    rollouts (Ross et al. 2011, *A Reduction of Imitation Learning and Structured Prediction to
    No-Regret Online Learning*). Only the latter correct errors of the policy. The loss is the
    divergence of the policy from `target_probs`. Devices that are alike and empty are one choice.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        demonstrations: Sequence[Demonstration],
        *,
        steps: int,
        weights: Sequence[float] | None = None,
        settings: ImitationSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = settings or ImitationSettings()
        super().__init__(
            policy,
            len(demonstrations),
            graphs_of_step=self.settings.graphs + self.settings.own_graphs,
            weights=weights,
            steps=steps,
            learning_rate=self.settings.learning_rate,
            max_gradient_norm=self.settings.max_gradient_norm,
            seed=seed,
        )
        self._lessons = [Lesson(each, policy.settings) for each in demonstrations]

    def step(self) -> float:
        """Make a step, and return the mean loss before it, in nats."""
        chosen = self.settings
        own_states = chosen.own_graphs * chosen.own_rollouts * chosen.own_states
        num_states = chosen.graphs * chosen.states + own_states
        added = 0.0
        with one_thread_of_torch():
            for turn, graph, generator in self.turns():
                lesson = self._lessons[graph]
                learned = (
                    lesson.demonstrated(chosen, generator)
                    if turn < chosen.graphs
                    else lesson.own(self.policy, chosen, generator)
                )
                loss = divergence(self.policy, learned) / num_states
                loss.backward()  # type: ignore[no-untyped-call]
                added += float(loss.detach())
        return self.apply(added)


def divergence(policy: PlacementPolicy, learned: LabelledStates) -> torch.Tensor:
    """Return the divergence of a policy from target probabilities, summed over states, in nats."""
    targets, together = learned.target_probs, learned.together
    probabilities = torch.einsum("nde,ne->nd", together, policy(learned.states).exp())
    ideal = torch.einsum("nde,ne->nd", together, targets)
    nats = torch.log(ideal + SMALLEST_PROBABILITY) - torch.log(probabilities + SMALLEST_PROBABILITY)
    total: torch.Tensor = (targets * nats).sum()
    return total


class Lesson:
    """A demonstration, and the states that a policy learns from with its help."""

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
        self, policy: PlacementPolicy, settings: ImitationSettings, generator: np.random.Generator
    ) -> LabelledStates:
        """Return states of sampled rollouts of the policy."""
        self.environment.reset(num_episodes=settings.own_rollouts)
        generators = generator.spawn(settings.own_rollouts)
        choice = sampling(generators, self.topology.num_groups)
        episodes = run_episodes(policy, self.environment, choice)
        steps = np.sort(generator.integers(self.topology.num_groups, size=settings.own_states))
        parts = [states for _, states in episodes.states(steps)]
        return self._labelled(
            States(
                topology=self.topology,
                placement=torch.cat([part.placement for part in parts]),
                current=torch.cat([part.current for part in parts]),
                visited=torch.cat([part.visited for part in parts]),
            )
        )

    def _labelled(self, states: States) -> LabelledStates:
        """Return states with target probabilities.

        These follow from the cost if the remaining groups go where the demonstration has them. It
        is the cost to go of Ross and Bagnell 2014, *Reinforcement and Imitation Learning via
        Interactive No-Regret Learning*. Devices that are alike have other numbers in a rollout
        than in the demonstration. Those that have most work in common count as the same.
        """
        current = states.current.numpy()
        costs = self.costs.of_devices(self._completed(states), current)
        targets = target_probs(costs)
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


def target_probs(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[N, D], target probabilities of devices by the cost with the group on each.

    They are proportional to ``exp(-more / (0.003 least))``, where ``more`` is a cost less the least
    one. If devices cost almost the same, they are almost equally probable. A device that cannot run
    the group costs infinity.
    """
    least = costs.min(axis=1, keepdims=True)
    more = costs - least
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = np.where(more > 0, np.exp(-more / (TEMPERATURE * least)), 1.0)
    shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def one_choice(alike: NDArray[np.int64], states: States) -> NDArray[np.float32]:
    """Return float32[N, D, D], 1 for two devices that are the same, or alike and empty."""
    placement = states.placement.numpy().copy()
    num_devices = len(alike)
    placement[np.arange(len(placement)), states.current.numpy()] = num_devices  # counts nowhere
    holds = (placement[:, :, None] == np.arange(num_devices)).any(axis=1)
    empty = ~holds
    same = empty[:, :, None] & empty[:, None, :] & (alike[:, None] == alike)
    together: NDArray[np.float32] = (same | np.eye(num_devices, dtype=bool)).astype(np.float32)
    return together


def interchangeable_devices(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[D], numbers that are equal for devices that can take each other's place.

    If two of them change places, all times, memories and links of the problem stay the same.
    """
    classes = np.arange(problem.num_devices)
    for device in range(problem.num_devices):
        for earlier in range(device):
            if _can_change_places(problem, earlier, device):
                classes[device] = classes[earlier]
                break
    return classes


def _can_change_places(problem: PlacementProblem, one: int, other: int) -> bool:
    cluster = problem.cluster
    own = [
        (device.memory_bytes, device.op_overhead, device.transfer_overhead)
        for device in (cluster.devices[one], cluster.devices[other])
    ]
    times = problem.compute_time
    swapped = np.arange(problem.num_devices)
    swapped[[one, other]] = other, one
    return (
        own[0] == own[1]
        and np.array_equal(times[:, one], times[:, other])
        and all(
            np.array_equal(values, values[np.ix_(swapped, swapped)])
            for values in (cluster.bandwidth, cluster.latency)
        )
        and _shares_links_alike(cluster, swapped)
    )


def _shares_links_alike(cluster: Cluster, swapped: NDArray[np.int64]) -> bool:
    """Return whether the same pairs share links after devices have changed places."""
    before, after = (
        np.unique(links, return_inverse=True, return_index=True)
        for links in (cluster.link, cluster.link[np.ix_(swapped, swapped)])
    )
    first_before = before[1][before[2]].ravel()
    first_after = after[1][after[2]].ravel()
    return np.array_equal(first_before, first_after)
