"""What an episode would have come to with one group on another device."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Episodes
from placeto_policy.episodes import drawn_devices


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """For each step of B episodes on one graph, another device that it might have chosen.

    Attributes
    ----------
    devices : int64[B, G]
        Drawn from the policy in the state of the step; often the device that it did choose.
    evaluations : int64[B]
        How many placements of each episode differ from where it ended.
    """

    devices: NDArray[np.int64]
    evaluations: NDArray[np.int64]


def run_counterfactuals(
    environment: PlacementEnvironment,
    episodes: Episodes,
    generators: Sequence[np.random.Generator],
) -> tuple[Episodes, Counterfactuals]:
    """Reward each step by what the last placement gains over one with another device.

    The reward of step t is ``R(p_T with the other device for its group) - R(p_T)``, in seconds:
    what the step's choice was worth, with the noise of no other choice in it (a baseline as in
    Foerster et al. 2018, *Counterfactual Multi-Agent Policy Gradients*, from one draw of the same
    policy). What the step leads later ones to choose does not enter.

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
        The episodes with these rewards, and with the best of all placements that were evaluated;
        and the other devices.
    """
    draws = np.stack([generator.random(episodes.order.shape[1]) for generator in generators])
    devices = drawn_devices(episodes.log_probabilities, draws)
    rows, steps = np.nonzero(devices != episodes.actions())
    rewards = np.zeros(episodes.rewards.shape)
    best_costs, best_placements = episodes.best_costs.copy(), episodes.best_placements.copy()
    if len(rows):
        placements = episodes.final[rows]
        placements[np.arange(len(rows)), episodes.order[rows, steps]] = devices[rows, steps]
        costs = environment.costs_of(placements)
        rewards[rows, steps] = costs - episodes.costs[rows]
        for row in np.unique(rows):
            own = np.flatnonzero(rows == row)
            least = own[costs[own].argmin()]
            if costs[least] < best_costs[row]:
                best_costs[row], best_placements[row] = costs[least], placements[least]
    changed = replace(
        episodes, rewards=rewards, best_costs=best_costs, best_placements=best_placements
    )
    counts = np.bincount(rows, minlength=len(devices)).astype(np.int64)
    return changed, Counterfactuals(devices, counts)
