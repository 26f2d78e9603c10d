"""How many placements episodes sample."""

import numpy as np

from placeto_graphs import PlacementProblem
from placeto_policy.settings import RewardName, Settings


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
    if policy.sees_lookahead:
        # Where a step leads is one of the placements that it looked at.
        return lookahead_evaluations(problem) + 1 + counterfactuals
    each_step = reward == "intermediate" or policy.sees_schedule
    return (problem.num_groups if each_step else 1) + counterfactuals


def training_evaluations(problem: PlacementProblem, settings: Settings, policy: Settings) -> int:
    """Return how many placements a training on one problem samples at most.

    Parameters
    ----------
    problem
        The problem.
    settings
        Of the training.
    policy
        Those of the policy, whose features may be asked of the evaluator.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> from placeto_policy.example import two_chains
    >>> settings = Settings(updates=1)
    >>> training_evaluations(two_chains(), settings, settings)  # with the greedy pass of the end
    111
    """
    episodes = settings.updates * settings.workers
    validations = sum(map(settings.validates_after, range(1, settings.updates + 1)))
    each = most_evaluations(problem, settings.reward, policy)
    return episodes * each + validations * most_evaluations(problem, "terminal", policy)


def lookahead_evaluations(problem: PlacementProblem) -> int:
    """Return how many placements an episode looks at before it goes on to one of them.

    In each step that is one for each other device that can run the group.
    """
    devices = np.isfinite(problem.group_graph.compute_time).sum(axis=1)
    return int((devices - 1).sum())
