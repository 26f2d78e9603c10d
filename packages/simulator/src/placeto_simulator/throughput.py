"""The steady state of a pipeline as an objective: the largest load of a device for each sample.

All times are whole numbers of ticks, so that loads add up exactly after any sequence of moves.
`begin` is the definition; `move_group` keeps loads up to date.
"""

from functools import cache
from itertools import chain, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    Moves,
    PlacementProblem,
    Walks,
    called_by_compiled,
    compiled,
    sums_by_key,
)
from placeto_simulator.batches import (
    Batch,
    batch_of,
    evaluation_of,
    walk,
    walks_of,
)
from placeto_simulator.errors import SimulationError

TICKS = 2**60  # of all times of a problem together
FEWEST_TICKS = 10**9  # of all ops on their fastest devices, so that no rounding counts


class Nets(NamedTuple):
    """Tensors between groups: N sets of tensors with one maker and the same readers.

    Times are in ticks; the D devices are in M machines.
    """

    compute: NDArray[np.int64]  # [G, D]
    held_bytes: NDArray[np.int64]  # [G]
    maker: NDArray[np.int32]  # [N], the group that makes each net
    first_reader: NDArray[np.int32]  # [N + 1], start of ...
    readers: NDArray[np.int32]  # ... the other groups that read each net
    first_net: NDArray[np.int32]  # [G + 1], start of ...
    nets: NDArray[np.int32]  # ... the nets that each group makes or reads
    num_bytes: NDArray[np.float64]  # [N]
    leaves: NDArray[np.float64]  # [D], to send a byte
    enters: NDArray[np.float64]  # [D], to receive a byte
    machine: NDArray[np.int32]  # [D]
    crosses: NDArray[np.float64]  # [M, M], to send a byte from one machine to another ...
    card: NDArray[np.int32]  # ... over its network card: D + its number
    seconds_per_tick: float


class Loads(NamedTuple):
    """Load of each device and network card in ticks, and the bytes that each device holds."""

    load: NDArray[np.int64]
    peak: NDArray[np.int64]
    tracks_memory: NDArray[np.bool_]  # it is always up to date
    # Of D devices and M machines: the visit of a net, counted in `num_visits`, that saw them last.
    device_seen: NDArray[np.int64]
    machine_seen: NDArray[np.int64]
    num_visits: NDArray[np.int64]


