"""Whole episodes of a policy, the states on the way, and counterfactual rewards."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.environment import PlacementEnvironment
from placeto_policy.errors import PolicyError
from placeto_policy.graph_features import GraphFeatures
from placeto_policy.policy import PlacementPolicy
from placeto_policy.states import States

NUMBERS_PER_BATCH = 2**24  # of placements that are evaluated at once: 64 MB
NODES_PER_BATCH = 2**14  # of states that enter the network at once; more are no faster


@dataclass(frozen=True, eq=False)
class Episodes:
    """B whole episodes on one graph of G groups."""

    graph_features: GraphFeatures
    order: NDArray[np.int64]  # [B, G], groups in the order of visits
    start: NDArray[np.int32]  # [B, G], placements before the first step as states show them
    final: NDArray[np.int32]  # [B, G], placements after the last step
    rewards: NDArray[np.float64]  # [B, G], of the steps, in seconds
    costs: NDArray[np.float64]  # [B], R of the final placements
    log_probabilities: NDArray[np.float32]  # [B, G, D], of the devices, when the episode was run
    lookahead: NDArray[np.float32] | None = None  # [B, G, D] features, if the policy has them
    schedule: NDArray[np.float32] | None = None  # [B, G, G, 3] features, if the policy has them

    def actions(self) -> NDArray[np.int64]:
        """Return int64[B, G], the device that each step chose."""
        return np.take_along_axis(self.final, self.order, axis=1).astype(np.int64)

    def states(self, steps: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], States]]:
        """Yield the states before some steps of all episodes, in batches that caches hold."""
        count, num_groups = self.order.shape
        order, start, final = (
            torch.from_numpy(array.astype(np.int64))
            for array in (self.order, self.start, self.final)
        )
        position = torch.argsort(order, dim=1)
        steps_at_once = max(1, NODES_PER_BATCH // (count * num_groups))
        for first in range(0, len(steps), steps_at_once):
            batch_steps = steps[first : first + steps_at_once]
            visited = position < torch.from_numpy(batch_steps)[:, None, None]
            yield (
                batch_steps,
                States(
                    graph_features=self.graph_features,
                    placement=torch.where(visited, final, start).flatten(0, 1),
                    current=order[:, batch_steps].T.flatten(),
                    visited=visited.flatten(0, 1),
                    lookahead=_of_steps(self.lookahead, batch_steps),
                    schedule=_of_steps(self.schedule, batch_steps),
                ),
            )


def _of_steps(
    features: NDArray[np.float32] | None, steps: NDArray[np.int64]
) -> torch.Tensor | None:
    """Return [S B, ...] for some steps of [B, G, ...]: states come step by step."""
    if features is None:
        return None
    return torch.from_numpy(features[:, steps].swapaxes(0, 1)).flatten(0, 1)


Choice = Callable[[int, NDArray[np.float32]], NDArray[np.int64]]


def greedy(_: int, log_probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the most probable devices int64[B]."""
    most_probable: NDArray[np.int64] = log_probabilities.argmax(axis=1)
    return most_probable


