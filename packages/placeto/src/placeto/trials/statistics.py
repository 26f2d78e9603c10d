"""Statistics over problems and seeds: bootstrap intervals of ratios, and ranks of placers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95  # of intervals
SIGNIFICANCE = 0.05  # of differences of ranks
DIGITS_OF_RANKS = 9  # costs that are equal in so many digits tie


def mean_interval(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and the ends of its bootstrap interval of 95 %.

    Problems are sampled with replacement, and then the seeds of each (Davison and Hinkley 1997,
    section 3.8). Each problem counts equally.

    Parameters
    ----------
    ratios
        Ratios above 0 of each seed, for each problem; their numbers may differ.

    Examples
    --------
    >>> [round(number, 6) for number in mean_interval([[2.0], [8.0]])]
    [4.0, 2.0, 8.0]
    """
    generator = np.random.default_rng(0)
    sizes = np.array([len(of_problem) for of_problem in ratios])
    logarithms = np.zeros((len(ratios), sizes.max()))
    for row, of_problem in zip(logarithms, ratios, strict=True):
        row[: len(of_problem)] = np.log(of_problem)
    problems = generator.integers(len(ratios), size=(RESAMPLES, len(ratios)))
    num_seeds = sizes[problems][:, :, None]
    draws = generator.random((*problems.shape, sizes.max()))
    sampled = logarithms[problems[:, :, None], (draws * num_seeds).astype(np.int64)]
    counts = np.arange(sizes.max()) < num_seeds
    means = ((sampled * counts).sum(axis=2) / num_seeds[:, :, 0]).mean(axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.exp(np.percentile(means, [tail, 100 - tail])).tolist()
    return float(np.exp((logarithms.sum(axis=1) / sizes).mean())), low, high


def mean_ranks(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[K], the mean rank of K placers over problems, of costs float64[P, K].

    Rank 1 is the lowest cost. Equal costs, also infinite ones, share the mean of their ranks.

    Examples
    --------
    >>> mean_ranks(np.array([[1.0, 2.0, 2.0], [3.0, 1.0, np.inf]]))
    array([1.5 , 1.75, 2.75])
    """
    from scipy.stats import rankdata  # noqa: PLC0415 (it takes a second)

    ranks: NDArray[np.float64] = rankdata(_rounded(costs), axis=1).mean(axis=0)
    return ranks


def _rounded(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = [[float(f"{cost:.{DIGITS_OF_RANKS}g}") for cost in row] for row in costs.tolist()]
    return np.array(rows)


def critical_difference(num_placers: int, num_problems: int) -> float:
    """Return by how much two mean ranks differ significantly, by the test of Nemenyi at 5 %.

    See Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", 2006.

    Examples
    --------
    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range  # noqa: PLC0415

    quantile = studentized_range.ppf(1 - SIGNIFICANCE, num_placers, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(num_placers * (num_placers + 1) / (6 * num_problems)))


def friedman_probability(costs: NDArray[np.float64]) -> float:
    """Return the probability of such ranks of costs, float64[P, K], if all placers were equal.

    There are at least three placers (Friedman 1937).

    Examples
    --------
    >>> round(friedman_probability(np.tile([1.0, 2.0, 3.0], (4, 1))), 4)
    0.0183
    """
    from scipy.stats import friedmanchisquare  # noqa: PLC0415

    rounded = _rounded(costs)
    if (rounded == rounded[:, :1]).all():
        return 1.0  # the statistic is 0 / 0
    return float(friedmanchisquare(*rounded.T).pvalue)
