"""A step whose transfers never wait for a link, as an objective: the model of list scheduling."""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, PlacementProblem, compiled, compress_rows
from placeto_simulator.placements import checked_placements, held_bytes

OP_DONE, DEVICE_FREE, OP_READY = range(3)  # what happens first at one time


class Precedences(NamedTuple):
    """Seconds of ops, and the ops that wait for them.

    Attributes
    ----------
    compute : float64[V, D]
        Seconds of each op on each device.
    overhead : float64[D]
        Seconds that a device rests after an op that takes time.
    num_awaited : int64[V]
        Number of inputs and ops that each op waits for.
    first_reader : int32[V + 1]
        Start of what waits for each op.
    readers : int64[E + W]
        The ops that wait for each.
    size : float64[E + W]
        Bytes that each of them gets; -1 where it only waits.
    latency, bandwidth : float64[D, D]
        Seconds, and bytes per second, of each pair of devices.
    """

    compute: NDArray[np.float64]
    overhead: NDArray[np.float64]
    num_awaited: NDArray[np.int64]
    first_reader: NDArray[np.int32]
    readers: NDArray[np.int64]
    size: NDArray[np.float64]
    latency: NDArray[np.float64]
    bandwidth: NDArray[np.float64]


class ContentionFreeEvaluator:
    """Prices placements by the time of a step in which no transfer waits for another one.

    Devices work as in `Simulator`: one op at a time, in the order in which ops become ready. A
    transfer to each device that reads a tensor starts as soon as the tensor is made. It takes the
    latency and the bytes over the bandwidth, however many other transfers run. Ops that become
    ready at one time queue by their numbers. This is the model of most list schedulers and of
    DOPPLER's simulator, which may order such ops differently.

    The memory of a device is the sum of the bytes that its ops hold during the whole step:
    parameters, and tensors that are held until it ends. Other activations are not counted.

    Parameters
    ----------
    problem
        Problem whose placements are priced.

    References
    ----------
    Topcuoglu et al., "Performance-effective and low-complexity task scheduling for heterogeneous
    computing", IEEE TPDS 2002; Yao et al., "DOPPLER: Dual-Policy Learning for Device Assignment in
    Asynchronous Dataflow Graphs", ICLR 2026.

    Examples
    --------
    An op of a second sends two tensors of half a second each to ops of a second, at one time:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> fork = nx.DiGraph()
    >>> fork.add_edges_from([("a", "b"), ("a", "c")], bytes=3_800_000_000)
    >>> graph = from_networkx(fork)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("3xk80"),
    ...     compute_time=np.ones((3, 3)),
    ... )
    >>> ContentionFreeEvaluator(problem).evaluate(np.array([[0, 0, 0], [0, 1, 2]])).runtime
    array([3.0000114, 2.5      ])
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self._precedences = _precedences_of(problem)
        self._held_bytes = held_bytes(problem)

    def __repr__(self) -> str:
        return f"ContentionFreeEvaluator({self.problem!r})"

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the seconds of a step, and the bytes that each device holds.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Raises
        ------
        SimulationError
            As `Simulator.evaluate` does.
        """
        rows = checked_placements(self.problem, placements)
        group_of = self.problem.grouping.group_of
        runtime = [step_seconds(self._precedences, row[group_of]) for row in rows]
        devices = range(self.problem.num_devices)
        memory = [(rows == device) @ self._held_bytes for device in devices]
        return EvaluationBatch(
            runtime=np.array(runtime, np.float64), peak_memory=np.stack(memory, axis=1)
        )


def _precedences_of(problem: PlacementProblem) -> Precedences:
    graph, cluster = problem.graph, problem.cluster
    before, after = graph.precedences.T
    size = np.full(len(before), -1.0)
    size[: graph.num_edges] = graph.tensor_bytes[graph.edges[:, 0]]
    of_op = compress_rows(graph.num_ops, before, np.arange(len(before)))
    return Precedences(
        compute=np.ascontiguousarray(problem.compute_time),
        overhead=np.array([device.op_overhead for device in cluster.devices]),
        num_awaited=np.bincount(after, minlength=graph.num_ops),
        first_reader=of_op.offsets,
        readers=after[of_op.values].astype(np.int64),
        size=size[of_op.values],
        latency=np.ascontiguousarray(cluster.latency),
        bandwidth=np.ascontiguousarray(cluster.bandwidth),
    )


@compiled
def step_seconds(precedences: Precedences, device_of: NDArray[np.int32]) -> float:
    """Return the seconds of a step in which op ``v`` runs on ``device_of[v]``."""
    num_ops, num_devices = precedences.compute.shape
    missing = precedences.num_awaited.copy()
    arrival = np.zeros(num_ops)  # of the last input of each op that is known
    behind = np.full(num_ops, -1)  # the op behind each one in the queue of its device
    first, last = np.full(num_devices, -1), np.full(num_devices, -1)
    busy = np.zeros(num_devices, np.bool_)
    events = [(0.0, OP_READY, op) for op in range(num_ops) if missing[op] == 0]
    end = 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, which = heappop(events)
            if kind == DEVICE_FREE:
                busy[which] = False
            elif kind == OP_READY:
                device = device_of[which]
                if first[device] == -1:
                    first[device] = which
                else:
                    behind[last[device]] = which
                last[device] = which
            else:
                here = device_of[which]
                start = precedences.first_reader[which]
                for edge in range(start, precedences.first_reader[which + 1]):
                    reader, size = precedences.readers[edge], precedences.size[edge]
                    there, arrived = device_of[reader], now
                    if there != here and size >= 0:
                        seconds = size / precedences.bandwidth[here, there]
                        arrived += precedences.latency[here, there] + seconds
                    arrival[reader] = max(arrival[reader], arrived)
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        heappush(events, (arrival[reader], OP_READY, reader))
        for device in range(num_devices):
            op = first[device]
            if op == -1 or busy[device]:
                continue
            first[device], busy[device] = behind[op], True
            seconds = precedences.compute[op, device]
            done = now + seconds
            end = max(end, done)
            rest = precedences.overhead[device] if seconds > 0 else 0.0
            heappush(events, (done, OP_DONE, op))
            heappush(events, (done + rest, DEVICE_FREE, device))
    return end