def sampling(generators: Sequence[np.random.Generator], num_groups: int) -> Choice:
    """Return a choice at random, with a generator for each episode.

    The draws of an episode depend on its own generator only. Episodes can therefore be divided
    among processes in any way.
    """
    draws = np.stack([generator.random(num_groups) for generator in generators])

    def choose(time: int, log_probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
        return drawn_devices(log_probabilities, draws[:, time])

    return choose


def drawn_devices(
    log_probabilities: NDArray[np.float32], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return int64[...], devices that are sampled by uniform numbers."""
    cumulative = np.exp(log_probabilities.astype(np.float64)).cumsum(axis=-1)
    thresholds = draws[..., None] * cumulative[..., -1:]
    devices: NDArray[np.int64] = (cumulative[..., :-1] <= thresholds).sum(axis=-1)
    return devices


def run_episodes(
    policy: PlacementPolicy, environment: PlacementEnvironment, choice: Choice
) -> Episodes:
    """Run the episodes of an environment that was reset to their end."""
    (episodes,) = run_side_by_side(policy, [environment], [choice])
    return episodes


@torch.inference_mode()
def run_side_by_side(
    policy: PlacementPolicy,
    environments: Sequence[PlacementEnvironment],
    choices: Sequence[Choice],
) -> list[Episodes]:
    """Run the episodes of environments that were reset to their end, all in lockstep."""
    rollouts = [
        _Rollout(environment, choice)
        for environment, choice in zip(environments, choices, strict=True)
    ]
    running: list[_Rollout] = []
    while unfinished := [rollout for rollout in rollouts if not rollout.environment.is_over]:
        if len(unfinished) != len(running):
            running = unfinished
            policy_on_graphs = policy.side_by_side(
                [rollout.environment.graph_features for rollout in unfinished],
                [len(rollout.environment.order) for rollout in unfinished],
            )
        states_of_graphs = [rollout.environment.states() for rollout in running]
        log_probabilities_of_graphs = policy_on_graphs(states_of_graphs)
        for rollout, states, log_probabilities in zip(
            running, states_of_graphs, log_probabilities_of_graphs, strict=True
        ):
            rollout.step(states, log_probabilities.numpy())
    return [rollout.episodes() for rollout in rollouts]


class _Rollout:
    """The episodes of an environment, while they run."""

    def __init__(self, environment: PlacementEnvironment, choice: Choice) -> None:
        self.environment = environment
        self._choice = choice
        shape = environment.order.shape
        self._start = environment.shown_start
        self._rewards = np.empty(shape)
        num_devices = environment.graph_features.num_devices
        self._log_probabilities = np.empty((*shape, num_devices), np.float32)
        self._lookahead: list[NDArray[np.float32]] = []
        self._schedule: list[NDArray[np.float32]] = []

    def step(self, states: States, log_probabilities: NDArray[np.float32]) -> None:
        """Choose devices by their probabilities in these states."""
        if np.isnan(log_probabilities).any():
            raise PolicyError("policy: expected finite probabilities, got NaN: check its weights")
        environment, time = self.environment, self.environment.time
        self._log_probabilities[:, time] = log_probabilities
        if states.lookahead is not None:
            self._lookahead.append(states.lookahead.numpy())
        if states.schedule is not None:
            self._schedule.append(states.schedule.numpy())
        self._rewards[:, time] = environment.step(self._choice(time, log_probabilities))

    def episodes(self) -> Episodes:
        """Return the episodes, which are over."""
        environment = self.environment
        return Episodes(
            graph_features=environment.graph_features,
            order=environment.order,
            start=self._start,
            final=environment.placement.copy(),
            rewards=self._rewards,
            costs=environment.costs,
            log_probabilities=self._log_probabilities,
            lookahead=np.stack(self._lookahead, axis=1) if self._lookahead else None,
            schedule=np.stack(self._schedule, axis=1) if self._schedule else None,
        )


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Another device for each step of B episodes on one graph."""

    devices: NDArray[np.int64]  # [B, G], drawn without the chosen one, if there is another
    weights: NDArray[np.float32]  # [B, G], of the comparisons of both; 0 if there is no other
    evaluations: NDArray[np.int64]  # [B], placements that differ from the last one


def run_counterfactuals(
    environment: PlacementEnvironment,
    episodes: Episodes,
    generators: Sequence[np.random.Generator],
) -> tuple[Episodes, Counterfactuals]:
    """Reward each step by the gain of the last placement over that with another device.

    The reward of step t is ``R(p_T with the other device for its group) - R(p_T)``, in seconds. It
    has the noise of no other choice, after the counterfactual baseline of Foerster et al. 2018,
    *Counterfactual Multi-Agent Policy Gradients*. The effect of a step on later choices does not
    enter.
    """
    draws = np.stack([generator.random(episodes.order.shape[1]) for generator in generators])
    devices, weights = other_devices(episodes.log_probabilities, episodes.actions(), draws)
    rows, steps = np.nonzero(weights)
    rewards = np.zeros(episodes.rewards.shape)
    batch_size = max(1, NUMBERS_PER_BATCH // episodes.order.shape[1])
    for first in range(0, len(rows), batch_size):
        batch = slice(first, first + batch_size)
        row, step = rows[batch], steps[batch]
        placements = episodes.final[row]
        placements[np.arange(len(row)), episodes.order[row, step]] = devices[row, step]
        rewards[row, step] = environment.costs_of(placements) - episodes.costs[row]
    counts = np.bincount(rows, minlength=len(devices)).astype(np.int64)
    return replace(episodes, rewards=rewards), Counterfactuals(devices, weights, counts)


def other_devices(
    log_probabilities: NDArray[np.float32],
    actions: NDArray[np.int64],
    draws: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return another device than the chosen one for each state, and the weight of both.

    Two independent draws are of use only if they differ, and those of a nearly sure policy barely
    ever do. Here the devices always differ. The weight is the ratio of the probability of the pair
    by independent draws to that by these draws: ``2 p q / (p q / (1 - p) + p q / (1 - q))`` with
    the probabilities p and q. The mean is that of independent draws, with much less noise.
    """
    probabilities = np.exp(log_probabilities.astype(np.float64))
    without_action = _without(probabilities, actions)
    has_other = without_action.any(axis=-1)
    with np.errstate(divide="ignore"):
        devices = np.where(has_other, drawn_devices(np.log(without_action), draws), actions)
    # Sums of the others: 1 minus a probability near 1 has few digits.
    not_action = without_action.sum(axis=-1)
    not_device = _without(probabilities, devices).sum(axis=-1)
    product, total = not_action * not_device, not_action + not_device
    weights = np.where(has_other, 2 * product / np.where(has_other, total, 1.0), 0.0)
    return devices, weights.astype(np.float32)


def _without(probabilities: NDArray[np.float64], devices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[..., D], the probabilities with 0 for one device of each state."""
    probabilities = probabilities.copy()
    np.put_along_axis(probabilities, devices[..., None], 0.0, axis=-1)
    return probabilities
