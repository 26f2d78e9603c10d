"""How many placements episodes sample."""

import numpy as np

from placeto_graphs import PlacementProblem
from placeto_policy.settings import RewardName
from placeto_policy.settings import Settings


def most_evaluations(problem: PlacementProblem, reward: RewardName, policy: Settings) -> int:
    """Return how many placements an episode samples at most.

    Parameters
    ----------
    problem
        G groups on D devices.
    reward
        As in `Settings`.
    policy
        Those of the policy, whose features may be asked of the evaluator.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> from placeto_policy.example import two_chains
    >>> most_evaluations(two_chains(), "terminal", preset("paper"))
    1
    >>> most_evaluations(two_chains(), "counterfactual", preset("default"))
    13
    """
    counterfactuals = problem.num_groups if reward == "counterfactual" else 0
    if policy.device_features == "loads-and-lookahead":
        # Where a step leads is one of the placements that it looked at.
        return lookahead_evaluations(problem) + 1 + counterfactuals
    each_step = reward == "intermediate" or policy.node_features == "costs-times-and-schedule"
    return (problem.num_groups if each_step else 1) + counterfactuals


def lookahead_evaluations(problem: PlacementProblem) -> int:
    """Return how many placements an episode looks at before it goes on to one of them.

    In each step that is one for each other device that can run the group.
    """
    devices = np.isfinite(problem.group_graph.compute_time).sum(axis=1)
    return int((devices - 1).sum())
