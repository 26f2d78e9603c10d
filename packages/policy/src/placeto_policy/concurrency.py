"""Which groups have work at about the same time, known before anything is placed."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, compiled
from placeto_policy.earliest import SLICES, earliest_times

# In parts of the longest path: work that is so far apart is near to 1/e.
NEAR = (0.005, 0.02, 0.08)


def concurrency(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[S, G, G], how much work of two groups is near in time, for each of S scales.

    Each op is taken to run as early as the longest path to it lets it, for its compute time (the
    mean over the devices that can run it). With w[g, a] the work of group g in slice a of the
    longest path of all, that is the sum of ``w[g, a] w[h, b] exp(-|a - b| / (SLICES NEAR))`` over
    all a and b. The group of a layer has ops of the forward and of the backward pass, and is near
    to others in both.

    Parameters
    ----------
    problem
        A problem of G groups.

    Examples
    --------
    See `topology_of`.
    """
    work = work_in_slices(problem)
    slices = np.arange(SLICES)
    apart = np.abs(slices[:, None] - slices) / SLICES
    near = np.stack([work @ np.exp(-apart / scale) @ work.T for scale in NEAR])
    groups = np.arange(problem.num_groups)
    near[:, groups, groups] = 0.0
    return near


def work_in_slices(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[G, SLICES], the work of each group, in parts of the longest path of all."""
    start, end, _ = earliest_times(problem)
    work = np.zeros((problem.num_groups, SLICES))
    add_work(problem.grouping.group_of, start, end, work)
    return work


@compiled
def add_work(
    group_of: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    work: NDArray[np.float64],
) -> None:
    """Add the part of each op that is in each slice to work[G, S]; times are from 0 to 1."""
    slices = work.shape[1]
    for op in range(len(start)):
        last = min(slices - 1, int(end[op] * slices))
        for index in range(int(start[op] * slices), last + 1):
            begin = max(start[op], index / slices)
            work[group_of[op], index] += max(0.0, min(end[op], (index + 1) / slices) - begin)
