"""The objective of an update: expected reward and entropy, and their gradient."""

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.counterfactuals import Counterfactuals
from placeto_policy.episodes import Episodes
from placeto_policy.policy import PlacementPolicy


def add_gradient(
    policy: PlacementPolicy,
    episodes: Episodes,
    counterfactuals: Counterfactuals | None,
    advantages: NDArray[np.float32],
    steps: NDArray[np.int64],
    *,
    clip_ratio: float,
    entropy_weight: float,
) -> float:
    """Add the gradient of some steps of some episodes; return the sum of their entropies.

    Let r be ``p(action) / p(action when the episode was run)``. The objective is the sum of
    ``min(r A, clip(r, 1 - c, 1 + c) A)`` (Schulman et al. 2017, equation 7) and of the weighted
    entropies. Before the first step of Adam r is 1, and the gradient is that of ``log p A``, as in
    REINFORCE.

    A counterfactual advantage counts for both devices. Times half the weight of their comparison,
    it counts for the action, and with a minus sign for the other device.

    Parameters
    ----------
    policy
        Policy whose parameters get the gradient.
    episodes
        B episodes on one graph.
    counterfactuals
        Other devices, if rewards are counterfactual.
    advantages : float32[B, G]
        Advantages of the steps.
    steps : int64[S]
        Indices of the steps to learn from.
    clip_ratio
        Largest change of a probability for gain, c.
    entropy_weight
        Weight of the entropies.
    """
    taken = [(episodes.actions(), advantages)]
    if counterfactuals:
        halves = 0.5 * counterfactuals.weights * advantages
        taken = [(episodes.actions(), halves), (counterfactuals.devices, -halves)]
    total = 0.0
    for some, states in episodes.states(steps):
        log_probabilities = policy(states)
        before = _by_state(episodes.log_probabilities[:, some])
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        gain = entropy_weight * entropy
        for devices, worths in taken:
            chosen = _by_state(devices[:, some])[:, None]
            worth = _by_state(worths[:, some])
            ratio = (log_probabilities - before).gather(1, chosen)[:, 0].exp()
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            gain = gain + torch.minimum(ratio * worth, clipped * worth).sum()
        (-gain).backward()
        total += float(entropy.detach())
    return total


def _by_state(values: NDArray[np.float32] | NDArray[np.int64]) -> torch.Tensor:
    """Return [S B, ...] for [B, S, ...]: states come step by step."""
    return torch.from_numpy(values.swapaxes(0, 1).copy()).flatten(0, 1)
