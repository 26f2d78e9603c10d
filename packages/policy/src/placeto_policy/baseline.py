"""Baselines: expected returns of the steps of an episode."""

import numpy as np
from numpy.typing import NDArray

from placeto_policy.settings import Settings


class TimeStepBaseline:
    """The mean return of each time step over the last rounds of episodes on one graph.

    There is one for each time step and each graph (Addanki et al. 2019, appendix A). A round is all
    episodes of a graph in one update, as in the published code.

    Parameters
    ----------
    num_steps
        Number of steps of an episode, G.
    window
        Number of rounds, k_b.

    Attributes
    ----------
    means : float64[K, G]
        Mean returns of the last rounds, K <= k_b, the oldest first.
    sizes : float64[K]
        Mean absolute advantage of each of these rounds.

    Examples
    --------
    >>> baseline = TimeStepBaseline(num_steps=2, window=2)
    >>> first, second = np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([[9.0, 8.0]])
    >>> baseline.expected(first)  # nothing came before it
    array([2., 1.])
    >>> baseline.add(first)
    >>> baseline.expected(second)
    array([2., 1.])
    """

    def __init__(self, num_steps: int, window: int) -> None:
        self.window = window
        self.means = np.zeros((0, num_steps))
        self.sizes = np.zeros(0)

    def expected(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[G], the mean return of each step.

        Parameters
        ----------
        returns : float64[episodes, G]
            Returns of the new round. The first round is compared with its own mean: compared with
            0, each of its actions would be punished.
        """
        rounds = self.means if len(self.means) else returns
        mean: NDArray[np.float64] = rounds.mean(axis=0)
        return mean

    def add(self, returns: NDArray[np.float64]) -> None:
        """Add a round of returns float64[episodes, G]."""
        size = np.abs(returns - self.expected(returns)).mean()
        self.means = np.concatenate([self.means, returns.mean(axis=0)[None]])[-self.window :]
        self.sizes = np.append(self.sizes, size)[-self.window :]

    def spread(self) -> float:
        """Return the mean absolute advantage of the last rounds.

        A few large advantages would decide a root mean square.
        """
        return float(self.sizes.mean()) if len(self.sizes) else 0.0


def baseline_of(num_steps: int, settings: Settings) -> TimeStepBaseline:
    """Return the baseline that suits the rewards."""
    kind = ZeroBaseline if settings.reward == "counterfactual" else TimeStepBaseline
    return kind(num_steps, settings.baseline_window)


class ZeroBaseline(TimeStepBaseline):
    """Baseline of 0, for counterfactual rewards, which have a baseline in them."""

    def expected(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[G] of zeros."""
        return np.zeros(returns.shape[1])
