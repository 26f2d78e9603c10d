"""Which policy a training leaves: the one whose episodes placed its graphs best."""

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch

from placeto_policy.policy import PlacementPolicy


class BestPolicy:
    """The weights with which the graphs of a training were placed best so far.

    A policy that is nearly sure of what it does may learn its way out of a good solution, and not
    find back. What its episodes cost says when it was best, without any further evaluation.

    Parameters
    ----------
    num_graphs
        How many graphs the policy is trained on.

    Attributes
    ----------
    latest : float64[graphs]
        What the last round of episodes of each graph cost, in parts of the graph's work; NaN before
        the first.
    cost : float
        The least mean of these; infinity before all graphs had a round.
    weights : dict of tensors
        Of the policy that ran the last of those episodes; empty before.

    Examples
    --------
    >>> policy = PlacementPolicy(num_devices=2)
    >>> best = BestPolicy(num_graphs=2)
    >>> best.offer(policy, {0: 0.5})
    >>> best.cost
    inf
    >>> best.offer(policy, {1: 0.7})
    >>> best.cost
    0.6
    """

    def __init__(self, num_graphs: int) -> None:
        self.latest = np.full(num_graphs, np.nan)
        self.cost = math.inf
        self.weights: dict[str, torch.Tensor] = {}

    def offer(self, policy: PlacementPolicy, costs: Mapping[int, float]) -> None:
        """Remember a policy if it is the best so far.

        Parameters
        ----------
        policy
            The policy as it was when it ran the episodes.
        costs
            Of each graph that had a round: the mean memory-penalised runtime of the last placements
            of its episodes, in parts of the graph's work.
        """
        for graph, cost in costs.items():
            self.latest[graph] = cost
        mean = float(self.latest.mean())
        if mean < self.cost:
            self.cost = mean
            self.weights = {name: value.clone() for name, value in policy.state_dict().items()}

    def restored(self, policy: PlacementPolicy) -> PlacementPolicy:
        """Return a copy of a policy with these weights, or with its own before there are any."""
        found = copy.deepcopy(policy)
        if self.weights:
            found.load_state_dict(self.weights)
        return found
