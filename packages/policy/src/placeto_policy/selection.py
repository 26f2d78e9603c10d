"""Which policy a training leaves: the one that placed graphs best."""

import copy
import math

import torch

from placeto_policy.policy import PlacementPolicy


class BestPolicy:
    """The weights that were the best so far.

    A policy that is nearly sure of what it does may learn its way out of a good solution, and not
    find back.

    Attributes
    ----------
    cost : float
        The least that was offered; infinity before.
    weights : dict of tensors
        Of the policy that it is of; empty before.

    Examples
    --------
    >>> policy = PlacementPolicy(num_devices=2)
    >>> best = BestPolicy()
    >>> best.offer(policy, 0.6)
    >>> best.cost
    0.6
    """

    def __init__(self) -> None:
        self.cost = math.inf
        self.weights: dict[str, torch.Tensor] = {}

    def offer(self, policy: PlacementPolicy, cost: float) -> None:
        """Remember a policy if it costs less than all before."""
        if cost < self.cost:
            self.cost = cost
            self.weights = {name: value.clone() for name, value in policy.state_dict().items()}

    def restored(self, policy: PlacementPolicy) -> PlacementPolicy:
        """Return a copy of a policy with these weights, or with its own before there are any."""
        found = copy.deepcopy(policy)
        if self.weights:
            found.load_state_dict(self.weights)
        return found
