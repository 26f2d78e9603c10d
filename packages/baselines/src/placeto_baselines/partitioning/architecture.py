"""A cluster as Scotch sees it: how fast each device is, and how far from the others."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Cluster

SPEED_UNITS = 1000  # the fastest device
DISTANCE_UNITS = 100  # the nearest two devices
MAX_DISTANCE = 10_000


def whole_speeds(speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return int64[D], speeds in whole numbers; devices of equal speed have 1 each."""
    if np.ptp(speeds) <= 1e-9 * speeds.max():
        return np.ones(len(speeds), np.int64)
    units: NDArray[np.float64] = np.round(speeds / speeds.max() * SPEED_UNITS)
    return np.maximum(units, 1).astype(np.int64)


def whole_distances(
    cluster: Cluster, devices: NDArray[np.intp], tensor_bytes: float
) -> NDArray[np.int64]:
    """Return int64[D, D], the seconds of a typical tensor between two devices, in whole numbers.

    Scotch's distances are the same in both directions: the mean counts. All are 1 where all pairs
    are equal. That pairs share a link is not told.

    Parameters
    ----------
    cluster
        The cluster.
    devices : int[D]
        Those of its devices that count.
    tensor_bytes
        The size of a typical tensor.
    """
    pairs = np.ix_(devices, devices)
    seconds = (cluster.latency + tensor_bytes / cluster.bandwidth)[pairs]
    seconds = (seconds + seconds.T) / 2
    between = seconds[~np.eye(len(devices), dtype=np.bool_)]
    if not len(between) or np.ptp(between) <= 1e-9 * between.max():
        return np.ones(seconds.shape, np.int64)
    nearest = between[between > 0].min()
    units: NDArray[np.float64] = np.round(seconds / nearest * DISTANCE_UNITS)
    return np.clip(units, 1, MAX_DISTANCE).astype(np.int64)


def architecture_file(speeds: NDArray[np.int64], distances: NDArray[np.int64]) -> str:
    """Return a decomposition-defined target architecture, the text of a ``deco 0`` file.

    Scotch splits the devices in two again and again, and maps the halves of the graph to the halves
    of the devices: here to the lower and the higher indices, which is how clusters list what
    belongs together. The format is that of the Scotch user's guide, section on target files: the
    number of devices and the largest number of a half (the whole is 1, the halves of i are 2 i and
    2 i + 1), a line with label, weight and number for each, and the distances below the diagonal.
    """
    numbers = _numbers_of_halves(len(speeds))
    lines = ["deco", "0", f"{len(speeds)} {max(numbers)}"]
    lines += [
        f"{device} {speed} {number}"
        for device, (speed, number) in enumerate(zip(speeds.tolist(), numbers, strict=True))
    ]
    lines += [" ".join(map(str, distances[row, :row])) for row in range(1, len(speeds))]
    return "\n".join(lines) + "\n"


def _numbers_of_halves(count: int, number: int = 1) -> list[int]:
    if count == 1:
        return [number]
    half = (count + 1) // 2
    lower = _numbers_of_halves(half, 2 * number)
    return lower + _numbers_of_halves(count - half, 2 * number + 1)
