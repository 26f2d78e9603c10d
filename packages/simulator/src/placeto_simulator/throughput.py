"""The steady state of a pipeline as an objective: the largest load of a device for each sample.

All times are whole numbers of ticks, so that loads add up exactly after any sequence of moves.
`begin` is the definition; `move_group` keeps loads up to date.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Moves,
    PlacementProblem,
    Walks,
    compiled,
    sums_by_key,
)
from placeto_simulator.batches import walk, walking_of, walks_of
from placeto_simulator.errors import SimulationError

TICKS = 2**60  # of all times of a problem together
FEWEST_TICKS = 10**9  # of all ops on their fastest devices, so that no rounding counts


class Nets(NamedTuple):
    """Tensors between groups: N sets of tensors with one maker and the same readers.

    Attributes
    ----------
    compute : int64[G, D]
        Ticks of each group on each device.
    held_bytes : int64[G]
        Bytes that each group holds.
    maker : int32[N]
        Group that makes each net.
    first_reader, readers : int32[N + 1], int32[]
        Start of the other groups that read each net, and these.
    first_net, nets : int32[G + 1], int32[]
        Start of the nets that each group makes or reads, and these.
    leaves, enters : int64[N, D]
        Ticks that each device spends to send each net, or to receive it.
    seconds_per_tick : float
        Seconds of each tick.
    """

    compute: NDArray[np.int64]
    held_bytes: NDArray[np.int64]
    maker: NDArray[np.int32]
    first_reader: NDArray[np.int32]
    readers: NDArray[np.int32]
    first_net: NDArray[np.int32]
    nets: NDArray[np.int32]
    leaves: NDArray[np.int64]
    enters: NDArray[np.int64]
    seconds_per_tick: float


class Loads(NamedTuple):
    """Load of each device in ticks, int64[D], and the bytes that it holds, int64[D]."""

    load: NDArray[np.int64]
    peak: NDArray[np.int64]


class ThroughputEvaluator:
    """Prices placements by the time per sample of a pipeline (a `placeto_graphs.MoveEvaluator`).

    In the steady state the devices work on different samples, and each is busy for its load at
    every sample. The largest load is the time per sample: the ``runtime`` of a placement. The load
    of a device is the compute time of its ops, and the overhead after each of them. A device that
    is no CPU adds the time of each tensor that leaves it, once however many devices read it. It
    also adds the time of each tensor that enters it, once however many of its ops read it. Tensors
    go through the memory of the host: the time of a tensor is that of a transfer to or from the
    first CPU of the cluster. Without a CPU it is that over the slowest link of the device.
    Overheads of transfers are not counted.

    The memory of a device is the sum of the bytes that its ops hold: parameters, and tensors that
    are held until a step ends. Other activations are not counted, because their number depends on
    how many samples are in the pipeline.

    Parameters
    ----------
    problem
        Problem whose placements are priced.

    References
    ----------
    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019;
    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
    2020 ("max load").

    Examples
    --------
    Two ops of a second each, and a tensor between them that takes half a second. After each op a
    K80 has an overhead:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=3_800_000_000)
    >>> graph = from_networkx(chain)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.ones((2, 2)),
    ... )
    >>> ThroughputEvaluator(problem).evaluate(np.array([[0, 0], [0, 1]])).runtime
    array([2.0000114, 1.5000057])
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self._nets = _nets_of(problem)

    def __repr__(self) -> str:
        return f"ThroughputEvaluator({self.problem!r})"

    def loads(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return float64[B, D], the seconds that each device is busy for each sample."""
        loads, _ = self._loads_and_memory(placements)
        return np.multiply(loads, self._nets.seconds_per_tick, dtype=np.float64)

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the time per sample in seconds, and the bytes that each device holds.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Raises
        ------
        GraphError
            As `Simulator.evaluate` does.
        """
        loads, memory = self._loads_and_memory(placements)
        return EvaluationBatch(
            runtime=loads.max(axis=1, initial=0) * self._nets.seconds_per_tick, peak_memory=memory
        )

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from several placements; a move takes time for the nets of its groups only."""
        walking = walking_of(self.problem, placements, moves)
        loads = Loads(*np.empty((2, self.problem.num_devices), np.int64))
        _walk()(self._nets, loads, walking, 0, len(walking.placement))
        return walks_of(walking)

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return bool[B, G], whether each group is on the device with the largest load."""
        loads, _ = self._loads_and_memory(placements)
        is_critical: NDArray[np.bool_] = placements == loads.argmax(axis=1)[:, None]
        return is_critical

    def _loads_and_memory(
        self, placements: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = np.array(self.problem.check_placements(placements))
        loads = np.empty((len(rows), self.problem.num_devices), np.int64)
        memory = np.empty_like(loads)
        for row, placement in enumerate(rows):
            begin(self._nets, Loads(loads[row], memory[row]), placement)
        return loads, memory


@cache
def _walk() -> Any:
    own = {
        "simulate": begin,
        "runtime_of": price,
        "price": price,
        "move_group": move_group,
        "mark_critical": mark_critical,
    }
    return compiled(walk, name="walk_throughput", constants=own)


def _nets_of(problem: PlacementProblem) -> Nets:
    graph, groups, num_groups = problem.graph, problem.grouping, problem.num_groups
    readers_of: dict[int, set[int]] = {}
    makers = groups.group_of[graph.edge_producers].tolist()
    readers = groups.group_of[graph.edge_consumers].tolist()
    for tensor, maker, reader in zip(graph.edges[:, 0].tolist(), makers, readers, strict=True):
        if maker != reader:
            readers_of.setdefault(tensor, set()).add(reader)
    tensors_of: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for tensor in sorted(readers_of):
        maker = int(groups.group_of[graph.tensor_producer[tensor]])
        tensors_of.setdefault((maker, tuple(sorted(readers_of[tensor]))), []).append(tensor)
    touched: list[list[int]] = [[] for _ in range(num_groups)]
    for net, (maker, others) in enumerate(tensors_of):
        for group in (maker, *others):
            touched[group].append(net)

    compute = np.where(np.isinf(problem.compute_time), 0.0, problem.busy_time)
    tensors = [tensor for each in tensors_of.values() for tensor in each]
    net_of_tensor = np.repeat(np.arange(len(tensors_of)), [len(t) for t in tensors_of.values()])
    leaves, enters = _seconds_through_the_host(problem, tensors)
    seconds_per_tick = max(compute.sum() + leaves.sum() + enters.sum(), 1e-300) / TICKS

    fastest = problem.compute_time.min(axis=1).sum()
    if 0 < fastest < FEWEST_TICKS * seconds_per_tick:
        raise SimulationError(
            f"compute_time: expected at most {fastest * TICKS / FEWEST_TICKS:.3g} s in all beside "
            f"{fastest:.3g} s on the fastest devices, got {compute.max():.3g} s for one op; where "
            "an op cannot run, its time is infinity"
        )

    def ticks(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        rounded: NDArray[np.int64] = np.rint(seconds / seconds_per_tick).astype(np.int64)
        return rounded

    def added_up(
        index: NDArray[np.integer], seconds: NDArray[np.float64], length: int
    ) -> NDArray[np.int64]:
        sums = np.zeros((length, problem.num_devices), np.int64)
        np.add.at(sums, index, ticks(seconds))
        return sums

    return Nets(
        compute=added_up(groups.group_of, compute, num_groups),
        held_bytes=_held_bytes(problem),
        maker=np.array([maker for maker, _ in tensors_of], np.int32),
        first_reader=np.cumsum([0, *(len(others) for _, others in tensors_of)], dtype=np.int32),
        readers=np.array([group for _, others in tensors_of for group in others], np.int32),
        first_net=np.cumsum([0, *map(len, touched)], dtype=np.int32),
        nets=np.array([net for nets in touched for net in nets], np.int32),
        leaves=added_up(net_of_tensor, leaves, len(tensors_of)),
        enters=added_up(net_of_tensor, enters, len(tensors_of)),
        seconds_per_tick=seconds_per_tick,
    )


def _seconds_through_the_host(
    problem: PlacementProblem, tensors: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64[len(tensors), D] twice: what each device takes to send and to receive each."""
    cluster = problem.cluster
    hosts = [device.is_cpu for device in cluster.devices]
    size = problem.graph.tensor_bytes[tensors].astype(np.float64)
    leaves, enters = np.zeros((2, len(tensors), len(hosts)))
    for device, is_host in enumerate(hosts):
        host = [hosts.index(True)] if any(hosts) else range(len(hosts))
        ways = [(device, other) for other in host if other != device]
        if is_host or not ways:
            continue
        for seconds, ends in ((leaves, ways), (enters, [way[::-1] for way in ways])):
            each = [cluster.latency[way] + size / cluster.bandwidth[way] for way in ends]
            seconds[:, device] = np.max(each, axis=0)
    return leaves, enters


def _held_bytes(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[G], parameters and tensors that each group holds until a step ends."""
    graph, group_of = problem.graph, problem.grouping.group_of
    held = graph.held_tensors
    makers = graph.tensor_producer[held]
    outside = graph.parameter_bytes[makers] == 0
    resident = problem.group_graph.parameter_bytes
    kept = graph.tensor_bytes[held[outside]]
    return resident + sums_by_key(group_of[makers[outside]], kept, problem.num_groups)


@compiled
def add_net(
    nets: Nets, net: int, placement: NDArray[np.int32], sign: int, loads: NDArray[np.int64]
) -> None:
    """Add the seconds of a net on each device to its load, or subtract them."""
    home = placement[nets.maker[net]]
    start, end = nets.first_reader[net], nets.first_reader[net + 1]
    leaves = False
    for position in range(start, end):
        there = placement[nets.readers[position]]
        if there == home:
            continue
        leaves = True
        is_first = True
        for before in range(start, position):
            if placement[nets.readers[before]] == there:
                is_first = False
                break
        if is_first:
            loads[there] += sign * nets.enters[net, there]
    if leaves:
        loads[home] += sign * nets.leaves[net, home]


@compiled
def begin(nets: Nets, loads: Loads, placement: NDArray[np.int32]) -> float:
    """Write the load of each device, and the bytes that it holds; return the time per sample."""
    for device in range(len(loads.load)):
        loads.load[device] = loads.peak[device] = 0
    for group in range(len(placement)):
        device = placement[group]
        loads.load[device] += nets.compute[group, device]
        loads.peak[device] += nets.held_bytes[group]
    for net in range(len(nets.maker)):
        add_net(nets, net, placement, 1, loads.load)
    return price(nets, loads, placement)


@compiled
def price(nets: Nets, loads: Loads, _placement: NDArray[np.int32]) -> float:
    """Return the time per sample."""
    return float(loads.load[np.argmax(loads.load)] * nets.seconds_per_tick)


@compiled
def move_group(
    nets: Nets, loads: Loads, placement: NDArray[np.int32], group: int, there: int
) -> None:
    """Move a group to a device, and keep loads and memory up to date."""
    here = placement[group]
    if here == there:
        return
    for position in range(nets.first_net[group], nets.first_net[group + 1]):
        add_net(nets, nets.nets[position], placement, -1, loads.load)
    placement[group] = there
    for position in range(nets.first_net[group], nets.first_net[group + 1]):
        add_net(nets, nets.nets[position], placement, 1, loads.load)
    loads.load[here] -= nets.compute[group, here]
    loads.load[there] += nets.compute[group, there]
    loads.peak[here] -= nets.held_bytes[group]
    loads.peak[there] += nets.held_bytes[group]


@compiled
def mark_critical(
    _nets: Nets, loads: Loads, placement: NDArray[np.int32], is_critical: NDArray[np.bool_]
) -> None:
    """Mark the groups of bool[G] on the device with the largest load."""
    busiest = np.argmax(loads.load)
    for group in range(len(placement)):
        is_critical[group] = placement[group] == busiest
