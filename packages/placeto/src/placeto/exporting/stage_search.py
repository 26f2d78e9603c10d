"""The fastest stages of a chain: the cuts, and the device of each part.

`fastest_stages` is dynamic programming over cut points and sets of devices. It is exact if the cost
of a chain is the sum of its stages, or its slowest stage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

STEPS = (1, 2, 4, 8, 16)  # by which a cut moves
MOST_IN_ANY_ORDER = 8  # devices of which all orders are tried; more are in ascending order
NONE = -1
Combine = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Stages:
    """K stages of a chain of N parts.

    Attributes
    ----------
    bounds : K + 1 of int
        The part that each stage begins with, from 0, and N.
    devices : K of int
        The device of each stage, each another one.
    """

    bounds: tuple[int, ...]
    devices: tuple[int, ...]

    def device_of_part(self) -> NDArray[np.int32]:
        """Return int32[N]."""
        return np.repeat(np.array(self.devices, np.int32), np.diff(self.bounds))


def stages_of(device_of_part: NDArray[np.integer]) -> Stages | None:
    """Return the stages of a device for each part; None if a device has two of them.

    Examples
    --------
    >>> stages_of(np.array([1, 1, 0]))
    Stages(bounds=(0, 2, 3), devices=(1, 0))
    >>> stages_of(np.array([1, 0, 1]))
    """
    begins = np.flatnonzero(np.diff(device_of_part, prepend=-1)).tolist()
    devices = tuple(device_of_part[begins].tolist())
    if len(set(devices)) < len(devices):
        return None
    return Stages((*begins, len(device_of_part)), devices)


def fastest_stages(
    load: NDArray[np.float64],
    transfer: NDArray[np.float64],
    combine: Combine,
) -> Stages:
    """Return the stages of the least cost.

    Parameters
    ----------
    load : float64[D, N + 1, N + 1]
        Seconds of parts i to j - 1 on each device, at [i, j]; infinity where it cannot run them.
    transfer : float64[D, D, N + 1]
        Seconds that a cut before part i costs, from one device to another.
    combine
        Function that adds up stages: ``np.add``, or ``np.maximum`` for the slowest stage.

    Examples
    --------
    Three parts of a second each on the first device, and of half of one on the second, behind it:

    >>> seconds = np.array([[1.0], [0.5]]) * np.arange(4)
    >>> load = seconds[:, None, :] - seconds[:, :, None]
    >>> load[:, *np.tril_indices(4)] = np.inf
    >>> fastest_stages(load, np.zeros((2, 2, 4)), np.maximum)
    Stages(bounds=(0, 1, 3), devices=(0, 1))
    >>> fastest_stages(load, np.zeros((2, 2, 4)), np.add)
    Stages(bounds=(0, 3), devices=(1,))
    """
    num_devices, ends = len(load), np.arange(load.shape[1])
    in_order = num_devices > MOST_IN_ANY_ORDER
    found: dict[tuple[int, int], _Frontier] = {}
    for used in [0] if in_order else range(1 << num_devices):
        for last in range(num_devices):
            earlier = range(last) if in_order else _others(used, last)
            if earlier is None:
                continue
            here = _Frontier(load[last, 0].copy(), np.zeros_like(ends), np.full_like(ends, NONE))
            if len(earlier) and not in_order:
                here.cost[:] = np.inf
            for device in reversed(earlier):  # of equal ones the devices are in ascending order
                before = found[used if in_order else used ^ 1 << last, device].cost
                total = combine(before[:, None], transfer[device, last][:, None] + load[last])
                cut = total.argmin(axis=0)
                better = total[cut, ends] < here.cost
                here.cost[better] = total[cut, ends][better]
                here.cut[better] = cut[better]
                here.device[better] = device
            found[used, last] = here
    used, last = min(found, key=lambda state: (found[state].cost[-1], -state[1]))
    end = int(ends[-1])
    bounds, devices = [end], []
    while last != NONE:
        here = found[used, last]
        devices.append(last)
        used, last, end = used & ~(1 << last), int(here.device[end]), int(here.cut[end])
        bounds.append(end)
    return Stages(tuple(bounds[::-1]), tuple(devices[::-1]))


@dataclass(frozen=True)
class _Frontier:
    """The least costs of the parts before each one, if the last of them are on some device."""

    cost: NDArray[np.float64]
    cut: NDArray[np.int64]  # where the last stage begins
    device: NDArray[np.int64]  # of the stage before, if there is one


def _others(used: int, last: int) -> list[int] | None:
    """Return the other devices of a set; None if the last one is not in it."""
    members = [device for device in range(used.bit_length()) if used >> device & 1]
    return [device for device in members if device != last] if last in members else None


def neighbours(stages: Stages, devices: Sequence[int]) -> list[Stages]:
    """Return stages that differ in one cut, or in the devices of one or two stages."""
    bounds, used = list(stages.bounds), list(stages.devices)
    unused = [device for device in devices if device not in used]
    found = []
    for stage in range(1, len(used)):
        low, begin, high = bounds[stage - 1 : stage + 2]
        moved = {begin + step for step in (*STEPS, *(-step for step in STEPS))}
        found += [
            ([*bounds[:stage], cut, *bounds[stage + 1 :]], used)
            for cut in sorted(moved)
            if low < cut < high
        ]
        for other in range(stage):  # two of them change places
            swapped = used.copy()
            swapped[stage], swapped[other] = used[other], used[stage]
            found.append((bounds, swapped))
        without = bounds[:stage] + bounds[stage + 1 :]  # two of them become one
        found += [(without, used[:gone] + used[gone + 1 :]) for gone in (stage - 1, stage)]
    for stage, (begin, end) in enumerate(pairwise(bounds)):
        inside = {begin + step for step in STEPS} | {end - step for step in STEPS}
        cuts = sorted(cut for cut in inside if begin < cut < end)
        for device in unused:
            found.append((bounds, [*used[:stage], device, *used[stage + 1 :]]))
            found += [  # it becomes two
                (
                    [*bounds[: stage + 1], cut, *bounds[stage + 1 :]],
                    [*used[:at], device, *used[at:]],
                )
                for cut in cuts
                for at in (stage, stage + 1)
            ]
    return [Stages(tuple(bounds), tuple(used)) for bounds, used in found]
