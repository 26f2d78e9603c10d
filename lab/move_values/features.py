"""What a network sees of each move: a group to a device, in a placement that was simulated once."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import SECONDS_PER_BYTE, PlacementProblem

# In the order of the columns. "Here" is the device of the group, "there" that of the move; times
# and loads are parts of the runtime, memory is in parts of what a device has.
FEATURES = (
    "time here",
    "time there",
    "time there less time here",
    "transfers here",
    "transfers there",
    "transfers there less those here",
    "transfers of critical neighbours here",
    "transfers of critical neighbours there",
    "transfers of critical neighbours there less those here",
    "transfers on busy links there less those here",
    "is critical",
    "critical time",
    "share of neighbours that are critical",
    "share of neighbours here",
    "share of neighbours there",
    "number of neighbours",
    "load here",
    "load there",
    "load here over the mean",
    "load there over the mean",
    "largest load of a device",
    "largest load of a link",
    "memory here",
    "memory there",
    "memory there with the group, over what there is",
    "memory of the group",
    "lacks most memory here",
    "lacks most memory there",
    "share of the memory penalty in the cost",
    "share of ops after the forward pass",
    "number of devices",
    "number of groups",
)
MOST = 3.0  # what no feature exceeds


@dataclass(frozen=True, eq=False)
class Simulated:
    """A placement of G groups on D devices, and what its simulation said.

    Attributes
    ----------
    placement : int32[G]
        The device of each group.
    runtime : float
        Seconds.
    peak_memory : int64[D]
        Bytes.
    is_critical : bool[G]
        Whether the runtime hangs on the group; see `placeto_graphs.CriticalEvaluator`.
    """

    placement: NDArray[np.int32]
    runtime: float
    peak_memory: NDArray[np.int64]
    is_critical: NDArray[np.bool_]


class MoveFeatures:
    """What is to be seen of the moves of one problem's G groups to D devices.

    Nothing in it depends on how devices are numbered: all is of the two devices of a move, or of
    all devices.

    Parameters
    ----------
    problem
        The problem.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> simulated = Simulated(np.zeros(6, np.int32), 6.0, np.zeros(2, np.int64), np.ones(6, bool))
    >>> features = MoveFeatures(two_chains())(simulated)
    >>> features.shape
    (6, 2, 32)
    >>> float(features[0, 1, FEATURES.index("load here")])
    1.0
    """

    def __init__(self, problem: PlacementProblem) -> None:
        cluster, graph = problem.cluster, problem.group_graph
        self.problem = problem
        self._memory = cluster.memory_bytes.astype(np.float64)
        group_of, times = problem.grouping.group_of, problem.compute_time
        overhead = np.array([device.op_overhead for device in cluster.devices])
        times = np.where(np.isfinite(times) & (times > 0), times + overhead, 0.0)
        self._times = np.stack(
            [np.bincount(group_of, column, graph.num_groups) for column in times.T], axis=1
        )
        self._kept = (graph.parameter_bytes + graph.output_bytes).astype(np.float64)
        num_ops = np.bincount(group_of, minlength=graph.num_groups)
        self._later = np.bincount(group_of, problem.graph.phases > 0, graph.num_groups) / num_ops
        # Each edge from both of its ends.
        self._groups = np.concatenate([graph.edges[:, 0], graph.edges[:, 1]])
        self._neighbours = np.concatenate([graph.edges[:, 1], graph.edges[:, 0]])
        self._bytes = np.concatenate([graph.edge_bytes, graph.edge_bytes]).astype(np.float64)
        self._degree = np.bincount(self._groups, minlength=graph.num_groups)

    @cached_property
    def _transfer(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds per byte and per transfer [D, D] between two devices, the mean of both ways."""
        cluster = self.problem.cluster
        here = np.eye(len(cluster.devices), dtype=bool)
        overhead = np.array([[device.transfer_overhead] for device in cluster.devices])
        per_byte = np.where(here, 0.0, 1 / np.where(here, 1.0, cluster.bandwidth))
        per_transfer = np.where(here, 0.0, cluster.latency + overhead)
        return (per_byte + per_byte.T) / 2, (per_transfer + per_transfer.T) / 2

    def __call__(self, simulated: Simulated) -> NDArray[np.float32]:
        """Return float32[G, D, F], the features of each group's move to each device."""
        placement, critical = simulated.placement, simulated.is_critical.astype(np.float64)
        num_groups, num_devices = self._times.shape
        runtime = max(simulated.runtime, 1e-30)
        rows, here = np.arange(num_groups), placement
        per_byte, per_transfer = (matrix / runtime for matrix in self._transfer)

        def by_device(weight: NDArray[np.float64] | None) -> NDArray[np.float64]:
            """Add up weights of edges [2M] by group and by the device of its neighbour: [G, D]."""
            key = self._groups * np.int64(num_devices) + placement[self._neighbours]
            sums = np.bincount(key, weight, num_groups * num_devices)
            return sums.reshape(num_groups, num_devices).astype(np.float64)

        count, sizes = by_device(None), by_device(self._bytes)
        transfers = sizes @ per_byte + count @ per_transfer
        to_critical = by_device(self._bytes * critical[self._neighbours]) @ per_byte
        link_load = self._link_load(placement, per_byte, per_transfer)
        crowded = sizes @ (per_byte * link_load) + count @ (per_transfer * link_load)
        times = self._times / runtime
        time_here = times[rows, here]
        load = np.bincount(here, time_here, num_devices).astype(np.float64)
        over = load - load.mean()
        used = simulated.peak_memory / self._memory
        lacking = simulated.peak_memory - self._memory
        lacks_most = (np.arange(num_devices) == lacking.argmax()).astype(np.float64)
        penalty = SECONDS_PER_BYTE * max(0.0, float(lacking.max()))
        degree = np.maximum(self._degree, 1)[:, None]

        def of_group(values: NDArray[Any]) -> NDArray[Any]:
            return values[:, None]

        columns = [
            _root(of_group(time_here)),
            _root(times),
            _root(times - of_group(time_here)),
            _root(of_group(transfers[rows, here])),
            _root(transfers),
            _root(transfers - of_group(transfers[rows, here])),
            _root(of_group(to_critical[rows, here])),
            _root(to_critical),
            _root(to_critical - of_group(to_critical[rows, here])),
            _root(crowded - of_group(crowded[rows, here])),
            of_group(critical),
            _root(of_group(critical * time_here)),
            of_group(np.bincount(self._groups, critical[self._neighbours], num_groups)) / degree,
            of_group(count[rows, here]) / degree,
            count / degree,
            np.sqrt(degree) / 4,
            of_group(load[here]),
            load,
            of_group(over[here]),
            over,
            load.max(),
            link_load.max(),
            of_group(used[here]),
            used,
            used + of_group(self._kept) / self._memory - 1,
            of_group(self._kept / self._memory[here]),
            of_group(lacks_most[here]),
            lacks_most,
            penalty / (penalty + runtime),
            of_group(self._later),
            num_devices / 8,
            np.log2(num_groups) / 10,
        ]
        features = np.empty((num_groups, num_devices, len(FEATURES)), np.float32)
        for number, column in enumerate(columns):
            features[:, :, number] = np.clip(column, -MOST, MOST)
        return features

    def _link_load(
        self,
        placement: NDArray[np.int32],
        per_byte: NDArray[np.float64],
        per_transfer: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return [D, D], for how much of the step the links between two devices are busy."""
        half = len(self._groups) // 2
        ends = placement[self._groups[:half]], placement[self._neighbours[:half]]
        seconds = (self._bytes[:half] * per_byte[ends] + per_transfer[ends]) / 2
        link = self.problem.cluster.link
        there, back = link[ends], link[ends[::-1]]
        moves = there >= 0
        num_links = max(int(link.max()) + 1, 1)
        load = np.bincount(there[moves], seconds[moves], num_links)
        load += np.bincount(back[moves], seconds[moves], num_links)
        between = np.where(link >= 0, load[link], 0.0)
        return (between + between.T) / 2


def _root(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fourth root, with the sign: parts of a runtime that differ by powers of ten."""
    root: NDArray[np.float64] = np.sign(values) * np.sqrt(np.sqrt(np.abs(values)))
    return root
