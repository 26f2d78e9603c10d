"""How many placements episodes sample."""

import numpy as np

from placeto_graphs import PlacementProblem
from placeto_policy.settings import DeviceFeaturesName
from placeto_policy.settings import RewardName


def most_evaluations(
    problem: PlacementProblem, reward: RewardName, device_features: DeviceFeaturesName
) -> int:
    """Return how many placements an episode samples at most.

    Parameters
    ----------
    problem
        G groups on D devices.
    reward, device_features
        As in `Settings`.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> most_evaluations(two_chains(), "terminal", "none")
    1
    >>> most_evaluations(two_chains(), "counterfactual", "loads-and-lookahead")
    13
    """
    own = {"intermediate": problem.num_groups, "terminal": 1}
    most = own.get(reward, 1 + problem.num_groups)
    if device_features != "loads-and-lookahead":
        return most
    # Where a step leads is one of the placements that it looked at.
    return lookahead_evaluations(problem) + (1 if reward == "intermediate" else most)


def lookahead_evaluations(problem: PlacementProblem) -> int:
    """Return how many placements an episode looks at before it goes on to one of them.

    In each step that is one for each other device that can run the group.
    """
    devices = np.isfinite(problem.group_graph.compute_time).sum(axis=1)
    return int((devices - 1).sum())
