"""Problem files and graph files: JSON, packed if the name ends in ``.gz``.

Arrays stand in the file as the schema holds them, one list per column, in SI units. A null among
compute times or bandwidths is infinity.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from placeto_graphs.clusters.devices import (
    DeviceFields,
    decoded_devices,
    decoded_kinds,
    encoded_kinds,
)
from placeto_graphs.errors import GraphError, short_repr, within
from placeto_graphs.files.columns import Integers, Numbers, NumbersOrNull, Pairs, Texts
from placeto_graphs.files.storage import Header, opened_document, write_atomically
from placeto_graphs.schema.cluster import Cluster
from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import ONCE, OpGraph, TokenCache
from placeto_graphs.schema.problem import PlacementProblem

PROBLEM_FORMAT = "placeto-problem"
PROBLEM_VERSION = 6
GRAPH_FORMAT = "placeto-graph"
GRAPH_VERSION = 2
# Columns of ops that are left out where all ops have this: they take time to load.
DEFAULTS = {
    "dtype": "",
    "groups": 1,
    "group_channels": 0,
    "computed_part": 1.0,
    "micro_batch": ONCE,
}


class _Times(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    seconds: Numbers


class _TokenCache(msgspec.Struct, forbid_unknown_fields=True):
    context: int
    sequences: int
    bits: int
    on_cpu: bool


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    op_names: list[str]
    op_types: Texts
    scopes: Texts
    phases: Integers
    flops: Numbers
    bytes_accessed: Numbers
    parameter_bytes: Integers
    workspace_bytes: Integers
    colocation: Integers
    tensor_producer: Integers
    tensor_bytes: Integers
    edge_tensors: Integers
    edge_consumers: Integers
    measured_time: list[_Times]
    dtype: Texts | None = None
    groups: Integers | None = None
    group_channels: Integers | None = None
    computed_part: Numbers | None = None
    micro_batch: Integers | None = None
    waits: Pairs | None = None
    held_tensors: Integers | None = None
    tokens: int | None = None
    cache: _TokenCache | None = None


class _Device(DeviceFields, forbid_unknown_fields=True, kw_only=True):
    memory_bytes: int  # all are in the file: no other catalogue changes a problem
    op_overhead: float
    transfer_overhead: float


class _Cluster(msgspec.Struct, forbid_unknown_fields=True):
    devices: list[_Device]
    bandwidth: list[list[float | None]]
    latency: list[list[float]]
    collective_fraction: list[list[float]] | None = None
    link: list[list[int]] | None = None
    link_names: list[str] | None = None
    machine: list[int] | None = None
    machine_names: list[str] | None = None
    queue: str | None = None
    kinds: dict[str, Any] | None = None


class _Grouping(msgspec.Struct, forbid_unknown_fields=True):
    """A grouping of ops; as a level but the finest, one of the groups of the next finer level."""

    group_of: Integers
    group_names: list[str]


class _GraphFile(Header, forbid_unknown_fields=True):
    graph: _Graph


class _ProblemFile(Header, forbid_unknown_fields=True):
    graph: _Graph
    cluster: _Cluster
    # Devices of one kind share a column: compute_time[device_column[d]] is that of device d.
    compute_time: list[NumbersOrNull]
    device_column: list[int]
    grouping: _Grouping
    rules: tuple[str, ...] | None = None
    levels: list[_Grouping] | None = None  # from coarse to fine


def save_problem(problem: PlacementProblem, path: str | os.PathLike[str]) -> None:
    """Write a problem to a file, at once or not at all.

    Parameters
    ----------
    problem
        Problem to write, with its grouping and hierarchy.
    path
        Name of the file, which ends in ``.json``, or in ``.json.gz`` to be packed. An existing file
        is replaced.

    Raises
    ------
    GraphError
        When the name has another ending.
    OSError
        When the file cannot be written.
    """
    cluster, hierarchy = problem.cluster, problem.hierarchy
    index_of_column: dict[bytes, int] = {}
    device_column = [
        index_of_column.setdefault(column.tobytes(), len(index_of_column))
        for column in problem.compute_time.T
    ]
    _, first_devices = np.unique(device_column, return_index=True)
    in_cluster = {name: getattr(cluster, name) for name in _Cluster.__struct_fields__}
    in_cluster["kinds"] = encoded_kinds(cluster.kinds)
    levels = None
    if hierarchy is not None:
        finer_levels = [*hierarchy[1:], None]
        levels = [
            _encoded_grouping(level, finer)
            for level, finer in zip(hierarchy, finer_levels, strict=True)
        ]
    document = {
        "format": PROBLEM_FORMAT,
        "version": PROBLEM_VERSION,
        "graph": _encoded_graph(problem.graph),
        "cluster": _without_none(in_cluster),
        "compute_time": problem.compute_time[:, first_devices].T,
        "device_column": device_column,
        "grouping": _encoded_grouping(problem.grouping),
        "rules": problem.rules,
        "levels": levels,
    }
    _write(path, _without_none(document))


def load_problem(path: str | os.PathLike[str]) -> PlacementProblem:
    """Read a problem from a file that `save_problem` wrote.

    Parameters
    ----------
    path
        Name of the file, which ends in ``.json`` or ``.json.gz``.

    Raises
    ------
    GraphError
        When the file is not a problem file of the present version.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> problem = example_problem()
    >>> save_problem(problem, "problem.json.gz")
    >>> load_problem("problem.json.gz") == problem
    True
    """
    _check_suffix(path)
    with opened_document(path, _ProblemFile, PROBLEM_FORMAT, PROBLEM_VERSION) as document:
        return _decoded_problem(document)


def save_graph(graph: OpGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph of ops to a file, at once or not at all.

    Parameters
    ----------
    graph
        Graph to write.
    path
        Name of the file, as `save_problem` takes it.

    Raises
    ------
    GraphError
        When the name does not end in ``.json`` or ``.json.gz``.
    OSError
        When the file cannot be written.
    """
    graph_file = {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, "graph": _encoded_graph(graph)}
    _write(path, graph_file)


