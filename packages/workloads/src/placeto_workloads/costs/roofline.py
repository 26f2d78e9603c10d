"""The time of each op on a kind of device: measured, or by the roofline."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph
from placeto_graphs import parse_cluster
from placeto_workloads.costs.kinds import DEVICE_KINDS
from placeto_workloads.costs.kinds import DeviceKind
from placeto_workloads.costs.op_classes import classify
from placeto_workloads.costs.op_classes import resident
from placeto_workloads.errors import WorkloadError


def cost_model(graph: OpGraph, kind: str) -> NDArray[np.float64]:
    """Return the seconds that each op of a graph takes on a kind of device.

    They are the measured times of the graph if it has them for this kind. Otherwise an op takes
    the launch overhead of the kind, plus its FLOPs at the kind's peak or its bytes at the kind's
    memory bandwidth, whichever takes longer, both reduced to the part that its class of op reaches
    (the roofline model, Williams et al. 2009). Parameters, buffers and inputs take no time.

    The time between two ops, the ``op_overhead`` of a cluster's device, is not in it.

    Parameters
    ----------
    graph
        The V ops, with FLOPs and bytes or with measured times.
    kind
        A kind that the graph has measured times for, or one of `DEVICE_KINDS`.

    Returns
    -------
    float64[V]
        Seconds.

    Raises
    ------
    WorkloadError
        When the kind is unknown, or nothing tells what an op does: its type is of no known class,
        and it has neither FLOPs nor bytes.

    Examples
    --------
    Adding 120 MB to 120 MB is bound by the memory of a K80, a product of matrices by its peak:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_node("weights", op_type="parameter", parameter_bytes=120_000_000)
    >>> ops.add_node("sum", op_type="aten.add", bytes_accessed=360e6)
    >>> ops.add_node("scores", op_type="aten.mm", flops=1e12, bytes_accessed=360e6)
    >>> cost_model(from_networkx(ops), "k80").round(3)
    array([0.   , 0.002, 0.352])
    """
    if kind in graph.measured_time:
        return graph.measured_time[kind].copy()
    if kind not in DEVICE_KINDS:
        known = ", ".join(sorted({*DEVICE_KINDS, *graph.measured_time}))
        raise WorkloadError(f"kind: expected one of {known}, got {kind!r}")
    return roofline(graph, DEVICE_KINDS[kind])


def roofline(graph: OpGraph, device: DeviceKind) -> NDArray[np.float64]:
    """Return the seconds that each op takes on a device, whatever was measured.

    Parameters
    ----------
    graph
        The V ops.
    device
        What is known of the device.

    Returns
    -------
    float64[V]
        Seconds.

    Raises
    ------
    WorkloadError
        When nothing tells what an op does.
    """
    working = ~resident(graph)
    efficiency = np.ones(graph.num_ops)
    for op, op_class in enumerate(classify(graph)):
        if op_class is not None:
            efficiency[op] = getattr(device.efficiency, op_class)
        elif working[op]:
            raise WorkloadError(
                f"op_types[{op}]: expected a known type, FLOPs, bytes or measured times to tell "
                f"the time of op {graph.op_names[op]!r} on {device.name}, "
                f"got {graph.op_types[op]!r} without any"
            )
    seconds = device.launch_overhead + ideal_time(graph, device) / efficiency
    return np.where(working, seconds, 0.0)


def ideal_time(graph: OpGraph, device: DeviceKind) -> NDArray[np.float64]:
    """Return float64[V], the seconds of each op's work at a device's full peak and bandwidth."""
    return np.maximum(
        graph.flops / device.peak_flops, graph.bytes_accessed / device.memory_bandwidth
    )


def single_device_runtime(graph: OpGraph, kind: str) -> float:
    """Return the seconds of one step with all ops on one device: nothing to wait for but ops.

    Between two ops passes the ``op_overhead`` that `parse_cluster` gives a device of the kind.

    Parameters
    ----------
    graph
        The ops.
    kind
        As for `cost_model`; one that `parse_cluster` knows, too.

    Examples
    --------
    Two ops of a second each, with 5.7 microseconds between them:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_nodes_from(["a", "b"], measured_time={"k80": 1.0})
    >>> single_device_runtime(from_networkx(ops), "k80")
    2.0000057
    """
    seconds = cost_model(graph, kind)
    return float(seconds.sum() + overhead_between(int(np.count_nonzero(seconds)), kind))


def overhead_between(num_ops: int, kind: str) -> float:
    """Return the seconds that pass between some ops on one device of a kind."""
    return max(num_ops - 1, 0) * parse_cluster(f"1x{kind}").devices[0].op_overhead
