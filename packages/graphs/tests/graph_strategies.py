"""Hypothesis strategies for every type of the schema."""

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import (
    Cluster,
    Device,
    DeviceKind,
    Efficiency,
    Grouping,
    OpGraph,
    PlacementProblem,
    TokenCache,
    colocate,
    colocate_by_id,
)
from placeto_graphs.schema.cluster import BACKENDS, PRECISIONS

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
seconds = st.floats(0, 1e6)
byte_counts = st.one_of(st.integers(0, 3), st.integers(0, 2**40), st.just(2**53 + 1))
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "op_types": names,
    "scopes": st.sampled_from(["", "a", "a.b", "lstm.1", "lstm.2"]),
    "phases": st.integers(0, 2),
    "flops": st.floats(0, 1e18),
    "bytes_accessed": st.floats(0, 1e12),
    "parameter_bytes": byte_counts,
    "workspace_bytes": byte_counts,
    "colocation": st.integers(-1, 3),
    "dtype": st.sampled_from(["", "float32", "bfloat16"]),
    "groups": st.integers(1, 4),
    "group_channels": st.integers(0, 4),
    "computed_part": st.floats(0, 1),
    "micro_batch": st.integers(-1, 4),
}

token_caches = st.builds(
    TokenCache,
    context=st.integers(1, 8),
    sequences=st.integers(1, 3),
    bits=st.sampled_from([4, 8, 16]),
    on_cpu=st.booleans(),
)


def arrays(elements: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=count, max_size=count)


@st.composite
def op_graphs(draw: st.DrawFn, max_ops: int = 12, *, shuffled: bool = True) -> OpGraph:
    """Draw graphs with waits, unread tensors, several outputs, and any op order."""
    count = draw(st.integers(1, max_ops))
    order = draw(st.permutations(range(count))) if shuffled else list(range(count))
    tensor_producer = draw(st.lists(st.integers(0, count - 1), max_size=2 * count))
    rank = {op: position for position, op in enumerate(order)}
    possible = [
        (tensor, consumer)
        for tensor, producer in enumerate(tensor_producer)
        for consumer in range(count)
        if rank[producer] < rank[consumer]
    ]
    edges = draw(st.lists(st.sampled_from(possible), unique=True, max_size=20)) if possible else []
    later = [(op, awaited) for op in range(count) for awaited in order[: rank[op]]]
    waits = draw(st.lists(st.sampled_from(later), unique=True, max_size=6)) if later else []
    tensors = range(len(tensor_producer))
    held_tensors = (
        draw(st.lists(st.sampled_from(tensors), unique=True, max_size=4)) if tensors else []
    )
    kinds = draw(st.lists(st.sampled_from(["k80", "v100", "cpu"]), unique=True, max_size=2))
    columns: dict[str, Any] = {
        name: draw(arrays(strategy, count)) for name, strategy in COLUMNS.items()
    }
    return OpGraph(
        op_names=tuple(draw(st.lists(names, min_size=count, max_size=count, unique=True))),
        tensor_producer=np.array(tensor_producer, np.int32),
        tensor_bytes=np.array(draw(arrays(byte_counts, len(tensor_producer))), np.int64),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        measured_time={kind: np.array(draw(arrays(seconds, count))) for kind in kinds},
        waits=np.array(waits, np.int32).reshape(-1, 2),
        held_tensors=np.array(held_tensors, np.int32),
        tokens=draw(st.integers(0, 3)),
        cache=draw(st.none() | token_caches),
        **columns,
    )


@st.composite
def link_maps(draw: st.DrawFn, num_devices: int) -> NDArray[np.int32]:
    """Draw which link carries each pair: often one bus for each device, else any."""
    buses = np.repeat(np.arange(num_devices)[:, None], num_devices, axis=1)
    pair_labels = arrays(arrays(st.integers(0, num_devices), num_devices), num_devices)
    labels = np.array(draw(st.one_of(st.just(buses.tolist()), pair_labels)))
    apart = ~np.eye(num_devices, dtype=bool)
    link = np.full(labels.shape, -1, np.int32)
    link[apart] = np.unique(labels[apart], return_inverse=True)[1]
    return link


