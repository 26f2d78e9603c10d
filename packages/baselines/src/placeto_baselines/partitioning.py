"""Placers that cut a weighted graph into parts, with the libraries Scotch and METIS."""

import contextlib
import ctypes
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import majority, repaired, speeds, work_of
from placeto_baselines.errors import BaselineError, check_at_least, import_extra
from placeto_baselines.placement_trials import PlacementTrials
from placeto_graphs import (
    Cluster,
    Evaluator,
    GroupGraph,
    Grouping,
    PlacementProblem,
    PlacementResult,
    group_graph,
)

Nodes = Literal["groups", "ops"]
# Sums of weights. Scotch 7.0.13 puts all nodes on one device when its loads sum to 2**32 or more,
# also where its integers have 64 bits; METIS takes each edge twice, and may have 32. A weight is
# off by half a unit at the most.
TOTAL_WORK = 2**30
TOTAL_TRAFFIC = 2**29
DETERMINISTIC = 0  # SCOTCH_OPTIONNUMDETERMINISTIC of scotch.h
STRATEGIES = 0, 1  # SCOTCH_STRATDEFAULT and SCOTCH_STRATQUALITY
SPEED_UNITS = 1000  # the fastest device
DISTANCE_UNITS = 100  # the nearest two devices
MAX_DISTANCE = 10_000


