"""Cluster files: TOML that a person can write."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import tomli_w
from numpy.typing import NDArray

from placeto_graphs.clusters.devices import (
    CARD_WAYS,
    SLOTS,
    WAYS,
    DeviceFields,
    Ways,
    decoded_devices,
    decoded_kinds,
    encoded_kinds,
)
from placeto_graphs.clusters.spec import joined
from placeto_graphs.errors import GraphError, check_one_of, short_repr, within
from placeto_graphs.files.storage import checked, opened_toml, write_atomically
from placeto_graphs.schema.arrays import above_0, number
from placeto_graphs.schema.cluster import (
    DEFAULT_QUEUE,
    FREE,
    NO_LINK,
    Cluster,
    default_machine_names,
    is_cpu,
)

CLUSTER_FORMAT = "placeto-cluster"
VERSION = 3


class _Link(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """All ordered pairs of devices from a source to another destination.

    Entries of one name are one link, or one ``for_each`` pair or source.
    """

    name: str
    sources: list[str]
    destinations: list[str]
    for_each: Literal["pair", "source"] | None = None
    bandwidth: float | None = None
    latency: float | None = None
    collective_fraction: float = 1.0


class _Device(DeviceFields, forbid_unknown_fields=True, omit_defaults=True):
    host_link: str | None = None


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Devices, and what joins them; a machine is a name for several devices."""

    format: str
    version: int
    devices: Annotated[list[_Device], msgspec.Meta(min_length=1)]
    bandwidth: float | None = None
    latency: float = 0.0
    collective_fraction: float = 1.0
    link: str | None = None
    machines: dict[str, list[str]] = {}
    links: list[_Link] = []
    queue: str = DEFAULT_QUEUE
    kinds: dict[str, Any] | None = None


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write a cluster to a TOML file, at once or not at all; see `load_cluster`.

    Parameters
    ----------
    cluster
        Cluster to write.
    path
        Name of the file; an existing file is replaced.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    document = _ClusterFile(
        format=CLUSTER_FORMAT,
        version=VERSION,
        devices=[_Device(**asdict(device)) for device in cluster.devices],
        queue=cluster.queue,
        kinds=encoded_kinds(cluster.kinds),
    )
    between = cluster.link != NO_LINK
    costs = np.unique(_costs(cluster)[:, between], axis=1)
    if costs.shape[1] == 1:
        document.bandwidth, document.latency, document.collective_fraction = costs[:, 0].tolist()
    if costs.shape[1] != 1 or _cluster(document) != cluster:  # not one equal bus for each device
        document.bandwidth, document.latency, document.collective_fraction = None, 0.0, 1.0
        document.links = _encoded_links(cluster)
        if cluster.machine_names != default_machine_names(1):
            for machine, name in enumerate(cluster.machine_names):
                inside = np.flatnonzero(cluster.machine == machine)
                document.machines[name] = [cluster.device_names[device] for device in inside]
    write_atomically(path, tomli_w.dumps(msgspec.to_builtins(document)).encode())


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file, which lists devices, and may describe kinds and links.

    Without links, each device has one outgoing bus with the ``bandwidth`` and ``latency`` of the
    file. Without a bandwidth either, the interconnect is that of `parse_cluster`. The page on
    clusters describes all that a file may have.

    Parameters
    ----------
    path
        Name of the TOML file.

    Raises
    ------
    GraphError
        When the file does not describe a cluster.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> save_cluster(parse_cluster("2xk80"), "cluster.toml")
    >>> load_cluster("cluster.toml")
    Cluster(k80:0, k80:1)
    """
    with opened_toml(path) as data:
        return _cluster(checked(data, _ClusterFile, CLUSTER_FORMAT, VERSION))


def _cluster(document: _ClusterFile) -> Cluster:
    kinds = decoded_kinds(document.kinds)
    devices = decoded_devices(document.devices, kinds)
    common: dict[str, Any] = {"devices": devices, "kinds": kinds, "queue": document.queue}
    names = [device.name for device in document.devices]
    members = _members(names, document.machines)
    machines, machine_names = _machines(document, members)
    has_links = document.links or (document.machines and document.bandwidth is not None)
    if not has_links and document.bandwidth is None:
        _check_joined(document, machines)
        ways = [_ways(index, device, document) for index, device in enumerate(document.devices)]
        return joined(
            **common,
            machines=machines,
            machine_names=machine_names,
            ways=ways,
            link=document.link,
        )
    link_fields = {"link": document.link}
    for index, device in enumerate(document.devices):
        link_fields[f"devices[{index}].host_link"] = device.host_link
    for field, name in link_fields.items():
        if name is not None:
            conflict = "links" if has_links else "bandwidth"
            raise GraphError(f"{field}: expected no {conflict} beside it, got {short_repr(name)}")
    if has_links:
        links = _links(document, names, members)
        machine = np.array(machines)
        return Cluster(**common, **links, machine=machine, machine_names=machine_names)
    shape = (len(names), len(names))
    return Cluster(
        **common,
        bandwidth=np.full(shape, document.bandwidth),
        latency=np.full(shape, document.latency),
        collective_fraction=np.full(shape, document.collective_fraction),
    )


def _check_joined(document: _ClusterFile, machines: Sequence[int]) -> None:
    """Refuse what does not go with devices that are joined as `parse_cluster` says."""
    if document.latency:
        raise GraphError("latency: expected a bandwidth, or links, beside it, got none")
    if document.machines and len(document.machines) in machines:
        apart = document.devices[machines.index(len(document.machines))].name
        raise GraphError(f"machines: expected each device in one, got {short_repr(apart)} in none")


def _machines(
    document: _ClusterFile, members: Mapping[str, Sequence[int]]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the number of the machine of each device, and their names.

    A device in none is one of its own. Without any machines, one holds all devices.
    """
    if not document.machines:
        return [0] * len(document.devices), default_machine_names(1)
    names, machines = list(document.machines), [-1] * len(document.devices)
    for machine, name in enumerate(names):
        for index in members[name]:
            machines[index] = machine
    for index, device in enumerate(document.devices):
        if machines[index] < 0:
            machines[index] = len(names)
            names.append(f"machine of {device.name}")
    return machines, tuple(names)


