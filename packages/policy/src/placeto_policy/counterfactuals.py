"""What an episode would have come to with one group on another device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Episodes, drawn_devices

NUMBERS_PER_BATCH = 2**24  # of placements that are evaluated at once: 64 MB


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """For each step of B episodes on one graph, another device that it might have chosen.

    Attributes
    ----------
    devices : int64[B, G]
        Drawn from the policy in the state of the step, without the device that it did choose; that
        device where there is no other.
    weights : float32[B, G]
        By what a comparison of both devices counts; 0 where there is no other.
    evaluations : int64[B]
        How many placements of each episode differ from where it ended.
    """

    devices: NDArray[np.int64]
    weights: NDArray[np.float32]
    evaluations: NDArray[np.int64]


def run_counterfactuals(
    environment: PlacementEnvironment,
    episodes: Episodes,
    generators: Sequence[np.random.Generator],
) -> tuple[Episodes, Counterfactuals]:
    """Reward each step by what the last placement gains over one with another device.

    The reward of step t is ``R(p_T with the other device for its group) - R(p_T)``, in seconds:
    what the step's choice was worth, with the noise of no other choice in it (after the
    counterfactual baseline of Foerster et al. 2018, *Counterfactual Multi-Agent Policy Gradients*).
    What the step leads later ones to choose does not enter.

    Parameters
    ----------
    environment
        Where the episodes ran.
    episodes
        Episodes that are over.
    generators
        One for each episode.

    Returns
    -------
    `Episodes`, `Counterfactuals`
        The episodes with these rewards, and the other devices.
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
    """Return a device other than the one chosen for each state, and the weight of comparing both.

    Two devices that are drawn independently say something only if they differ, which those of a
    policy that is almost sure hardly ever do. Here they always do, and their comparison counts as
    often as independent draws would have made it for once that these do: with p and q the
    probabilities of both, ``2 p q / (p q / (1 - p) + p q / (1 - q))``. On the mean over all draws
    that is the same, with much less noise.

    Parameters
    ----------
    log_probabilities : float32[..., D]
        Of the devices.
    actions : int64[...]
        Which one was chosen.
    draws : float64[...]
        Numbers from 0 to 1.

    Returns
    -------
    int64[...], float32[...]
        The other devices, and the weights.

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
    # Sums of the others, as 1 minus a probability near 1 has few digits.
    without_chosen, without_other = others.sum(axis=-1), apart.sum(axis=-1)
    product, total = without_chosen * without_other, without_chosen + without_other
    weights = np.where(possible, 2 * product / np.where(possible, total, 1.0), 0.0)
    return devices, weights.astype(np.float32)
