"""Costs of final placements with one group on another device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Episodes, drawn_devices

NUMBERS_PER_BATCH = 2**24  # of placements that are evaluated at once: 64 MB


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Another device for each step of B episodes on one graph.

    Attributes
    ----------
    devices : int64[B, G]
        Devices that are drawn from the policy without the chosen one; the chosen one if there is no
        other.
    weights : float32[B, G]
        Weights of the comparisons of both devices; 0 if there is no other.
    evaluations : int64[B]
        Number of placements of each episode that differ from its last one.
    """

    devices: NDArray[np.int64]
    weights: NDArray[np.float32]
    evaluations: NDArray[np.int64]


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

    Parameters
    ----------
    environment
        Environment in which the episodes ran.
    episodes
        Episodes that are over.
    generators
        Generators, one for each episode.

    Returns
    -------
    `Episodes`, `Counterfactuals`
        Episodes with these rewards, and the other devices.
    """
    draws = np.stack([generator.random(episodes.order.shape[1]) for generator in generators])
    devices, weights = other_devices(episodes.log_probabilities, episodes.actions(), draws)
    rows, steps = np.nonzero(weights)
    rewards = np.zeros(episodes.rewards.shape)
    size = max(1, NUMBERS_PER_BATCH // episodes.order.shape[1])
    for first in range(0, len(rows), size):
        row, step = rows[first : first + size], steps[first : first + size]
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

    Parameters
    ----------
    log_probabilities : float32[..., D]
        Log-probabilities of the devices.
    actions : int64[...]
        Chosen devices.
    draws : float64[...]
        Uniform numbers from 0 to 1.

    Returns
    -------
    int64[...], float32[...]
        Other devices, and weights.

    Examples
    --------
    >>> certain = np.log(np.array([[0.99, 0.01], [0.5, 0.5]], np.float32))
    >>> devices, weights = other_devices(certain, np.array([0, 1]), np.array([0.5, 0.5]))
    >>> devices, weights.round(4)
    (array([1, 0]), array([0.0198, 0.5   ], dtype=float32))
    """
    probabilities = np.exp(log_probabilities.astype(np.float64))
    chosen = actions[..., None]
    others = probabilities.copy()
    np.put_along_axis(others, chosen, 0.0, axis=-1)
    possible = others.any(axis=-1)
    with np.errstate(divide="ignore"):
        devices = np.where(possible, drawn_devices(np.log(others), draws), actions)
    apart = probabilities.copy()
    np.put_along_axis(apart, devices[..., None], 0.0, axis=-1)
    # Sums of the others: 1 minus a probability near 1 has few digits.
    without_chosen, without_other = others.sum(axis=-1), apart.sum(axis=-1)
    product, total = without_chosen * without_other, without_chosen + without_other
    weights = np.where(possible, 2 * product / np.where(possible, total, 1.0), 0.0)
    return devices, weights.astype(np.float32)
