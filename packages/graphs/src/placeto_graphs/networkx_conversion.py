"""To and from networkx: ops as nodes, tensors on edges; groups as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.digraphs import compress_rows
from placeto_graphs.errors import GraphError, short_repr, within
from placeto_graphs.schema.arrays import integer
from placeto_graphs.schema.op_graph import OP_DEFAULTS, OpGraph
from placeto_graphs.schema.problem import PlacementProblem

if TYPE_CHECKING:
    import networkx as nx

_SINGULAR = {"op_types": "op_type", "scopes": "scope", "phases": "phase"}
_PER_OP = {  # field of OpGraph: attribute of a node, default
    field: (_SINGULAR.get(field, field), default) for field, default in OP_DEFAULTS.items()
}
_OF_NODE = [attribute for attribute, _ in _PER_OP.values()]
_OF_NODE += ["measured_time", "outputs", "held", "waits_for"]
_OF_EDGE = ("bytes", "tensors")
_Tensor = tuple[int, Any]  # the op that makes it, and what it is called
_ONLY = object()  # what the one output of an op is called that names none
Value = TypeVar("Value")


def to_networkx(graph: OpGraph) -> nx.DiGraph:
    """Return a graph whose nodes are the names of ops, in order.

    An edge stands for all tensors that one op reads from another. `from_networkx` gives the same
    graph of ops again. Only the order of a tensor's consumers may be another, if several tensors of
    one op have consumers in different orders.

    Parameters
    ----------
    graph
        A graph of V ops and T tensors.

    Returns
    -------
    networkx.DiGraph
        Nodes have the attributes that follow, which `OpGraph` describes:

        - ``op_type``, ``scope``, ``dtype`` : text
        - ``phase``, ``colocation``, ``micro_batch``, ``groups``, ``group_channels`` : int
        - ``flops`` : float, floating-point operations; ``computed_part`` : float
        - ``bytes_accessed`` : float, and ``parameter_bytes``, ``workspace_bytes`` : int, in bytes
        - ``measured_time`` : dict of a kind of device to seconds
        - ``outputs`` : dict of a tensor, from 0 to T - 1, to its bytes, in order
        - ``held`` : tuple of the outputs that stay until the step ends
        - ``waits_for`` : tuple of the names of ops that have to be done before it

        Edges have ``tensors``, a tuple of tensors, and ``bytes``, their sum. The attributes
        ``tokens`` and ``cache`` of the graph are those of `OpGraph`.

    Examples
    --------
    >>> import networkx as nx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("matmul", "relu", bytes=4096)
    >>> to_networkx(from_networkx(chain)).edges["matmul", "relu"]
    {'bytes': 4096, 'tensors': (0,)}
    """
    # networkx takes longer to import than all the rest of this package.
    import networkx as nx  # noqa: PLC0415

    result = nx.DiGraph(tokens=graph.tokens, cache=graph.cache)
    columns = {
        attribute: np.asarray(getattr(graph, field), dtype=object)
        for field, (attribute, _) in _PER_OP.items()
    }
    waits_for = compress_rows(graph.num_ops, *graph.waits.T)
    held_tensors = set(graph.held_tensors.tolist())
    for op, name in enumerate(graph.op_names):
        tensors = graph.tensors_of_op[op].tolist()
        result.add_node(
            name,
            **{attribute: column[op] for attribute, column in columns.items()},
            measured_time={kind: float(time[op]) for kind, time in graph.measured_time.items()},
            outputs={tensor: int(graph.tensor_bytes[tensor]) for tensor in tensors},
            held=tuple(tensor for tensor in tensors if tensor in held_tensors),
            waits_for=tuple(graph.op_names[awaited] for awaited in waits_for[op]),
        )
    for tensor, consumer in graph.edges.tolist():
        ends = graph.op_names[graph.tensor_producer[tensor]], graph.op_names[consumer]
        if not result.has_edge(*ends):
            result.add_edge(*ends, bytes=0, tensors=())
        edge = result.edges[ends]
        edge["bytes"] += int(graph.tensor_bytes[tensor])
        edge["tensors"] += (tensor,)
    return result


def groups_to_networkx(
    problem: PlacementProblem, placement: NDArray[np.int32] | None = None
) -> nx.DiGraph:
    """Return the graph of groups, whose nodes are the names of groups, in order.

    All attributes are texts and numbers, as files such as GraphML and DOT have them. An edge runs
    from the earlier group to the later one.

    Parameters
    ----------
    problem
        Problem with G groups.
    placement : int32[G]
        The device of each group; by default the groups are not placed.

    Returns
    -------
    networkx.DiGraph
        Nodes have ``ops``, the number of ops, and ``output_bytes`` and ``parameter_bytes``. If the
        groups are placed, they also have ``device``, the name of the device, and ``seconds``, the
        compute time of their ops there. Edges have ``bytes``, those of the tensors in both
        directions.

    Raises
    ------
    GraphError
        When the placement is none of the problem.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import parse_cluster
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("matmul", "relu", bytes=4096)
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(chain),
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=[[0.5, 0.5], [0.25, 0.25]],
    ... )
    >>> groups = groups_to_networkx(problem, np.array([0, 1]))
    >>> groups.nodes["relu"]["device"], groups.nodes["relu"]["seconds"]
    ('k80:1', 0.25)
    >>> groups.edges["matmul", "relu"]
    {'bytes': 4096}
    """
    import networkx as nx  # noqa: PLC0415 (as above)

    groups, names = problem.group_graph, problem.grouping.group_names
    num_ops = np.bincount(problem.grouping.group_of, minlength=problem.num_groups)
    result = nx.DiGraph()
    for group, name in enumerate(names):
        result.add_node(
            name,
            ops=int(num_ops[group]),
            output_bytes=int(groups.output_bytes[group]),
            parameter_bytes=int(groups.parameter_bytes[group]),
        )
    if placement is not None:
        for group, device in enumerate(problem.check_placement(placement).tolist()):
            result.nodes[names[group]]["device"] = problem.cluster.device_names[device]
            result.nodes[names[group]]["seconds"] = float(groups.compute_time[group, device])
    for (first, second), size in zip(
        groups.edges.tolist(), groups.edge_bytes.tolist(), strict=True
    ):
        result.add_edge(names[first], names[second], bytes=size)
    return result


def from_networkx(graph: nx.DiGraph) -> OpGraph:
    """Return the graph of ops that a networkx graph describes.

    An op without ``outputs`` makes one tensor, which all its edges carry; ``bytes`` is the same on
    each. An op that makes several tensors has them in ``outputs``, and each of its edges names in
    ``tensors`` those that it carries, one at least. Such an edge may also have ``bytes``, their
    sum. A node with ``parameter_bytes`` that reads nothing is a weight, whose output takes no
    further memory: give the input of a model as a node of its own.

    Parameters
    ----------
    graph
        A graph whose nodes are ops: the name of an op is the text of its node. A node may have the
        attributes that follow, which `OpGraph` describes.

        - ``op_type`` (default ``"op"``), ``scope``, ``dtype`` (default ``""``) : text
        - ``phase`` (default 0), ``colocation`` (default -1), ``micro_batch`` (default -1),
          ``groups`` (default 1), ``group_channels`` (default 0) : int
          ``computed_part`` (default 1) : float
        - ``flops`` : float, floating-point operations, default 0
        - ``bytes_accessed``, ``parameter_bytes``, ``workspace_bytes`` : bytes, default 0
        - ``measured_time`` : mapping of kinds of device to seconds; every node has the same kinds
        - ``outputs`` : mapping of any names of tensors to their bytes, in order
        - ``held`` : sequence of the outputs that stay until the step ends
        - ``waits_for`` : sequence of nodes that have to be done before it

        An edge may have ``bytes`` (int, default 0), and ``tensors``, a sequence of the outputs of
        its first node. Of the attributes of the graph itself, ``tokens`` and ``cache``
        count.

    Raises
    ------
    GraphError
        When an attribute is none of these or not what the schema expects, when the edges of an op
        without ``outputs`` differ in ``bytes``, or when the graph has a cycle.

    Examples
    --------
    >>> import networkx as nx
    >>> chain = nx.DiGraph()
    >>> chain.add_node("matmul", flops=2e9, parameter_bytes=4096)
    >>> chain.add_edge("matmul", "relu", bytes=4096)
    >>> chain.add_edge("matmul", "tanh", bytes=4096)
    >>> from_networkx(chain)
    OpGraph(ops=3, tensors=1, edges=2)

    An op with two outputs, of which one stays until the step ends:

    >>> split = nx.DiGraph()
    >>> split.add_node("split", outputs={"left": 1024, "right": 2048}, held=["right"])
    >>> split.add_edge("split", "relu", tensors=["left"])
    >>> graph = from_networkx(split)
    >>> graph.tensor_bytes, graph.held_tensors
    (array([1024, 2048]), array([1], dtype=int32))
    """
    import networkx as nx  # noqa: PLC0415 (as above)

    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise GraphError(f"graph: expected a networkx.DiGraph, got {short_repr(graph)}")
    op_of_node = {node: index for index, node in enumerate(graph)}
    tensor_bytes: dict[_Tensor, int] = {}
    outputs: list[dict[Any, _Tensor]] = []
    held_tensors: list[_Tensor] = []
    waits: list[tuple[int, int]] = []
    for op, (node, attributes) in enumerate(graph.nodes(data=True)):
        with within(f"node {short_repr(node)}: "):
            _check_known(attributes, _OF_NODE)
            sizes = _sizes(attributes.get("outputs", {}))
            tensor_bytes |= {(op, name): size for name, size in sizes.items()}
            outputs.append({name: (op, name) for name in sizes})
            held_tensors += _looked_up("held", attributes.get("held", ()), outputs[op], "outputs")
            awaited_ops = _looked_up(
                "waits_for", attributes.get("waits_for", ()), op_of_node, "nodes"
            )
            waits += [(op, awaited) for awaited in awaited_ops]
    reads: list[tuple[_Tensor, int]] = []
    for source, destination, attributes in graph.edges(data=True):
        op = op_of_node[source]
        with within(f"edge {short_repr(source)} -> {short_repr(destination)}: "):
            _check_known(attributes, _OF_EDGE)
            carried = _carried(op, attributes, outputs[op], tensor_bytes)
        reads += [(tensor, op_of_node[destination]) for tensor in carried]
    ordered = _ordered(tensor_bytes)
    index = {tensor: position for position, tensor in enumerate(ordered)}
    fields: dict[str, Any] = {
        field: [value for _, value in graph.nodes(data=attribute, default=default)]
        for field, (attribute, default) in _PER_OP.items()
    }
    fields |= {
        "op_names": map(str, graph),
        "tensor_producer": [producer for producer, _ in ordered],
        "tensor_bytes": [tensor_bytes[tensor] for tensor in ordered],
        "edges": [(index[tensor], consumer) for tensor, consumer in reads],
        "measured_time": _measured_time(graph),
        "waits": waits,
        "held_tensors": [index[tensor] for tensor in held_tensors],
        "tokens": graph.graph.get("tokens"),
        "cache": graph.graph.get("cache"),
    }
    return OpGraph(**fields)


def _check_known(attributes: Mapping[Any, Any], allowed: Sequence[str]) -> None:
    """Refuse an attribute that would be ignored: a step would be the cheaper for a wrong name."""
    for attribute in attributes:
        if attribute not in allowed:
            raise GraphError(f"expected attributes among {', '.join(allowed)}, got {attribute!r}")


def _sizes(outputs: Any) -> dict[Any, int]:
    if not isinstance(outputs, Mapping):
        raise GraphError(
            f"outputs: expected a mapping of tensors to bytes, got {short_repr(outputs)}"
        )
    sizes = {}
    for name, size in outputs.items():
        with within(f"outputs[{short_repr(name)}]: "):
            sizes[name] = integer("bytes", size)
    return sizes


def _looked_up(field: str, names: Any, table: Mapping[Any, Value], noun: str) -> list[Value]:
    """Return what is known by some names, all of which have to be known."""
    if not isinstance(names, list | tuple):
        raise GraphError(f"{field}: expected a sequence of {noun}, got {short_repr(names)}")
    entries = []
    for name in names:
        try:
            entries.append(table[name])
        except (KeyError, TypeError):  # a list is no key
            raise GraphError(f"{field}: expected {noun}, got {short_repr(name)}") from None
    return entries


def _carried(
    op: int,
    attributes: Mapping[str, Any],
    outputs: Mapping[Any, _Tensor],
    tensor_bytes: dict[_Tensor, int],
) -> list[_Tensor]:
    """Return the tensors of an edge: some outputs, or the one of an op that names none.

    The first edge of such an op says how large it is.
    """
    names, noun = attributes.get("tensors"), "outputs of the first op"
    if not outputs:
        if "tensors" in attributes:
            raise GraphError(f"tensors: expected {noun}, which has none, got {short_repr(names)}")
        size = integer("bytes", attributes.get("bytes", 0))
        expected = tensor_bytes.setdefault((op, _ONLY), size)
        if size != expected:
            raise GraphError(
                f"bytes: expected {expected} as on the other edges of the first op, which makes "
                "one tensor unless it names several in outputs and its edges in tensors, "
                f"got {size}"
            )
        return [(op, _ONLY)]
    carried = _looked_up("tensors", names, outputs, noun)
    if not carried:
        raise GraphError(f"tensors: expected {noun}, or waits_for of the second one, got none")
    total = sum(tensor_bytes[tensor] for tensor in carried)
    if integer("bytes", attributes.get("bytes", total)) != total:
        raise GraphError(
            f"bytes: expected {total}, the sum of its tensors, got "
            f"{short_repr(attributes['bytes'])}"
        )
    return carried


def _ordered(tensors: Mapping[_Tensor, int]) -> list[_Tensor]:
    """Return the tensors by their ops; by their names where these are 0, 1, ... in that order."""
    by_op = sorted(tensors, key=lambda tensor: tensor[0])
    names = [name for _, name in tensors]
    if all(type(name) is int for name in names) and sorted(names) == list(range(len(names))):
        by_name = sorted(tensors, key=lambda tensor: tensor[1])
        if sorted(by_name, key=lambda tensor: tensor[0]) == by_op:
            return by_name
    return by_op


def _measured_time(graph: nx.DiGraph) -> dict[str, list[Any]]:
    times = [time for _, time in graph.nodes(data="measured_time", default={})]
    for node, time in zip(graph, times, strict=True):
        if not isinstance(time, Mapping) or time.keys() != times[0].keys():
            raise GraphError(
                f"node {short_repr(node)}: measured_time: expected times for the kinds of every "
                f"other node, got {short_repr(time)}"
            )
    kinds = list(times[0]) if times else []
    return {kind: [time[kind] for time in times] for kind in kinds}