@st.composite
def clusters(draw: st.DrawFn, max_devices: int = 4) -> Cluster:
    count = draw(st.integers(1, max_devices))
    device_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    link = draw(link_maps(count))
    num_links = int(link.max()) + 1
    unique = st.lists(names, min_size=num_links, max_size=num_links, unique=True)
    pairs = arrays(arrays(st.one_of(st.floats(1e-3, 1e12), st.just(np.inf)), count), count)
    drawn = draw(arrays(st.integers(0, count - 1), count))
    machine = np.unique(drawn, return_inverse=True)[1]  # each number is there
    machines = len(set(drawn))
    unused_names = names.filter(lambda name: name not in device_names)
    machine_names = st.lists(unused_names, min_size=machines, max_size=machines, unique=True)
    fractions = arrays(arrays(st.floats(1e-3, 2), count), count)
    sizes = st.integers(1, 2**62)
    devices = [
        Device(name, draw(names), draw(sizes), draw(seconds), draw(seconds))
        for name in device_names
    ]
    return Cluster(
        devices=tuple(devices),
        bandwidth=np.array(draw(pairs)),
        latency=np.array(draw(arrays(arrays(seconds, count), count))),
        collective_fraction=draw(st.one_of(st.none(), fractions.map(np.array))),
        link=link,
        link_names=draw(st.one_of(st.none(), unique)),
        machine=machine.astype(np.int32),
        machine_names=draw(st.one_of(st.none(), machine_names)),
        queue=draw(st.sampled_from(["fifo", "backward-first"])),
        kinds=tuple(draw(st.lists(device_kinds(), max_size=2, unique_by=lambda kind: kind.name))),
    )


@st.composite
def device_kinds(draw: st.DrawFn) -> DeviceKind:
    positive = st.floats(1e-3, 1e18)
    fraction = st.floats(0, 1, exclude_min=True)
    return DeviceKind(
        name=draw(names),
        memory_bytes=draw(st.integers(1, 2**62)),
        memory_bandwidth=draw(positive),
        peak_flops=draw(positive),
        peak_flops_in=draw(st.dictionaries(st.sampled_from(PRECISIONS), positive, max_size=3)),
        launch_overhead=draw(seconds),
        op_overhead=draw(seconds),
        transfer_overhead=draw(seconds),
        efficiency=Efficiency(**{op_class.name: draw(fraction) for op_class in fields(Efficiency)}),
        backend=draw(st.sampled_from(["", *BACKENDS])),
    )


@st.composite
def groupings(draw: st.DrawFn, graph: OpGraph) -> Grouping:
    """Draw groupings, numbered at random, that keep the colocation ids of a graph."""
    together = colocate(graph, [colocate_by_id])
    merged = draw(arrays(st.integers(0, together.num_groups - 1), together.num_groups))
    labels = np.array(merged)[together.group_of]
    group_labels = draw(st.permutations(np.unique(labels).tolist()))
    return Grouping(
        group_of=np.array([group_labels.index(label) for label in labels], np.int32),
        group_names=tuple(
            draw(
                st.lists(names, min_size=len(group_labels), max_size=len(group_labels), unique=True)
            )
        ),
    )


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 12) -> PlacementProblem:
    """Draw problems in which some ops cannot run on some devices, but all on the first one."""
    graph = draw(op_graphs(max_ops))
    cluster = draw(clusters())
    cell = st.one_of(seconds, st.just(np.inf))
    columns = [draw(arrays(seconds, graph.num_ops))]
    columns += [draw(arrays(cell, graph.num_ops)) for _ in cluster.devices[1:]]
    compute_time: NDArray[np.float64] = np.array(columns).T
    return PlacementProblem(
        graph=graph, cluster=cluster, compute_time=compute_time, grouping=draw(groupings(graph))
    )
