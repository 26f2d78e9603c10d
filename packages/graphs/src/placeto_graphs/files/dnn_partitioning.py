"""Input files of the device placement algorithms of Tarnawski et al. 2020 (JSON)."""

import math
import os
from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, short_repr, within
from placeto_graphs.files.storage import convert, opened_json
from placeto_graphs.schema.cluster import MAX_DEVICES, Cluster, Device
from placeto_graphs.schema.op_graph import FREE, OpGraph
from placeto_graphs.schema.problem import PlacementProblem

ACCELERATOR, HOST = "accelerator", "cpu"
MILLISECOND = 1e-3
# The files have the time of a transfer and not its bytes. With so many bytes a second, a tensor of
# a byte stands for a picosecond, and no time of a file is rounded in a digit that it has.
BANDWIDTH = 1e12
HOST_MEMORY = 2**60  # no limit


class _Node(msgspec.Struct):
    id: int
    cpuLatency: float  # noqa: N815 (as the files have it)
    fpgaLatency: float  # noqa: N815
    size: float
    name: str = ""
    supportedOnFpga: bool | int = True  # noqa: N815
    isBackwardNode: bool | int = False  # noqa: N815
    colorClass: int | None = None  # noqa: N815


class _Edge(msgspec.Struct):
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    cost: float


class _File(msgspec.Struct):
    maxFPGAs: int  # noqa: N815
    maxCPUs: int  # noqa: N815
    maxSizePerFPGA: float  # noqa: N815
    nodes: list[_Node]
    edges: list[_Edge]


def load_dnn_partitioning(path: str | os.PathLike[str]) -> PlacementProblem:
    """Read an input file of the repository msr-fiddle/dnn-partitioning as a problem.

    Each node becomes an op, and nodes of one ``colorClass`` are one group. The cluster has
    ``maxFPGAs`` devices of kind ``"accelerator"`` with ``maxSizePerFPGA`` bytes each, and
    ``maxCPUs`` of kind ``"cpu"`` without a limit. A node takes ``fpgaLatency`` milliseconds on an
    accelerator, if it can run there, and ``cpuLatency`` on a CPU. Its ``size`` is memory for the
    whole step. The output of a node is a tensor that takes its ``cost`` in milliseconds from an
    accelerator to the host, at 1e12 bytes per second. Times are therefore right, and the bytes of
    tensors are not known: peaks of memory of a simulated step, which count them, are wrong. The
    objective of the paper is that of ``placeto_simulator.ThroughputEvaluator``, whose memory is
    ``size`` alone.

    Parameters
    ----------
    path
        Name of the JSON file.

    Raises
    ------
    GraphError
        When the file is not such an input file.
    OSError
        When the file cannot be read.

    References
    ----------
    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
    2020.
    """
    with opened_json(path) as data:
        file = convert(data, _File)
        graph, cluster = _graph(file), _cluster(file)
        on_host = _seconds(file.nodes, "cpuLatency")
        can_run = [bool(node.supportedOnFpga) for node in file.nodes]
        on_accelerator = np.where(can_run, _seconds(file.nodes, "fpgaLatency"), np.inf)
        columns = [on_host if device.is_cpu else on_accelerator for device in cluster.devices]
        compute_time = np.stack(columns, axis=1)
        return PlacementProblem(
            graph=graph, cluster=cluster, compute_time=compute_time, rules=("id",)
        )


def _seconds(nodes: list[_Node], field: str) -> NDArray[np.float64]:
    milliseconds = [getattr(node, field) for node in nodes]
    for index, latency in enumerate(milliseconds):
        if not latency >= 0:
            raise GraphError(f"nodes[{index}].{field}: expected a number >= 0, got {latency}")
    return np.array(milliseconds) * MILLISECOND


def _cluster(file: _File) -> Cluster:
    memory = _whole_bytes("maxSizePerFPGA", file.maxSizePerFPGA)
    devices: list[Device] = []
    for field, count, kind, size in (
        ("maxFPGAs", file.maxFPGAs, ACCELERATOR, memory),
        ("maxCPUs", file.maxCPUs, HOST, HOST_MEMORY),
    ):
        if not 0 <= count <= MAX_DEVICES:
            raise GraphError(f"{field}: expected a number from 0 to {MAX_DEVICES}, got {count}")
        devices += [Device(f"{kind}:{index}", kind, size, 0.0, 0.0) for index in range(count)]
    if not devices:
        raise GraphError("maxFPGAs, maxCPUs: expected at least one device, got none")
    shape = (len(devices), len(devices))
    bandwidth = np.full(shape, BANDWIDTH)
    return Cluster(devices=tuple(devices), bandwidth=bandwidth, latency=np.zeros(shape))


def _graph(file: _File) -> OpGraph:
    nodes, op_of_id = file.nodes, dict[int, int]()
    for op, node in enumerate(nodes):
        if op_of_id.setdefault(node.id, op) != op:
            raise GraphError(f"nodes[{op}].id: {node.id} repeats nodes[{op_of_id[node.id]}].id")
    costs: dict[int, float] = {}  # of the tensor of each op that has one
    sizes: dict[int, int] = {}  # in bytes
    edges: dict[tuple[int, int], None] = {}
    for index, edge in enumerate(file.edges):
        with within(f"edges[{index}]."):
            for field, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
                if end not in op_of_id:
                    raise GraphError(f"{field}: expected the id of a node, got {end}")
            source, reader = op_of_id[edge.sourceId], op_of_id[edge.destId]
            if costs.setdefault(source, edge.cost) != edge.cost:
                raise GraphError(
                    f"cost: expected {costs[source]} as of the other edges of node "
                    f"{edge.sourceId}, got {edge.cost}"
                )
            sizes[source] = _whole_bytes("cost", edge.cost * MILLISECOND * BANDWIDTH)
            edges[source, reader] = None
    tensor_of_op = {op: tensor for tensor, op in enumerate(costs)}
    ids: dict[int | None, int] = {None: FREE}  # of colours
    return OpGraph(
        op_names=_names(nodes),
        op_types=("node",) * len(nodes),
        phases=np.array([int(bool(node.isBackwardNode)) for node in nodes]),
        parameter_bytes=np.array(
            [_whole_bytes(f"nodes[{op}].size", node.size) for op, node in enumerate(nodes)]
        ),
        colocation=np.array([ids.setdefault(node.colorClass, len(ids) - 1) for node in nodes]),
        tensor_producer=np.array([*costs]),
        tensor_bytes=np.array([*sizes.values()]),
        edges=np.array([(tensor_of_op[op], reader) for op, reader in edges]),
    )


def _names(nodes: list[_Node]) -> tuple[str, ...]:
    """Return the names of nodes, with their ids where one has no name of its own."""
    count = Counter(node.name for node in nodes)
    return tuple(
        node.name if node.name and count[node.name] == 1 else f"{node.name or 'node'}#{node.id}"
        for node in nodes
    )


def _whole_bytes(field: str, value: float) -> int:
    if not 0 <= value < 2**62:
        raise GraphError(f"{field}: expected a number from 0 to 2^62, got {short_repr(value)}")
    return math.ceil(value - 1e-6)
