"""Static mapping with the Scotch library."""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import speeds
from placeto_baselines.errors import BaselineError, import_extra
from placeto_baselines.partitioning.partitioner import Partitioner, WeightedGraph, weighted_graph
from placeto_graphs import Cluster, GroupGraph

DETERMINISTIC = 0  # SCOTCH_OPTIONNUMDETERMINISTIC of scotch.h
SPEED_UNITS = 1000  # the fastest device
DISTANCE_UNITS = 100  # the nearest two devices
MAX_DISTANCE = 10_000


class Strategy(IntEnum):
    """Strategies of Scotch, numbered as in scotch.h."""

    DEFAULT = 0
    QUALITY = 1


class ScotchPlacer(Partitioner):
    """Scotch (Pellegrini 2009): balanced work, little traffic ("Scotch" of Addanki et al. 2019).

    The library itself maps the graph onto the cluster. Nodes weigh their seconds on the devices
    that get a part, edges their bytes, devices their speed. If links differ, the cluster is an
    architecture with distances, which multiply the traffic. The result is the better placement of
    its default strategy and of the one for quality. Scotch ignores the order of execution and the
    memory.

    Parameters
    ----------
    imbalance
        Largest work of a device beyond its share, as a fraction of the share.
    nodes
        Nodes that are mapped: ``"groups"``, or ``"ops"``: each group then goes to where most of its
        work was mapped.
    only_accelerators
        True if CPUs get only groups that no accelerator can run: "MinCut" of Mirhoseini et al.
        (2017), whose "Scotch" maps to the CPU, too.

    Raises
    ------
    BaselineError
        When a setting is out of its range; by `place`, when pyscotch is not installed.

    Examples
    --------
    >>> placement = ScotchPlacer().place(problem, evaluator).placement
    >>> placement[0] == placement[2] != placement[1] == placement[3]
    np.True_
    """

    name = "scotch"

    def parts(
        self, graph: GroupGraph, cluster: Cluster, devices: NDArray[np.intp], seed: int
    ) -> Iterator[NDArray[np.int64]]:
        tensor_bytes = float(graph.edge_bytes.mean()) if graph.num_edges else 0.0
        weighted = weighted_graph(graph)
        device_speeds = whole_speeds(speeds(graph.compute_time))
        distances = whole_distances(cluster, devices, tensor_bytes)
        for strategy in Strategy:
            yield scotch_map(weighted, device_speeds, distances, self.imbalance, seed, strategy)


def scotch_map(
    graph: WeightedGraph,
    device_speeds: NDArray[np.int64],
    distances: NDArray[np.int64],
    imbalance: float,
    seed: int,
    strategy: Strategy = Strategy.DEFAULT,
) -> NDArray[np.int64]:
    """Map a graph with Scotch; return int64[N], the device of each node.

    ``device_speeds`` int64[D] are weights, and ``distances`` int64[D, D] say how often traffic
    between two devices counts.
    """
    pyscotch = _pyscotch()
    _settle(pyscotch)
    with (
        pyscotch.Architecture() as architecture,
        pyscotch.Strategy() as requested,
        pyscotch.Graph() as whole,
        pyscotch.Context() as context,
    ):
        _describe(architecture, device_speeds, distances)
        requested.request_mapping(pyscotch.StrategyFlags(strategy), balance=imbalance)
        whole.build(graph.offsets, graph.neighbours, graph.work, graph.traffic)
        context.option_set(DETERMINISTIC, 1)
        context.random_clone()
        context.random_seed(seed)
        context.random_reset()
        with context.bind_graph(whole) as bound:
            return np.asarray(bound.map(architecture, requested), np.int64)


def _settle(pyscotch: Any) -> None:
    """Use up the first context of a process: Scotch draws otherwise in it than in all others."""
    with pyscotch.Graph() as single, pyscotch.Context() as first:
        single.build(np.array([0, 0]), np.array([], np.int64))
        first.bind_graph(single).close()


def _describe(
    architecture: Any, device_speeds: NDArray[np.int64], distances: NDArray[np.int64]
) -> None:
    """Fill in a target architecture, the simplest that tells devices and links apart."""
    between = distances[~np.eye(len(distances), dtype=np.bool_)]
    if len(np.unique(between)) > 1:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "cluster.tgt")
            path.write_text(architecture_file(device_speeds, distances))
            architecture.load(path)
    elif np.ptp(device_speeds):
        architecture.complete_weighted(len(device_speeds), device_speeds)
    else:
        architecture.complete(len(device_speeds))


def _pyscotch() -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # what loading the library prints is of no use
        pyscotch = import_extra("pyscotch", "scotch", ["pyscotch"])
        bits = pyscotch.get_scotch_int_size()
    if bits != 64:
        raise BaselineError(f"PYSCOTCH_INT_SIZE: expected 64, got {bits}")
    return pyscotch


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
    are equal. That pairs share a link is not told. ``devices`` are those of the cluster that count.
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
