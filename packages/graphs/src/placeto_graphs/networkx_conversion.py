"""To and from networkx: ops as nodes, tensors on edges."""

from collections.abc import Hashable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from placeto_graphs.errors import GraphError
from placeto_graphs.errors import shown
from placeto_graphs.errors import within
from placeto_graphs.schema.arrays import int_array
from placeto_graphs.schema.op_graph import FREE
from placeto_graphs.schema.op_graph import OpGraph
from placeto_graphs.schema.op_graph import Phase

_PER_OP = {  # field of OpGraph: attribute of a node, default
    "op_types": ("op_type", "op"),
    "scopes": ("scope", ""),
    "phases": ("phase", int(Phase.FORWARD)),
    "flops": ("flops", 0.0),
    "bytes_accessed": ("bytes_accessed", 0.0),
    "parameter_bytes": ("parameter_bytes", 0),
    "workspace_bytes": ("workspace_bytes", 0),
    "colocation": ("colocation", FREE),
}

_Tensor = tuple[int, Any]  # the op that makes it, and what it is called


@dataclass(frozen=True)
class _OnlyTo:
    """The name of a tensor that one edge alone carries."""

    destination: Hashable


def to_networkx(graph: OpGraph) -> nx.DiGraph:
    """Return a graph whose nodes are the names of ops, in order.

    A node has the attributes ``op_type``, ``scope``, ``phase``, ``flops``, ``bytes_accessed``,
    ``parameter_bytes``, ``workspace_bytes``, ``colocation``, ``measured_time`` (kind to seconds)
    and ``outputs`` (tensor to its bytes, in order). An edge stands for all tensors that one op
    reads from another: ``bytes`` is their sum, ``tensors`` has their numbers, and ``positions``
    their rows in `OpGraph.edges`.

    Examples
    --------
    >>> from placeto_graphs import from_networkx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("matmul", "relu", bytes=4096)
    >>> to_networkx(from_networkx(chain)).edges["matmul", "relu"]
    {'bytes': 4096, 'tensors': (0,), 'positions': (0,)}
    """
    result = nx.DiGraph()
    columns = {
        attribute: np.asarray(getattr(graph, field), dtype=object)
        for field, (attribute, _) in _PER_OP.items()
    }
    for op, name in enumerate(graph.op_names):
        result.add_node(
            name,
            **{attribute: column[op] for attribute, column in columns.items()},
            measured_time={kind: float(time[op]) for kind, time in graph.measured_time.items()},
            outputs={
                int(tensor): int(graph.tensor_bytes[tensor]) for tensor in graph.tensors_of_op[op]
            },
        )
    for position, (tensor, consumer) in enumerate(graph.edges.tolist()):
        ends = graph.op_names[graph.tensor_producer[tensor]], graph.op_names[consumer]
        if not result.has_edge(*ends):
            result.add_edge(*ends, bytes=0, tensors=(), positions=())
        edge = result.edges[ends]
        edge["bytes"] += int(graph.tensor_bytes[tensor])
        edge["tensors"] += (tensor,)
        edge["positions"] += (position,)
    return result


def from_networkx(graph: nx.DiGraph) -> OpGraph:
    """Return the graph of ops that a networkx graph describes.

    The attributes are those of `to_networkx`, and all of them may be missing. The name of an op is
    the text of its node. An edge without ``tensors`` carries one tensor of its own, of ``bytes``
    bytes (default 0). An op that sends one tensor to several others has it in its ``outputs``, and
    the edges name it in ``tensors``. Without ``positions`` edges keep the order of the networkx
    graph.

    Parameters
    ----------
    graph
        A directed graph without parallel edges.

    Raises
    ------
    GraphError
        When an attribute is not what the schema expects, or the graph has a cycle.

    Examples
    --------
    >>> chain = nx.DiGraph()
    >>> chain.add_node("matmul", flops=2e9, parameter_bytes=4096)
    >>> chain.add_edge("matmul", "relu", bytes=4096)
    >>> from_networkx(chain)
    OpGraph(ops=2, tensors=1, edges=1)
    """
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise GraphError(f"graph: expected a networkx.DiGraph, got {shown(graph)}")
    number = {node: index for index, node in enumerate(graph)}
    tensors = _outputs(graph, number)
    reads: list[tuple[int, _Tensor, int]] = []
    for source, destination, attributes in graph.edges(data=True):
        with within(f"edge {shown(source)} -> {shown(destination)}: "):
            carried = _carried(number[source], destination, attributes, tensors)
            given = attributes.get("positions", range(len(reads), len(reads) + len(carried)))
            positions = int_array("positions", given, np.int64, (len(carried),)).tolist()
        reads += zip(positions, carried, [number[destination]] * len(carried), strict=True)
    reads.sort(key=lambda read: read[0])
    ordered = _ordered(tensors)
    index = {tensor: position for position, tensor in enumerate(ordered)}
    fields: dict[str, Any] = {
        field: [value for _, value in graph.nodes(data=attribute, default=default)]
        for field, (attribute, default) in _PER_OP.items()
    }
    fields["op_names"] = map(str, graph)
    fields["tensor_producer"] = [producer for producer, _ in ordered]
    fields["tensor_bytes"] = [tensors[tensor] for tensor in ordered]
    fields["edges"] = [(index[tensor], consumer) for _, tensor, consumer in reads]
    fields["measured_time"] = _measured_time(graph)
    return OpGraph(**fields)


def _outputs(graph: nx.DiGraph, number: dict[Any, int]) -> dict[_Tensor, Any]:
    tensors: dict[_Tensor, Any] = {}
    for node, outputs in graph.nodes(data="outputs", default={}):
        if not isinstance(outputs, Mapping):
            raise GraphError(
                f"node {shown(node)}: outputs: expected a mapping of tensors to bytes, "
                f"got {shown(outputs)}"
            )
        tensors.update({(number[node], name): size for name, size in outputs.items()})
    return tensors


def _carried(
    producer: int, destination: Any, attributes: Mapping[str, Any], tensors: dict[_Tensor, Any]
) -> list[_Tensor]:
    """Return the tensors on an edge; one that only this edge knows is added to the others."""
    if "tensors" not in attributes:
        own = (producer, _OnlyTo(destination))
        tensors[own] = attributes.get("bytes", 0)
        return [own]
    if not isinstance(attributes["tensors"], list | tuple):
        raise GraphError(f"tensors: expected a sequence, got {shown(attributes['tensors'])}")
    carried = [(producer, name) for name in attributes["tensors"]]
    for _, name in carried:
        if (producer, name) not in tensors:
            raise GraphError(f"tensors: expected outputs of the first op, got {shown(name)}")
    return carried


def _ordered(tensors: dict[_Tensor, Any]) -> list[_Tensor]:
    """Return the tensors by their names where these are 0, 1, ..., else by their ops."""
    names = [name for _, name in tensors]
    if all(type(name) is int for name in names) and sorted(names) == list(range(len(names))):
        return sorted(tensors, key=lambda tensor: tensor[1])
    return sorted(tensors, key=lambda tensor: tensor[0])


def _measured_time(graph: nx.DiGraph) -> dict[str, list[Any]]:
    times = [time for _, time in graph.nodes(data="measured_time", default={})]
    for node, time in zip(graph, times, strict=True):
        if not isinstance(time, Mapping) or time.keys() != times[0].keys():
            raise GraphError(
                f"node {shown(node)}: measured_time: expected times for the kinds of every other "
                f"node, got {shown(time)}"
            )
    return {kind: [time[kind] for time in times] for kind in (times[0] if times else ())}
