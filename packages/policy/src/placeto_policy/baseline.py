"""What an episode is expected to earn from each step on."""

import numpy as np
from numpy.typing import NDArray

from placeto_policy.settings import Settings


class TimeStepBaseline:
    """The mean return of each time step over the last rounds of episodes on one graph.

    A baseline for each time step and each graph (Addanki et al. 2019, appendix A). A round is what
    all workers of the graph did for one update, as in the published code.

    Parameters
    ----------
    num_steps
        G, the steps of an episode.
    window
        k_b, the number of rounds.

    Attributes
    ----------
    means : float64[K, G]
        The mean returns of the last rounds, K <= k_b, the oldest first.
    sizes : float64[K]
        The mean size of the advantages of each of these rounds.

    Examples
    --------
    >>> baseline = TimeStepBaseline(num_steps=2, window=2)
    >>> baseline.expected()
    array([0., 0.])
    >>> baseline.add(np.array([[1.0, 0.0], [3.0, 2.0]]))
    >>> baseline.expected()
    array([2., 1.])
    """

    def __init__(self, num_steps: int, window: int) -> None:
        self.window = window
        self.means = np.zeros((0, num_steps))
        self.sizes = np.zeros(0)

    def expected(self) -> NDArray[np.float64]:
        """Return float64[G], the mean return of each step; 0 before the first round."""
        if not len(self.means):
            return np.zeros(self.means.shape[1])
        mean: NDArray[np.float64] = self.means.mean(axis=0)
        return mean

    def add(self, returns: NDArray[np.float64]) -> None:
        """Let a round of returns float64[episodes, G] enter."""
        size = np.abs(returns - self.expected()).mean()
        self.means = np.concatenate([self.means, returns.mean(axis=0)[None]])[-self.window :]
        self.sizes = np.append(self.sizes, size)[-self.window :]

    def spread(self) -> float:
        """Return the mean size of the advantages of the last rounds.

        It is not their root mean square, which a few large ones would decide.
        """
        return float(self.sizes.mean()) if len(self.sizes) else 0.0


def baseline_of(num_steps: int, settings: Settings) -> TimeStepBaseline:
    """Return the baseline that suits the rewards."""
    kind = ZeroBaseline if settings.reward == "counterfactual" else TimeStepBaseline
    return kind(num_steps, settings.baseline_window)


class ZeroBaseline(TimeStepBaseline):
    """For rewards that are over a counterfactual already: nothing else is to be taken from them."""

    def expected(self) -> NDArray[np.float64]:
        """Return float64[G] of zeros."""
        return np.zeros(self.means.shape[1])