def load_graph(path: str | os.PathLike[str]) -> OpGraph:
    """Read a graph of ops from a file that `save_graph` wrote.

    Parameters
    ----------
    path
        Name of the file, which ends in ``.json`` or ``.json.gz``.

    Raises
    ------
    GraphError
        When the file is not a graph file of the present version.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> graph = from_networkx(nx.DiGraph([("a", "b")]))
    >>> save_graph(graph, "graph.json.gz")
    >>> load_graph("graph.json.gz") == graph
    True
    """
    _check_suffix(path)
    with (
        opened_document(path, _GraphFile, GRAPH_FORMAT, GRAPH_VERSION) as document,
        within("graph."),
    ):
        return _decoded_graph(document.graph)


def _write(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    _check_suffix(path)
    write_atomically(path, msgspec.json.encode(document, enc_hook=np.ndarray.tolist) + b"\n")


def _check_suffix(path: str | os.PathLike[str]) -> None:
    if not os.fspath(path).endswith((".json", ".json.gz")):
        raise GraphError(f"{os.fspath(path)}: expected a name that ends in .json or .json.gz")


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _encoded_graph(graph: OpGraph) -> dict[str, Any]:
    special = {
        "edge_tensors": graph.edges[:, 0],
        "edge_consumers": graph.edges[:, 1],
        "measured_time": [
            {"kind": kind, "seconds": seconds} for kind, seconds in graph.measured_time.items()
        ],
    }
    columns = {name: getattr(graph, name, None) for name in _Graph.__struct_fields__} | special
    for name, default in DEFAULTS.items():
        if np.all(np.asarray(columns[name]) == default):
            del columns[name]
    return _without_none(columns)


def _encoded_grouping(grouping: Grouping, finer: Grouping | None = None) -> dict[str, Any]:
    group_of = grouping.group_of if finer is None else grouping.group_of[finer.first_ops]
    return {"group_of": group_of, "group_names": grouping.group_names}


def _decoded_problem(document: _ProblemFile) -> PlacementProblem:
    with within("graph."):
        graph = _decoded_graph(document.graph)
    with within("cluster."):
        cluster = _decoded_cluster(document.cluster)
    with within("grouping."):
        grouping = Grouping(**asdict(document.grouping))
    compute_time = _null_is_infinity("compute_time", document.compute_time)
    for device, column in enumerate(document.device_column):
        if not 0 <= column < len(compute_time):
            raise GraphError(
                f"device_column[{device}]: expected one of {len(compute_time)} columns of "
                f"compute_time, got {column}"
            )
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=compute_time[document.device_column].T,
        grouping=grouping,
        rules=document.rules,
        hierarchy=None if document.levels is None else _decoded_levels(document.levels),
    )


def _decoded_graph(graph: _Graph) -> OpGraph:
    if len(graph.edge_tensors) != len(graph.edge_consumers):
        raise GraphError(
            f"edge_consumers: expected {len(graph.edge_tensors)} ops, as many as edge_tensors, "
            f"got {len(graph.edge_consumers)}"
        )
    kinds = [times.kind for times in graph.measured_time]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            raise GraphError(f"measured_time[{index}].kind: {short_repr(kind)} is there twice")
    fields = asdict(graph)
    fields["edges"] = np.stack([fields.pop("edge_tensors"), fields.pop("edge_consumers")], axis=1)
    fields["measured_time"] = {times.kind: np.array(times.seconds) for times in graph.measured_time}
    if graph.cache is not None:
        with within("cache."):
            fields["cache"] = TokenCache(**asdict(graph.cache))
    return OpGraph(**fields)


def _decoded_cluster(cluster: _Cluster) -> Cluster:
    fields = _without_none(asdict(cluster))
    fields["kinds"] = decoded_kinds(cluster.kinds)
    fields["devices"] = decoded_devices(cluster.devices, fields["kinds"])
    for field in ("bandwidth", "latency"):
        fields[field] = _null_is_infinity(field, fields[field])
    return Cluster(**fields)


def _decoded_levels(levels: Sequence[_Grouping]) -> tuple[Grouping, ...]:
    decoded: list[Grouping] = []  # from fine to coarse
    for index, level in reversed(list(enumerate(levels))):
        with within(f"levels[{index}]."):
            grouping = Grouping(**asdict(level))
            if decoded:
                finer = decoded[-1]
                if grouping.num_ops != finer.num_groups:
                    raise GraphError(
                        f"group_of: expected the groups of {finer.num_groups} groups of "
                        f"levels[{index + 1}], got {grouping.num_ops}"
                    )
                grouping = replace(grouping, group_of=grouping.group_of[finer.group_of])
        decoded.append(grouping)
    return tuple(reversed(decoded))


def _null_is_infinity(field: str, rows: Sequence[Any]) -> NDArray[np.float64]:
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise GraphError(f"{field}: expected rows of one length, got {lengths}")
    array = np.asarray(rows, dtype=np.float64)
    return np.where(np.isnan(array), np.inf, array)
