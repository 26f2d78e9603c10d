"""Good placements to learn from, and target probabilities of devices by their costs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Cluster, Evaluator, PlacementProblem

# As a fraction of the least cost: a device that costs so much more is e times less probable.
TEMPERATURE = 0.003


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A good placement to imitate.

    Attributes
    ----------
    evaluator : `Evaluator`
        Evaluator of a problem of G groups on D devices.
    placement : int32[G]
        The device of each group.
    alike : int64[D]
        Numbers that are equal for devices that can take each other's place; see
        `interchangeable_devices`.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> demonstrate(BusiestDevice(two_chains()), np.array([0, 0, 0, 1, 1, 1])).alike
    array([0, 0])
    """

    evaluator: Evaluator
    placement: NDArray[np.int32]
    alike: NDArray[np.int64]


def demonstrate(evaluator: Evaluator, placement: NDArray[np.int32]) -> Demonstration:
    """Return a placement as a demonstration.

    Parameters
    ----------
    evaluator
        Evaluator of the problem.
    placement : int32[G]
        Good placement, as of a long search.

    Raises
    ------
    GraphError
        When the placement is not one of the problem.

    Examples
    --------
    See `Demonstration`.
    """
    problem = evaluator.problem
    return Demonstration(
        evaluator=evaluator,
        placement=problem.check_placement(placement),
        alike=interchangeable_devices(problem),
    )


def target_probs(costs: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return float64[N, D], target probabilities of devices by their costs.

    They are proportional to ``exp(-more / (0.003 least))``, where ``more`` is a cost less the least
    one. If devices cost almost the same, they are almost equally probable.

    Parameters
    ----------
    costs : float64[N, D]
        Cost with the group on each device, seconds.
    allowed : bool[N, D]
        True for devices that can run the group.

    Examples
    --------
    >>> target_probs(np.array([[1.0, 1.003, 0.5]]), np.array([[True, True, False]])).round(3)
    array([[0.731, 0.269, 0.   ]])
    """
    least = np.where(allowed, costs, np.inf).min(axis=1, keepdims=True)
    more = costs - least
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = np.where(more > 0, np.exp(-more / (TEMPERATURE * least)), 1.0)
    weights[~allowed] = 0.0
    shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def interchangeable_devices(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[D], numbers that are equal for devices that can take each other's place.

    If two of them change places, all times, memories and links of the problem stay the same.

    Parameters
    ----------
    problem
        Problem of G groups on D devices.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> interchangeable_devices(two_chains())
    array([0, 0])
    """
    classes = np.arange(problem.num_devices)
    for device in range(problem.num_devices):
        for earlier in range(device):
            if _can_change_places(problem, earlier, device):
                classes[device] = classes[earlier]
                break
    return classes


def _can_change_places(problem: PlacementProblem, one: int, other: int) -> bool:
    cluster = problem.cluster
    first, second = (cluster.devices[index] for index in (one, other))
    own = [
        (device.memory_bytes, device.op_overhead, device.transfer_overhead)
        for device in (first, second)
    ]
    times = problem.compute_time
    swapped = np.arange(problem.num_devices)
    swapped[[one, other]] = other, one
    return (
        own[0] == own[1]
        and np.array_equal(times[:, one], times[:, other])
        and all(
            np.array_equal(values, values[np.ix_(swapped, swapped)])
            for values in (cluster.bandwidth, cluster.latency)
        )
        and _shares_links_alike(cluster, swapped)
    )


def _shares_links_alike(cluster: Cluster, swapped: NDArray[np.int64]) -> bool:
    """Return whether the same pairs share links after devices have changed places."""
    before, after = (
        np.unique(links, return_inverse=True, return_index=True)
        for links in (cluster.link, cluster.link[np.ix_(swapped, swapped)])
    )
    first_before = before[1][before[2]].ravel()
    first_after = after[1][after[2]].ravel()
    return np.array_equal(first_before, first_after)
