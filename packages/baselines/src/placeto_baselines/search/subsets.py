"""Placements on fewer devices: each alone, some of them, and all filled one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices, repaired, shared_links
from placeto_baselines.placement_trials import evaluated
from placeto_baselines.search.layers import order_of_groups
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

ALONE, IN_ORDER, BALANCED = "alone", "in-order", "balanced"
CHAIN, SEARCHED = "chain", "searched"
MOST_DEVICES_OF_ALL_SUBSETS = 4  # of more, only pairs are searched
MOST_DEVICES = 64  # of more, no subsets are searched
MOST_SUBSETS = 28  # the pairs of eight devices


@dataclass(frozen=True, eq=False)
class Choice:
    """A placement on some of the devices, and what it costs.

    Attributes
    ----------
    devices : tuple of int
        Devices that may be used.
    kind : str
        ``"alone"`` on one device; devices filled ``"in-order"`` or ``"balanced"``; the best
        ``"chain"`` of layers; or ``"searched"``.
    result : `placeto_graphs.PlacementResult`
        The placement, and its costs.
    """

    devices: tuple[int, ...]
    kind: str
    result: PlacementResult


def placements_without_search(problem: PlacementProblem, evaluator: Evaluator) -> list[Choice]:
    """Return everything on one device, for each unlike one, and all devices filled (`_filled`)."""
    if problem.num_devices == 1:
        return []
    runs = allowed_devices(problem)
    alone = [
        Choice((device,), ALONE, evaluated(evaluator, np.full(problem.num_groups, device)))
        for (device,) in unlike_subsets(problem, 1)
        if runs[:, device].all()
    ]
    kinds = (IN_ORDER, BALANCED) if len(problem.cluster.accelerators) > 1 else (IN_ORDER,)
    return [*alone, *(_filled(problem, evaluator, kind) for kind in kinds)]


def _filled(problem: PlacementProblem, evaluator: Evaluator, kind: str) -> Choice:
    """Return a placement that fills the devices one after the other, accelerators first.

    Groups go in the order in which they run, as accelerate places models that fit no device:
    ``device_map="sequential"`` is `IN_ORDER`. ``"auto"`` is `BALANCED`: no accelerator but the last
    has more than an equal part of the weights. A group that a device cannot run goes to the
    fastest.
    """
    devices = sorted(range(problem.num_devices), key=lambda d: problem.cluster.devices[d].is_cpu)
    order = order_of_groups(problem, problem.grouping)
    weights = np.bincount(
        problem.grouping.group_of, problem.graph.parameter_bytes, problem.num_groups
    )
    bytes_until = np.append(0.0, np.cumsum(weights[order]))  # of the first i groups at [i]
    num_balanced = len(problem.cluster.accelerators) - 1 if kind == BALANCED else 0

    def filled(
        placement: NDArray[np.int32], first: int, end: int, device: int
    ) -> NDArray[np.int32]:
        row = placement.copy()
        row[order[first:end]] = device
        return repaired(problem, row)

    placement = repaired(problem, np.full(problem.num_groups, devices[-1]))
    first = 0
    for position, device in enumerate(devices[:-1]):
        # The device gets the groups from the first one to as many as fit: bisection between a
        # number that does and a limit, beyond which they do not, or are more than an equal part.
        fitting, limit = first, len(order)
        if position < num_balanced:  # the group at the equal part is where most of it belongs
            equal_part = bytes_until[first] + bytes_until[-1] / (num_balanced + 1)
            middles = (bytes_until[1:] + bytes_until[:-1]) / 2
            limit = int(np.searchsorted(middles, equal_part, side="right"))
        end = limit  # tried first, as all of them fit in most cases
        while fitting < limit:
            row = filled(placement, first, end, device)
            peak = evaluator.evaluate(row[None]).peak_memory[0, device]
            if peak <= problem.cluster.devices[device].memory_bytes:
                fitting = end
            else:
                limit = end - 1
            end = (fitting + limit + 1) // 2
        placement = filled(placement, first, fitting, device)
        first = fitting
    return Choice(tuple(devices), kind, evaluated(evaluator, placement))


def unlike_subsets(problem: PlacementProblem, size: int) -> Iterator[tuple[int, ...]]:
    """Yield subsets of ``size`` devices, without those that are like an earlier one."""
    cluster, earlier_looks = problem.cluster, set()
    hosts = [index for index, device in enumerate(cluster.devices) if device.is_cpu]
    described = attrgetter("kind", "memory_bytes", "op_overhead", "transfer_overhead")
    look_of_device = [  # measured times differ between equal devices
        (
            *described(device),
            problem.compute_time[:, index].tobytes(),
            # Some objectives send all tensors through the memory of a host.
            np.sort(cluster.bandwidth[index, hosts]).tobytes(),
            np.sort(cluster.bandwidth[hosts, index]).tobytes(),
        )
        for index, device in enumerate(cluster.devices)
    ]
    for devices in combinations(range(cluster.num_devices), size):
        ordered = sorted(devices, key=lambda device: look_of_device[device])
        inside = np.ix_(ordered, ordered)
        looks = (
            tuple(look_of_device[device] for device in ordered),
            cluster.bandwidth[inside].tobytes(),
            cluster.latency[inside].tobytes(),
            shared_links(cluster.link[inside]).tobytes(),
            shared_links(cluster.machine[ordered]).tobytes(),
        )
        if looks not in earlier_looks:
            earlier_looks.add(looks)
            yield devices


def subsets_to_search(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Return the subsets of several devices, but not all, that can run and hold all groups.

    All of up to four devices, of more devices pairs; none of very many unlike devices.
    """
    if problem.num_devices > MOST_DEVICES:
        return []
    few = problem.num_devices <= MOST_DEVICES_OF_ALL_SUBSETS
    sizes = range(2, problem.num_devices if few else 3)
    memory = problem.cluster.memory_bytes
    weight_bytes = int(problem.graph.parameter_bytes.sum())
    runs = allowed_devices(problem)
    subsets = [
        devices
        for size in sizes
        for devices in unlike_subsets(problem, size)
        if sum(memory[list(devices)].tolist()) >= weight_bytes
        and runs[:, list(devices)].any(axis=1).all()
    ]
    return subsets if len(subsets) <= MOST_SUBSETS else []


def restricted(problem: PlacementProblem, devices: tuple[int, ...]) -> PlacementProblem:
    """Return a problem whose ops can run on some of the devices only."""
    elsewhere = np.ones(problem.num_devices, np.bool_)
    elsewhere[list(devices)] = False
    return replace(problem, compute_time=np.where(elsewhere, np.inf, problem.compute_time))
