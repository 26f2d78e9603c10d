"""Earliest times of ops, and the work and memory of groups at these times.

No placement changes them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, compiled

MIN_SECONDS = 1e-300  # least divisor of seconds: a graph may have no work
SLICES = 400  # of the longest path; events in a slice count as at its middle
# As fractions of the longest path: the nearness of work at this distance is 1/e.
NEAR = (0.005, 0.02, 0.08)


class EarliestTimes(NamedTuple):
    """Times of V ops if only inputs and waits delay them."""

    start: NDArray[np.float64]  # [V], as fractions of the longest path, from 0 to 1
    end: NDArray[np.float64]
    longest: float  # seconds of that path


def earliest_times(problem: PlacementProblem) -> EarliestTimes:
    """Return the earliest times of the ops of a problem.

    Ops take their compute time, the mean over the devices that can run them.
    """
    graph = problem.graph
    seconds = mean_seconds(problem.compute_time)
    start = earliest_starts(graph.precedences, graph.topological_index, seconds)
    longest = float((start + seconds).max())
    unit = longest if longest > 0 else 1.0
    return EarliestTimes(start / unit, (start + seconds) / unit, longest)


def earliest_starts(
    edges: NDArray[np.int32], topological_index: NDArray[np.integer], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return float64[N], the longest path to each of N nodes, of edges int32[E, 2]."""
    sources, targets = edges.T
    in_order = np.argsort(topological_index[sources], kind="stable")
    start = np.zeros(len(seconds))
    push_starts(sources[in_order], targets[in_order], seconds, start)
    return start


def mean_seconds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[V], the mean of float64[V, D] over the devices whose time is finite."""
    possible = np.isfinite(compute_time)
    total = np.where(possible, compute_time, 0.0).sum(axis=1)
    seconds: NDArray[np.float64] = total / np.maximum(1, possible.sum(axis=1))
    return seconds


def slice_of(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return int64[...], the slice from 0 to SLICES - 1 that times from 0 to 1 are in."""
    slices: NDArray[np.int64] = np.minimum(SLICES - 1, (times * SLICES).astype(np.int64))
    return slices


@compiled
def push_starts(
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    seconds: NDArray[np.float64],
    start: NDArray[np.float64],
) -> None:
    """Raise each start[V] to the longest path; rows come in the order of the ops before."""
    for row in range(len(sources)):
        end = start[sources[row]] + seconds[sources[row]]
        start[targets[row]] = max(start[targets[row]], end)


def concurrency(problem: PlacementProblem, times: EarliestTimes) -> NDArray[np.float64]:
    """Return float64[S, G, G], the work of pairs of groups near in time, for each of S scales.

    All ops run at their earliest times, each for its mean compute time over the devices that can
    run it. Let w[g, a] be the work of group g in slice a of the longest path. The value of groups g
    and h is a sum over all slices a and b: ``w[g, a] w[h, b] exp(-|a - b| / (SLICES NEAR))``. A
    group with forward and backward ops is near to others in both passes.
    """
    work = np.zeros((problem.num_groups, SLICES))
    add_work(problem.grouping.group_of, times.start, times.end, work)
    slices = np.arange(SLICES)
    apart = np.abs(slices[:, None] - slices) / SLICES
    near = np.stack([work @ np.exp(-apart / scale) @ work.T for scale in NEAR])
    groups = np.arange(problem.num_groups)
    near[:, groups, groups] = 0.0
    return near


@compiled
def add_work(
    group_of: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    work: NDArray[np.float64],
) -> None:
    """Add the fraction of each op that is in each slice to work[G, S]; times are from 0 to 1."""
    slices = work.shape[1]
    for op in range(len(start)):
        last = min(slices - 1, int(end[op] * slices))
        for index in range(int(start[op] * slices), last + 1):
            begin = max(start[op], index / slices)
            work[group_of[op], index] += max(0.0, min(end[op], (index + 1) / slices) - begin)


def memory_at_peak(problem: PlacementProblem, times: EarliestTimes) -> NDArray[np.float64]:
    """Return float64[G], the bytes of each group when all groups together need most.

    All ops run at their earliest times. A tensor is kept from its producer's start to its last
    consumer's end, or to the last slice if it is held. Weights are always kept, with what lives
    in them. The sum over groups on a device estimates
    their memory there, without workspaces and copies of tensors of other devices.
    """
    tensor_bytes = _tensors_in_slices(problem, times)
    peak = int(tensor_bytes.sum(axis=0).argmax())
    memory: NDArray[np.float64] = tensor_bytes[:, peak] + problem.group_graph.parameter_bytes
    return memory


def _tensors_in_slices(problem: PlacementProblem, times: EarliestTimes) -> NDArray[np.float64]:
    """Return float64[G, SLICES], the bytes of tensors that each group keeps in each slice."""
    graph = problem.graph
    producer = graph.tensor_producer
    last_use = times.end[producer]
    np.maximum.at(last_use, graph.edges[:, 0], times.end[graph.edge_consumers])
    last_use[graph.held_tensors] = 1.0
    size = (graph.tensor_bytes * ~graph.lives_in_weights).astype(np.float64)
    group = problem.grouping.group_of[producer]
    changes = np.zeros((problem.num_groups, SLICES + 1))
    np.add.at(changes, (group, slice_of(times.start[producer])), size)
    np.add.at(changes, (group, slice_of(last_use) + 1), -size)
    tensor_bytes: NDArray[np.float64] = changes.cumsum(axis=1)[:, :SLICES]
    return tensor_bytes
