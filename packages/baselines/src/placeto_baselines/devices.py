"""Devices as placers see them: CPUs, devices that can run a group, and seconds."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem

NOWHERE = -1  # in place of a device: none has been chosen


def allowed_devices(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], true where every op of a group can run on a device."""
    return np.isfinite(problem.group_graph.compute_time)


def op_seconds(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[V, D], seconds of each op; infinity where its group cannot run."""
    allowed = allowed_devices(problem)[problem.grouping.group_of]
    return np.where(allowed, problem.compute_time, np.inf)


def mean_seconds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[N], the mean over the devices that can run each of N ops or groups.

    ``compute_time`` float64[N, D] is infinite where one cannot run; what no device can run gets 0.
    """
    runs = np.isfinite(compute_time)
    total: NDArray[np.float64] = np.where(runs, compute_time, 0.0).sum(axis=1)
    mean: NDArray[np.float64] = total / np.maximum(runs.sum(axis=1), 1)
    return mean


def speeds(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[D], how much work each device does in the time of the fastest, from 0 to 1.

    Measured on what of float64[N, D] can run on every device; without any of that all count as
    equal.
    """
    everywhere = np.isfinite(compute_time).all(axis=1)
    seconds = compute_time[everywhere].sum(axis=0)
    if not (seconds > 0).all():
        return np.ones(compute_time.shape[1])
    relative: NDArray[np.float64] = seconds.min() / seconds
    return relative


def work_of(compute_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[N], the seconds that each of N ops or groups would take on the fastest device.

    Seconds on a device are multiplied by its speed, and weighted by the share of work that a device
    of that speed gets. If devices differ by one factor for all ops, this is the time on the fastest
    one.

    ``compute_time`` float64[N, D] is on the devices that share the work, and infinite where one
    cannot run; what none of them can run gets 0.
    """
    runs, speed = np.isfinite(compute_time), speeds(compute_time)
    weights = np.where(runs, speed, 0.0)
    total = (np.where(runs, compute_time, 0.0) * speed * weights).sum(axis=1)
    mean: NDArray[np.float64] = total / np.where(weights.any(axis=1), weights.sum(axis=1), 1.0)
    return mean


def accelerated(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Return bool[G, D], the devices among which schedulers for equal devices choose.

    Schedulers that compare only starts would give work to a slow CPU. They see the accelerators,
    and other devices for the groups that no accelerator can run.
    """
    runs = allowed_devices(problem)
    fast = np.zeros_like(runs)
    accelerators = problem.cluster.accelerators
    fast[:, accelerators] = runs[:, accelerators]
    return np.where(fast.any(axis=1, keepdims=True), fast, runs)


def shared_links(link: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return for each pair of devices the first pair that shares its link, whatever its number.

    Parameters
    ----------
    link : int[...]
        Number of the link of each pair, or of the machine of each device.

    Examples
    --------
    >>> shared_links(np.array([[-1, 7], [4, 7]]))
    array([0, 1, 2, 1])
    """
    _, first, number = np.unique(link, return_index=True, return_inverse=True)
    shared: NDArray[np.intp] = first[number.ravel()]
    return shared


class DeviceKinds(NamedTuple):
    """Kinds of devices, and of pairs of devices.

    Devices of a kind take the same time for each op, and for the overhead after it. Each has as
    many links of one latency and bandwidth to devices of each kind, and from them.
    """

    kind_of: NDArray[np.intp]  # [D]
    pairs: NDArray[np.intp]  # [P, 2], one of each kind of pairs, with pairs of a device and itself


def device_kinds(problem: PlacementProblem) -> DeviceKinds:
    """Return the kinds of devices and of pairs, in the order of their second device.

    Pairs of a kind have the same latency and bandwidth, and devices of the same kinds. Kinds of
    devices are divided by those of their pairs as long as any differ (colour refinement).
    """
    cluster, count = problem.cluster, problem.num_devices
    numbers = dict[tuple[float, bytes], int]()
    looks = [
        (device.op_overhead, seconds.tobytes())
        for device, seconds in zip(cluster.devices, problem.compute_time.T, strict=True)
    ]
    kind_of = np.array([numbers.setdefault(look, len(numbers)) for look in looks], np.intp)
    itself = np.eye(count, dtype=np.bool_)
    latency = np.where(itself, 0.0, cluster.latency)
    bandwidth = np.where(itself, 0.0, cluster.bandwidth)
    while True:
        kinds = np.meshgrid(kind_of, kind_of, indexing="ij")
        ends = np.stack([kinds[1], kinds[0], itself, latency, bandwidth], axis=2)
        _, first, pair_of = np.unique(
            ends.reshape(-1, 5), axis=0, return_index=True, return_inverse=True
        )
        pair_of = pair_of.reshape(count, count)
        both = np.concatenate([np.sort(pair_of), np.sort(pair_of.T)], axis=1)
        divided = np.unique(both, axis=0, return_inverse=True)[1].ravel()
        if divided.max() == kind_of.max():
            return DeviceKinds(kind_of, np.stack(np.divmod(first, count), axis=1))
        kind_of = divided


def repaired(problem: PlacementProblem, placement: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return int32[G]: a placement in which no group stands where it cannot run.

    Such a group goes to the device that runs it fastest, as an operation without a GPU kernel goes
    to the CPU (Mirhoseini et al. 2017).
    """
    runs = allowed_devices(problem)[np.arange(problem.num_groups), placement]
    fastest = problem.group_graph.compute_time.argmin(axis=1)
    return np.where(runs, placement, fastest).astype(np.int32)


def majority(
    problem: PlacementProblem, choice: NDArray[np.integer], devices: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return int64[G], which of some devices most of the work of each group has chosen.

    ``choice`` int64[V] has the position in ``devices`` of the one of each op, or -1; work is that
    on these devices. Of several the first one; -1 for a group none of whose ops has chosen.
    """
    smallest = np.finfo(np.float64).tiny  # ops without work vote, too
    weight = work_of(problem.compute_time[:, devices]) + smallest
    votes = np.zeros((problem.num_groups, len(devices)))
    named = choice != NOWHERE
    np.add.at(votes, (problem.grouping.group_of[named], choice[named]), weight[named])
    return np.where(votes.any(axis=1), votes.argmax(axis=1), NOWHERE)


class DeviceChoices:
    """Draws devices of those that bool[N, D] allows, all equally likely; N are groups or sets."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self._count: NDArray[np.int64] = allowed.sum(axis=1)
        # The devices that can run each, in order, at the front of each row.
        self._in_front = np.argsort(~allowed, axis=1, kind="stable")

    def draw(self, rows: NDArray[np.integer], generator: np.random.Generator) -> NDArray[np.int32]:
        """Return int32[...], a device for each of int[...] rows."""
        picked = generator.integers(0, self._count[rows])
        devices: NDArray[np.int32] = self._in_front[rows, picked].astype(np.int32)
        return devices


def random_placements(
    problem: PlacementProblem, count: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G]: each group on a device that can run it, all equally likely."""
    rows = np.tile(np.arange(problem.num_groups), (count, 1))
    return DeviceChoices(allowed_devices(problem)).draw(rows, generator)
