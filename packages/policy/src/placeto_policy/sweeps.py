"""Moves of single groups, one after the other, without a policy."""

import numpy as np

from placeto_policy.environment import PlacementEnvironment


def sweep(environment: PlacementEnvironment) -> None:
    """Take an episode to its end, and put each group where the placement then costs least.

    A group stays where no other device is better. Unlike the choices of a policy, those of a sweep
    look no further than the next step; a placement that is good on the whole gains from a few of
    them.

    Parameters
    ----------
    environment
        An environment that was reset.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> environment = PlacementEnvironment(BusiestDevice(two_chains()))
    >>> environment.reset(num_episodes=1)
    >>> sweep(environment)
    >>> environment.placement, environment.costs
    (array([[1, 1, 1, 0, 0, 0]], dtype=int32), array([3.]))
    """
    episodes = np.arange(len(environment.order))
    while not environment.is_over:
        here = environment.placement[episodes, environment.order[:, environment.time]]
        costs = environment.costs_of_devices()
        better = costs.min(axis=1) < costs[episodes, here]
        environment.step(np.where(better, costs.argmin(axis=1), here))