class Partitioner:
    """Base of the placers that cut a graph into a part for each device."""

    least_imbalance = 0.0

    def __init__(
        self, imbalance: float = 0.05, nodes: Nodes = "groups", *, only_accelerators: bool = True
    ) -> None:
        check_at_least("imbalance", imbalance, self.least_imbalance)
        if nodes not in {"groups", "ops"}:
            raise BaselineError(f"nodes: expected 'groups' or 'ops', got {nodes!r}")
        self.imbalance = imbalance
        self.nodes = nodes
        self.only_accelerators = only_accelerators

    def parts(
        self, graph: GroupGraph, cluster: Cluster, devices: NDArray[np.intp], seed: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield one or several int64[N], the position in ``devices`` of the device of each node.

        The ``graph`` has the compute times of these devices of the cluster only.
        """
        raise NotImplementedError

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the placement that the library finds with the random numbers of a seed."""
        trials = PlacementTrials(problem, evaluator)
        every_device = np.arange(problem.num_devices)
        devices = problem.cluster.accelerators if self.only_accelerators else every_device
        if self.nodes == "groups":
            groups = problem.group_graph
            graph = replace(groups, compute_time=groups.compute_time[:, devices])
        else:
            ops = np.arange(problem.graph.num_ops, dtype=np.int32)
            each_alone = Grouping(group_of=ops, group_names=problem.graph.op_names)
            graph = group_graph(problem.graph, each_alone, problem.compute_time[:, devices])
        for positions in self.parts(graph, problem.cluster, devices, seed):
            of_group = (
                positions if self.nodes == "groups" else majority(problem, positions, devices)
            )
            trials.costs(repaired(problem, devices[of_group])[None])
        return trials.result()


class WeightedGraph(NamedTuple):
    """N nodes and the M edges between them, each in both directions."""

    offsets: NDArray[np.int64]  # [N + 1], start of the neighbours of each node
    neighbours: NDArray[np.int64]  # [2 M]
    work: NDArray[np.int64]  # [N], weight of each node, in proportion to its seconds
    traffic: NDArray[np.int64]  # [2 M], weight of the edge to each neighbour, at least 1


def weighted_graph(graph: GroupGraph) -> WeightedGraph:
    """Return the graph that a partitioner sees.

    A node weighs its work on the devices of the graph, which are those that get a part (`work_of`).
    It weighs nothing if none of them can run it. An edge weighs its bytes. Work is scaled so that
    its sum is ``TOTAL_WORK``. Bytes are exact if their sum allows it, and otherwise scaled down to
    ``TOTAL_TRAFFIC``. An edge without bytes keeps the least weight. A graph without any work has
    nodes of equal weight.
    """
    seconds = work_of(graph.compute_time)
    if not seconds.any():
        seconds = np.ones(graph.num_groups)
    work = np.round(seconds * (TOTAL_WORK / seconds.sum())).astype(np.int64)
    total = float(graph.edge_bytes.sum(dtype=np.float64))
    fraction = min(1.0, TOTAL_TRAFFIC / total) if total else 1.0
    traffic = np.maximum(np.round(graph.edge_bytes * fraction), 1).astype(np.int64)
    ends = np.concatenate([graph.edges, graph.edges[:, ::-1]]).astype(np.int64)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    offsets = np.append(0, np.cumsum(np.bincount(ends[:, 0], minlength=graph.num_groups)))
    return WeightedGraph(offsets, ends[order, 1], work, np.tile(traffic, 2)[order])


class MetisPlacer(Partitioner):
    """METIS (Karypis and Kumar 1998): parts in proportion to speed, with little traffic.

    The library itself cuts the graph into as many parts as there are devices. Nodes weigh their
    seconds on the devices that get a part, edges their bytes. METIS ignores distances, the order of
    execution and the memory. Fewer nodes than devices are not cut: each gets a device of its own,
    the fastest first.

    Parameters
    ----------
    imbalance
        Largest work of a device beyond its share, as a fraction of the share; at least a
        thousandth, which is METIS' unit.
    nodes
        Nodes that are partitioned: ``"groups"``, or ``"ops"``: each group then goes to where most
        of its work was mapped.
    only_accelerators
        True if CPUs get only groups that no accelerator can run.

    Raises
    ------
    BaselineError
        When a setting is out of its range; by `place`, when pymetis is not installed.

    Examples
    --------
    >>> placement = MetisPlacer().place(problem, evaluator).placement
    >>> placement[0] == placement[2] != placement[1] == placement[3]
    np.True_
    """

    name = "metis"
    least_imbalance = 0.001

    def parts(
        self,
        graph: GroupGraph,
        cluster: Cluster,  # noqa: ARG002
        devices: NDArray[np.intp],  # noqa: ARG002
        seed: int,
    ) -> Iterator[NDArray[np.int64]]:
        """Yield int64[N], the position in ``devices`` of the device of each node.

        Parameters
        ----------
        graph
            Graph of N nodes, with the compute times of these devices of the cluster only.
        cluster, devices
            Devices among which the nodes are divided; METIS needs only their number.
        seed
            Seed of the random choices of METIS.
        """
        pymetis = import_extra("pymetis", "metis", ["pymetis"])
        shares = speeds(graph.compute_time)
        shares = shares / shares.sum()
        if graph.num_groups <= len(shares):
            yield np.argsort(-shares, kind="stable")[: graph.num_groups]
            return
        weighted, dtype = weighted_graph(graph), pymetis.zero_copy_dtype()
        offsets, neighbours, work, traffic = (array.astype(dtype) for array in weighted)
        with no_native_output():
            partition = pymetis.part_graph(
                len(shares),
                pymetis.CSRAdjacency(offsets, neighbours),
                vweights=work,
                eweights=traffic,
                tpwgts=shares.tolist(),
                options=pymetis.Options(seed=seed % 2**31, ufactor=round(self.imbalance * 1000)),
            )
        yield np.asarray(partition.vertex_part, np.int64)


@contextlib.contextmanager
def no_native_output() -> Iterator[None]:
    """Drop what C code prints to the standard output, where others read JSON.

    METIS prints a remark there when it finds no node for a device, and has no option against it.
    """
    c_library = ctypes.CDLL(None)
    c_library.fflush(None)
    with open(os.devnull, "wb") as nowhere, os.fdopen(os.dup(1), "wb") as output:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            c_library.fflush(None)
            os.dup2(output.fileno(), 1)


class ScotchPlacer(Partitioner):
    """Scotch (Pellegrini 2009): balanced work, little traffic ("Scotch" of Addanki et al. 2019).

    The library itself maps the graph onto the cluster. Nodes weigh their seconds on the devices
    that get a part, edges their bytes, devices their speed. If links differ, the cluster is an
    architecture with distances, which multiply the traffic. The result is the better placement of
    its default strategy and of the one for quality. Scotch ignores the order of execution and the
    memory.

    Parameters
    ----------
    imbalance, nodes, only_accelerators
        Those of `MetisPlacer`; an imbalance may be 0. With accelerators only, it is "MinCut" of
        Mirhoseini et al. (2017), whose "Scotch" maps to the CPU, too.

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
        """Yield int64[N] for each strategy, the position in ``devices`` of the device of each node.

        Parameters
        ----------
        graph
            Graph of N nodes, with the compute times of these devices of the cluster only.
        cluster
            Cluster, whose links have the distances between devices.
        devices
            intp[D], the devices among which the nodes are divided.
        seed
            Seed of the random choices of Scotch.
        """
        tensor_bytes = float(graph.edge_bytes.mean()) if graph.num_edges else 0.0
        weighted = weighted_graph(graph)
        device_speeds = whole_speeds(speeds(graph.compute_time))
        distances = whole_distances(cluster, devices, tensor_bytes)
        for strategy in STRATEGIES:
            yield scotch_map(weighted, device_speeds, distances, self.imbalance, seed, strategy)


def scotch_map(
    graph: WeightedGraph,
    device_speeds: NDArray[np.int64],
    distances: NDArray[np.int64],
    imbalance: float,
    seed: int,
    strategy: int = STRATEGIES[0],
) -> NDArray[np.int64]:
    """Map a graph with Scotch; return int64[N], the device of each node.

    ``device_speeds`` int64[D] are weights, and ``distances`` int64[D, D] say how often traffic
    between two devices counts.
    """
    with contextlib.redirect_stderr(io.StringIO()):  # what loading the library prints is of no use
        pyscotch = import_extra("pyscotch", "scotch", ["pyscotch"])
        bits = pyscotch.get_scotch_int_size()
    if bits != 64:
        raise BaselineError(f"PYSCOTCH_INT_SIZE: expected 64, got {bits}")
    # The first context of a process draws otherwise than all others: use it up.
    with pyscotch.Graph() as single, pyscotch.Context() as first:
        single.build(np.array([0, 0]), np.array([], np.int64))
        first.bind_graph(single).close()
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
    half_ids = _numbers_of_halves(len(speeds))
    lines = ["deco", "0", f"{len(speeds)} {max(half_ids)}"]
    lines += [
        f"{device} {speed} {half_id}"
        for device, (speed, half_id) in enumerate(zip(speeds.tolist(), half_ids, strict=True))
    ]
    lines += [" ".join(map(str, distances[row, :row])) for row in range(1, len(speeds))]
    return "\n".join(lines) + "\n"


def _numbers_of_halves(count: int, half_id: int = 1) -> list[int]:
    if count == 1:
        return [half_id]
    half = (count + 1) // 2
    lower = _numbers_of_halves(half, 2 * half_id)
    return lower + _numbers_of_halves(count - half, 2 * half_id + 1)
