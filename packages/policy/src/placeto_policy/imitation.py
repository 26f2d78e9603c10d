"""Learning from good placements: how a policy comes to place a graph that it has never seen."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.costs import PlacementCosts
from placeto_policy.costs import seconds_of_work
from placeto_policy.demonstrations import Demonstration
from placeto_policy.errors import PolicyError
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.states import States
from placeto_policy.states import lookahead_features
from placeto_policy.topology import topology_of


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """How a policy learns from demonstrations.

    Attributes
    ----------
    graphs, states : int
        Of how many demonstrations, and of how many states of each, a step learns.
    learning_rate : float
        Of Adam, when it begins; it rises over the first 50 steps, and falls to a twentieth.
    later_passes : float
        The share of states that start from a full placement in place of one device.
    misplaced_before, misplaced_after : floats
        The share of groups that are not where the demonstration has them, before the current one
        and, in a later pass, after it: each state draws one of these.
    max_gradient_norm : float
        The gradient is scaled down to this norm.

    Examples
    --------
    >>> ImitationSettings(states=8).learning_rate
    0.002
    """

    graphs: int = 6
    states: int = 24
    learning_rate: float = 2e-3
    later_passes: float = 0.4
    misplaced_before: tuple[float, ...] = (0.0, 0.0, 0.02, 0.05)
    misplaced_after: tuple[float, ...] = (0.0, 0.0, 0.03, 0.1, 0.3)
    max_gradient_norm: float = 1.0


WARM_UP_STEPS = 50
LEAST_SHARE_OF_LEARNING_RATE = 0.05
SMALLEST_PROBABILITY = 1e-9


def imitate(
    policy: PlacementPolicy,
    demonstrations: Sequence[Demonstration],
    *,
    steps: int,
    settings: ImitationSettings | None = None,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> None:
    """Let a policy learn to place as demonstrated, in states that it may come to by itself.

    Each state has some groups where the demonstration puts them, but for a few; the current one is
    to go where `Demonstration.wanted` says. Devices that are alike and hold nothing yet are one
    choice. The loss is the divergence of the policy from what is wanted.

    Parameters
    ----------
    policy
        The policy, for any number of devices; it is changed.
    demonstrations
        What to learn from.
    steps
        How many steps of Adam.
    settings
        How it learns.
    seed
        Fixes every random choice.
    report
        Is called after each step with its number and its loss in nats.

    Raises
    ------
    PolicyError
        When there is nothing to learn from, or the policy is for a fixed number of devices.

    Examples
    --------
    >>> from placeto_policy import PlacetoPlacer, preset
    >>> from placeto_policy.demonstrations import demonstrate
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> evaluator = BusiestDevice(two_chains())
    >>> good = demonstrate(evaluator, np.array([0, 0, 0, 1, 1, 1], np.int32))
    >>> policy = PlacementPolicy(settings=preset("general"))
    >>> imitate(policy, [good], steps=60)
    >>> PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator).runtime
    3.0
    """
    if not demonstrations:
        raise PolicyError("demonstrations: expected at least one, got none")
    if policy.num_devices is not None:
        raise PolicyError(
            "policy: expected one for any number of devices, "
            f"got one for {policy.num_devices}: choose the embedding 'pairs'"
        )
    chosen = settings or ImitationSettings()
    generator = np.random.default_rng(seed)
    lessons = [_Lesson(demonstration, policy.settings) for demonstration in demonstrations]
    optimizer = torch.optim.Adam(policy.parameters())
    for step in range(steps):
        drawn = generator.integers(len(lessons), size=chosen.graphs).tolist()
        losses = [_loss(policy, lessons[index], chosen, generator) for index in drawn]
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), chosen.max_gradient_norm)
        if not bool(torch.isfinite(norm)):
            raise PolicyError(f"gradient: expected finite numbers at step {step + 1}, got others")
        optimizer.param_groups[0]["lr"] = chosen.learning_rate * _share(step, steps)
        optimizer.step()
        if report:
            report(step + 1, float(loss.detach()))


def _share(step: int, steps: int) -> float:
    """Return which part of the learning rate a step has."""
    falling = 1 - (1 - LEAST_SHARE_OF_LEARNING_RATE) * step / steps
    return min(1.0, (step + 1) / WARM_UP_STEPS) * falling


class _Lesson:
    """A demonstration, with what its states show."""

    def __init__(self, demonstration: Demonstration, network: Settings) -> None:
        self.demonstration = demonstration
        problem = demonstration.evaluator.problem
        self.topology = topology_of(problem)
        self.costs = PlacementCosts(demonstration.evaluator, network.memory_penalty)
        self.seconds_of_group = seconds_of_work(problem) / problem.num_groups
        self.looks_ahead = network.device_features == "loads-and-lookahead"
        self.allowed = self.topology.allowed.numpy()

    def lookahead(
        self, placements: NDArray[np.int32], current: NDArray[np.int64]
    ) -> torch.Tensor | None:
        if not self.looks_ahead:
            return None
        of_devices = self.costs.of_devices(placements, current)
        return torch.from_numpy(lookahead_features(of_devices, self.seconds_of_group))


def _loss(
    policy: PlacementPolicy,
    lesson: _Lesson,
    settings: ImitationSettings,
    generator: np.random.Generator,
) -> torch.Tensor:
    """Return the mean divergence over some states of a demonstration."""
    states = _drawn_states(lesson, settings, generator)
    together = torch.from_numpy(_one_choice(lesson.demonstration.alike, states))
    wanted = torch.from_numpy(lesson.demonstration.wanted[states.current.numpy()]).float()
    probabilities = torch.einsum("nde,ne->nd", together, policy(states).exp())
    ideal = torch.einsum("nde,ne->nd", together, wanted)
    nats = torch.log(ideal + SMALLEST_PROBABILITY) - torch.log(probabilities + SMALLEST_PROBABILITY)
    divergence: torch.Tensor = (wanted * nats).sum(dim=1).mean()
    return divergence


def _drawn_states(
    lesson: _Lesson, settings: ImitationSettings, generator: np.random.Generator
) -> States:
    """Return N states on the way to the demonstrated placement."""
    topology, count = lesson.topology, settings.states
    order = topology.order
    time_of_group = np.argsort(order)
    current_time = generator.integers(len(order), size=count)
    current = order[current_time]
    visited = time_of_group < current_time[:, None]
    before = _misplaced(lesson, settings.misplaced_before, count, generator)
    after = _misplaced(lesson, settings.misplaced_after, count, generator)
    later = generator.random((count, 1)) < settings.later_passes
    placements = np.where(visited, before, np.where(later, after, _start(lesson)))
    return States(
        topology=topology,
        placement=torch.from_numpy(placements.astype(np.int64)),
        current=torch.from_numpy(current),
        visited=torch.from_numpy(visited),
        lookahead=lesson.lookahead(placements.astype(np.int32), current),
    )


def _misplaced(
    lesson: _Lesson, shares: Sequence[float], count: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Return the placement N times, each time with a share of its groups on a random device."""
    placement, allowed = lesson.demonstration.placement, lesson.allowed
    moved = generator.random((count, len(placement))) < generator.choice(shares, size=(count, 1))
    keys = np.where(allowed, generator.random((count, *allowed.shape)), -1.0)
    return np.where(moved, keys.argmax(axis=2), placement).astype(np.int32)


def _start(lesson: _Lesson) -> NDArray[np.int64]:
    """Return where a first pass has all groups at first: with the first one it visits.

    Which of several equal devices that is, nothing tells; so it is where it can stay.
    """
    device = lesson.demonstration.placement[lesson.topology.order[0]]
    allowed = lesson.allowed
    start: NDArray[np.int64] = np.where(allowed[:, device], device, allowed.argmax(axis=1))
    return start


def _one_choice(alike: NDArray[np.int64], states: States) -> NDArray[np.float32]:
    """Return float32[N, D, D], 1 where two devices are alike and hold nothing, or are the same."""
    placement = states.placement.numpy().copy()
    num_devices = len(alike)
    placement[np.arange(len(placement)), states.current.numpy()] = num_devices  # counts nowhere
    holds = (placement[:, :, None] == np.arange(num_devices)).any(axis=1)
    empty = ~holds
    same = empty[:, :, None] & empty[:, None, :] & (alike[:, None] == alike)
    together: NDArray[np.float32] = (same | np.eye(num_devices, dtype=bool)).astype(np.float32)
    return together