def _ways(index: int, device: _Device, document: _ClusterFile) -> Ways:
    """Return the ways of a device, in its slot; of an unknown kind those of a card or the host."""
    kind = (document.kinds or {}).get(device.kind, {}).get("like", device.kind)
    ways = WAYS.get(kind, WAYS["cpu"] if is_cpu(device.kind) else CARD_WAYS)
    if device.host_link is None:
        return ways
    check_one_of(f"devices[{index}].host_link", device.host_link, SLOTS)
    if kind not in WAYS:  # the slot is all that is known of it
        ways = replace(ways, host_bandwidth=math.inf, card_bandwidth=math.inf)
    return ways.in_slot(device.host_link)


def _links(
    document: _ClusterFile, names: Sequence[str], members: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return the links of all pairs of devices, as a `Cluster` has them."""
    if document.bandwidth is not None:
        above_0("bandwidth", document.bandwidth, infinity_is=FREE)
    number("latency", document.latency)
    shape = (len(names), len(names))
    link, entry_of = np.full(shape, NO_LINK, np.int32), np.full(shape, NO_LINK)
    bandwidth, latency, fraction = np.full(shape, np.inf), np.zeros(shape), np.ones(shape)
    link_of_name: dict[str, int] = {}
    made_by: dict[str, tuple[str, str | None]] = {}  # what in an entry makes each name of a link
    for index, entry in enumerate(document.links):
        with within(f"links[{index}]"):
            pairs = _pairs(entry, members)
            at = tuple(pairs.T)
            earlier = entry_of[at].max()
            if earlier != NO_LINK:
                pair = _pair_text(pairs[np.argmax(entry_of[at])], names)
                raise GraphError(
                    f": expected each pair of devices on one link, got {pair}, which is on "
                    f"links[{earlier}]"
                )
            entry_of[at] = index
            pair_bandwidth = document.bandwidth if entry.bandwidth is None else entry.bandwidth
            if pair_bandwidth is None:
                raise GraphError(".bandwidth: expected one, here or of the whole file, got none")
            bandwidth[at] = above_0(".bandwidth", pair_bandwidth, infinity_is=FREE)
            pair_latency = document.latency if entry.latency is None else entry.latency
            latency[at] = number(".latency", pair_latency)
            fraction[at] = above_0(".collective_fraction", entry.collective_fraction)
            for source, destination in pairs.tolist():
                name = _link_name(entry, names[source], names[destination])
                makes = (entry.name, entry.for_each)
                if made_by.setdefault(name, makes) != makes:
                    raise GraphError(
                        ".name: expected a name that tells the links for each pair or source from "
                        f"others, got {short_repr(entry.name)}, which makes a second "
                        f"{short_repr(name)}"
                    )
                link[source, destination] = link_of_name.setdefault(name, len(link_of_name))
    missing = np.argwhere((link == NO_LINK) & ~np.eye(len(names), dtype=np.bool_))
    if len(missing):
        raise GraphError(
            "links: expected a link for each pair of devices, got none for "
            f"{_pair_text(missing[0], names)}"
        )
    return {
        "bandwidth": bandwidth,
        "latency": latency,
        "collective_fraction": fraction,
        "link": link,
        "link_names": tuple(link_of_name),
    }


def _members(names: Sequence[str], machines: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the numbers of the devices that each name, of a device or a machine, stands for."""
    members = {name: [index] for index, name in enumerate(names)}
    machine_of: dict[str, str] = {}
    for machine, inside in machines.items():
        apart = members.keys() - {*inside}  # each of which may have a machine of its own
        if machine in members or machine.removeprefix("machine of ") in apart:
            raise GraphError(
                f"machines: expected names that no device has, got {short_repr(machine)}"
            )
        if not inside:
            raise GraphError(f"machines.{machine}: expected a device, got none")
        members[machine] = []
        for index, name in enumerate(inside):
            place = f"machines.{machine}[{index}]"
            check_one_of(place, name, names)
            if name in machine_of:
                raise GraphError(
                    f"{place}: expected each device in one machine, got {short_repr(name)}, which "
                    f"is in {short_repr(machine_of[name])}"
                )
            machine_of[name] = machine
            members[machine] += members[name]
    return members


def _pairs(entry: _Link, members: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
    """Return int64[N, 2], the pairs of an entry; a device sends nothing to itself."""
    ends = []
    for field, names in (("sources", entry.sources), ("destinations", entry.destinations)):
        for index, name in enumerate(names):
            check_one_of(f".{field}[{index}]", name, members)
        ends.append(dict.fromkeys(device for name in names for device in members[name]))
    sources, destinations = ends
    pairs = [
        (source, destination)
        for source in sources
        for destination in destinations
        if source != destination
    ]
    if not pairs:
        raise GraphError(": expected a pair of different devices, got none")
    return np.array(pairs)


def _link_name(entry: _Link, source: str, destination: str) -> str:
    if entry.for_each == "pair":
        return f"{source} -> {destination} {entry.name}"
    return f"{source} {entry.name}" if entry.for_each == "source" else entry.name


def _pair_text(pair: Sequence[int], names: Sequence[str]) -> str:
    return " -> ".join(short_repr(names[device]) for device in pair)


def _costs(cluster: Cluster) -> NDArray[np.float64]:
    """Return float64[3, D, D]: bandwidth, latency, and fraction of the bandwidth of collectives."""
    fraction = cluster.collective_fraction
    ones = np.ones_like(cluster.bandwidth)
    return np.stack([cluster.bandwidth, cluster.latency, ones if fraction is None else fraction])


def _encoded_links(cluster: Cluster) -> list[_Link]:
    """Return entries for the links in their order, as few as pairs of equal cost allow."""
    names = cluster.device_names
    costs = _costs(cluster)
    reached_at: dict[tuple[float, ...], dict[int, set[int]]] = {}
    for source, destination in np.argwhere(cluster.link != NO_LINK).tolist():
        key = (int(cluster.link[source, destination]), *costs[:, source, destination].tolist())
        reached_at.setdefault(key, {}).setdefault(source, set()).add(destination)
    entries = []
    for (link, *cost), reached in sorted(reached_at.items(), key=lambda item: item[0]):
        bandwidth, latency, fraction = cost
        anywhere = set[int]().union(*reached.values())
        sources_of: dict[tuple[int, ...], list[int]] = {}
        for source, ends in reached.items():
            # It may stand among its own destinations: a device sends nothing to itself.
            sources_of.setdefault(tuple(sorted(ends | ({source} & anywhere))), []).append(source)
        for destinations, sources in sources_of.items():
            entry = _Link(
                name=cluster.link_names[int(link)],
                sources=[names[device] for device in sources],
                destinations=[names[device] for device in destinations],
                bandwidth=bandwidth,
                latency=latency,
                collective_fraction=fraction,
            )
            entries.append(entry)
    return entries