class ThroughputEvaluator:
    """Prices placements by the time per sample of a pipeline (a `placeto_graphs.MoveEvaluator`).

    In the steady state the devices work on different samples, and each is busy for its load at
    every sample. The largest load is the time per sample: the ``runtime`` of a placement. The load
    of a device is the compute time of its ops, and the overhead after each of them. A device that
    is no CPU adds the time of each tensor that leaves it, once however many devices read it. It
    also adds the time of each tensor that enters it, once however many of its ops read it. Tensors
    go through the memory of the host: the time of a tensor is its bytes over the bandwidth to or
    from the first CPU of the machine. Without a CPU it is that of the slowest link of the device in
    its machine, or of all if it is alone. A network card is busy with each tensor once for each
    machine that it goes to. Latencies and overheads of transfers are not counted.

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
        """Return float64[B, D], the seconds that each device is busy for each sample.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        rows = self.problem.check_placements(placements)
        loads = [self._price(row[None])[1].load[: self.problem.num_devices] for row in rows]
        ticks = np.reshape(loads, (len(rows), self.problem.num_devices))
        return np.multiply(ticks, self._nets.seconds_per_tick, dtype=np.float64)

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
        return evaluation_of(self._price(placements)[0])

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from several placements; a move takes time for the nets of its groups only.

        Parameters
        ----------
        placements : int32[C, G]
            The start of each walk: the device of each group.
        moves
            Moves of C walks.

        Raises
        ------
        GraphError
            When the placements or moves are not of the problem (`placeto_graphs.check_moves`).
        """
        return walks_of(self._price(placements, moves=moves)[0])

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return bool[B, G], the groups on the device with the largest load, or that feed it.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        return self._price(placements, path=True)[0].is_critical

    def _price(self, placements: NDArray[np.int32], **options: Any) -> tuple[Batch, Loads]:
        """Price a batch (`batch_of`), and return it with the loads of its last placement."""
        batch = batch_of(self.problem, placements, **options)
        loads = Loads(
            load=np.zeros(int(self._nets.card.max()) + 1, np.int64),
            peak=np.zeros(self.problem.num_devices, np.int64),
            tracks_memory=np.ones(1, np.bool_),
            device_seen=np.zeros(self.problem.num_devices, np.int64),
            machine_seen=np.zeros(len(self._nets.card), np.int64),
            num_visits=np.zeros(1, np.int64),
        )
        _walk()(self._nets, loads, batch, 0, len(batch.runtime))
        return batch, loads


@cache
def _walk() -> Any:
    constants = {
        "HAS_TIMES": False,
        "simulate": begin,
        "price": price,
        "move_group": move_group,
        "mark_critical": mark_critical,
    }
    return compiled(walk, name="walk_throughput", constants=constants)


def _tensors_of_nets(problem: PlacementProblem) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """Return the tensors between groups, by the group that makes them and those that read them."""
    graph, group_of = problem.graph, problem.grouping.group_of
    readers_of: dict[int, set[int]] = {}
    makers = group_of[graph.edge_producers].tolist()
    readers = group_of[graph.edge_consumers].tolist()
    for tensor, maker, reader in zip(graph.edges[:, 0].tolist(), makers, readers, strict=True):
        if maker != reader:
            readers_of.setdefault(tensor, set()).add(reader)
    tensors_of: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for tensor in sorted(readers_of):
        maker = int(group_of[graph.tensor_producer[tensor]])
        tensors_of.setdefault((maker, tuple(sorted(readers_of[tensor]))), []).append(tensor)
    return tensors_of


def _nets_of(problem: PlacementProblem) -> Nets:
    graph, num_groups = problem.graph, problem.num_groups
    tensors_of = _tensors_of_nets(problem)
    nets_of_group: list[list[int]] = [[] for _ in range(num_groups)]
    for net, (maker, reading_groups) in enumerate(tensors_of):
        for group in (maker, *reading_groups):
            nets_of_group[group].append(net)
    net_readers = [reading_groups for _, reading_groups in tensors_of]

    compute = np.where(np.isinf(problem.compute_time), 0.0, problem.busy_time)
    sizes = graph.tensor_bytes.astype(np.float64)
    num_bytes = np.array([sizes[tensors].sum() for tensors in tensors_of.values()])
    seconds_per_byte, card = _seconds_per_byte(problem.cluster)
    of_bytes = num_bytes.sum() * sum(seconds.sum() for seconds in seconds_per_byte.values())
    total = max(compute.sum() + of_bytes, 1e-300)
    # A power of two, so that what float64 adds up exactly is exact here, too.
    seconds_per_tick = 2.0 ** np.ceil(np.log2(total / TICKS))

    fastest = problem.compute_time.min(axis=1).sum()
    if 0 < fastest < FEWEST_TICKS * seconds_per_tick:
        raise SimulationError(
            f"compute_time: expected at most {fastest * TICKS / FEWEST_TICKS:.3g} s in all beside "
            f"{fastest:.3g} s on the fastest devices, got {compute.max():.3g} s for one op; where "
            "an op cannot run, its time is infinity"
        )

    ticks = np.zeros((num_groups, problem.num_devices), np.int64)
    np.add.at(
        ticks, problem.grouping.group_of, np.rint(compute / seconds_per_tick).astype(np.int64)
    )
    return Nets(
        compute=ticks,
        held_bytes=_held_bytes(problem),
        maker=np.array([maker for maker, _ in tensors_of], np.int32),
        first_reader=np.cumsum([0, *map(len, net_readers)], dtype=np.int32),
        readers=np.fromiter(chain.from_iterable(net_readers), np.int32),
        first_net=np.cumsum([0, *map(len, nets_of_group)], dtype=np.int32),
        nets=np.fromiter(chain.from_iterable(nets_of_group), np.int32),
        num_bytes=num_bytes,
        **{name: seconds / seconds_per_tick for name, seconds in seconds_per_byte.items()},
        machine=problem.cluster.machine,
        card=card,
        seconds_per_tick=seconds_per_tick,
    )


def _seconds_per_byte(cluster: Cluster) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int32]]:
    """Return what a byte takes in each direction, as `Nets` has it, and the network cards."""
    seconds, count = 1 / cluster.bandwidth, cluster.num_devices
    machines = range(len(cluster.machine_names))
    devices = [np.flatnonzero(cluster.machine == machine) for machine in machines]
    is_cpu = np.array([device.is_cpu for device in cluster.devices])
    hosts = [inside[is_cpu[inside]] for inside in devices]
    leaves, enters = np.zeros((2, count))
    for inside, host in zip(devices, hosts, strict=True):
        peers = host[:1]  # the first CPU, or else all
        if len(host) == 0:
            peers = inside if len(inside) > 1 else np.arange(count)
        for device in inside[~is_cpu[inside]]:
            leaves[device] = seconds[device, peers].max()
            enters[device] = seconds[peers, device].max()
    crosses = np.zeros((len(devices), len(devices)))
    link = np.full(crosses.shape, -1)  # inside a machine it is none
    gateways = [
        host[:1] if len(host) else inside for inside, host in zip(devices, hosts, strict=True)
    ]
    for pair in permutations(range(len(devices)), 2):
        source_machine, target_machine = pair
        ends = np.ix_(gateways[source_machine], gateways[target_machine])
        crosses[pair] = seconds[ends].max()
        link[pair] = cluster.link[ends].flat[0]
    card = count + np.unique(link, return_inverse=True)[1].reshape(link.shape)
    seconds_per_byte = {"leaves": leaves, "enters": enters, "crosses": crosses}
    return seconds_per_byte, card.astype(np.int32)


def _held_bytes(problem: PlacementProblem) -> NDArray[np.int64]:
    """Return int64[G], parameters and tensors that each group holds until a step ends."""
    graph, group_of = problem.graph, problem.grouping.group_of
    held_tensors = graph.held_tensors
    held_sizes = (graph.tensor_bytes * ~graph.lives_in_weights)[held_tensors]
    makers = group_of[graph.tensor_producer[held_tensors]]
    return problem.group_graph.parameter_bytes + sums_by_key(makers, held_sizes, problem.num_groups)


@called_by_compiled
def add_net(nets: Nets, net: int, placement: NDArray[np.int32], sign: int, loads: Loads) -> None:
    """Add the ticks of a net to the loads of devices and network cards, or subtract them."""
    home, num_bytes = placement[nets.maker[net]], nets.num_bytes[net]
    home_machine = nets.machine[home]
    loads.num_visits[0] += 1
    visit = loads.num_visits[0]
    loads.device_seen[home] = loads.machine_seen[home_machine] = visit
    leaves = False
    for position in range(nets.first_reader[net], nets.first_reader[net + 1]):
        device = placement[nets.readers[position]]
        if loads.device_seen[device] == visit:
            continue
        loads.device_seen[device] = visit
        leaves = True
        loads.load[device] += sign * round(num_bytes * nets.enters[device])
        machine = nets.machine[device]
        if loads.machine_seen[machine] != visit:
            loads.machine_seen[machine] = visit
            crossing = round(num_bytes * nets.crosses[home_machine, machine])
            loads.load[nets.card[home_machine, machine]] += sign * crossing
    if leaves:
        loads.load[home] += sign * round(num_bytes * nets.leaves[home])


@called_by_compiled
def begin(nets: Nets, loads: Loads, placement: NDArray[np.int32]) -> float:
    """Write the load of each device, and the bytes that it holds; return the time per sample."""
    for resource in range(len(loads.load)):
        loads.load[resource] = 0
    for device in range(len(loads.peak)):
        loads.peak[device] = 0
    for group in range(len(placement)):
        device = placement[group]
        loads.load[device] += nets.compute[group, device]
        loads.peak[device] += nets.held_bytes[group]
    for net in range(len(nets.maker)):
        add_net(nets, net, placement, 1, loads)
    return price(nets, loads, placement)


@called_by_compiled
def price(nets: Nets, loads: Loads, _placement: NDArray[np.int32]) -> float:
    """Return the time per sample."""
    return float(loads.load[np.argmax(loads.load)] * nets.seconds_per_tick)


@called_by_compiled
def move_group(
    nets: Nets, loads: Loads, placement: NDArray[np.int32], group: int, target: int
) -> None:
    """Move a group to a device, and keep loads and memory up to date."""
    source = placement[group]
    if source == target:
        return
    for position in range(nets.first_net[group], nets.first_net[group + 1]):
        add_net(nets, nets.nets[position], placement, -1, loads)
    placement[group] = target
    for position in range(nets.first_net[group], nets.first_net[group + 1]):
        add_net(nets, nets.nets[position], placement, 1, loads)
    loads.load[source] -= nets.compute[group, source]
    loads.load[target] += nets.compute[group, target]
    loads.peak[source] -= nets.held_bytes[group]
    loads.peak[target] += nets.held_bytes[group]


@called_by_compiled
def mark_critical(
    nets: Nets, loads: Loads, placement: NDArray[np.int32], is_critical: NDArray[np.bool_]
) -> None:
    """Mark the groups of bool[G] on the device with the largest load, or that may feed the card."""
    busiest = np.argmax(loads.load)
    for group in range(len(placement)):
        is_critical[group] = placement[group] == busiest
        for machine in range(len(nets.card)):
            card = nets.card[nets.machine[placement[group]], machine]
            is_critical[group] |= card == busiest
