"""Cluster files: TOML that a person can write."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import tomli_w
from numpy.typing import NDArray

from placeto_graphs.clusters.catalogue import CARD_WAYS, DEVICE_KINDS, SLOTS, WAYS, Ways
from placeto_graphs.clusters.spec import joined
from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.files.decoding import (
    DeviceFields,
    Header,
    check_header,
    convert,
    decoded_devices,
    decoded_kinds,
    encoded_kinds,
    given_memory,
    not_utf8,
)
from placeto_graphs.files.storage import read_bytes, write_atomically
from placeto_graphs.schema.arrays import number
from placeto_graphs.schema.cluster import DEFAULT_QUEUE, NO_LINK, Cluster, Device, is_cpu
from placeto_graphs.schema.device_kind import DeviceKind

CLUSTER_FORMAT = "placeto-cluster"
VERSION = 3

Known = TypeVar("Known")


class _Link(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The ordered pairs of devices that a link carries; entries of one name are one link."""

    name: str
    sources: list[str]
    destinations: list[str]
    for_each: Literal["pair", "source"] | None = None
    bandwidth: float | None = None
    latency: float | None = None


class _Device(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a `Device`; what is not there is that of its kind."""

    name: str
    kind: str
    memory_bytes: int | None = None
    op_overhead: float | None = None
    transfer_overhead: float | None = None
    memory: Any = None
    host_link: str | None = None


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    devices: list[_Device]
    bandwidth: float | None = None
    latency: float = 0.0
    link: str | None = None
    machines: dict[str, list[str]] = {}
    links: list[_Link] = []
    queue: str = DEFAULT_QUEUE
    kinds: dict[str, Any] | None = None


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write a cluster to a TOML file, at once or not at all; see `load_cluster`.

    Raises
    ------
    OSError
        When the file cannot be written; then an existing one is as it was.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> save_cluster(parse_cluster("1xcpu+4xk80"), "cluster.toml")
    """
    document = _ClusterFile(
        format=CLUSTER_FORMAT,
        version=VERSION,
        devices=[_Device(**asdict(device)) for device in cluster.devices],
        queue=cluster.queue,
        kinds=encoded_kinds(cluster.kinds) or None,
    )
    between = cluster.link != NO_LINK
    costs = np.unique(np.stack([cluster.bandwidth[between], cluster.latency[between]]), axis=1)
    if costs.shape[1] == 1:
        document.bandwidth, document.latency = costs[:, 0].tolist()
    if costs.shape[1] != 1 or _cluster(document) != cluster:  # not one equal bus for each device
        document.bandwidth, document.latency = None, 0.0
        document.links = _encoded_links(cluster)
    write_atomically(path, tomli_w.dumps(msgspec.to_builtins(document)).encode())


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file.

    The file lists the devices and the links. A link carries all ordered pairs of devices from one
    of its sources to another one of its destinations. A machine is a name for several devices.
    Entries of one name are one link; ``for_each`` makes a separate link for each ``"pair"``, or for
    each ``"source"``. A link may leave out its bandwidth and latency if the file has them for all
    links::

        format = "placeto-cluster"
        version = 3

        [[devices]]
        name = "v100:0"
        kind = "v100"
        memory_bytes = 32_000_000_000   # what a device leaves out is that of its kind
        op_overhead = 3.76e-6           # seconds
        transfer_overhead = 0.0

        # ... v100:1 to v100:3

        [machines]
        first = ["v100:0", "v100:1"]
        second = ["v100:2", "v100:3"]

        [[links]]
        name = "NVLink"
        sources = ["first"]
        destinations = ["first"]
        for_each = "pair"
        bandwidth = 150e9          # bytes per second
        latency = 2.65e-6

        # ... the same for the second machine

        [[links]]
        name = "network card of the first"
        sources = ["first"]
        destinations = ["second"]
        bandwidth = 1.25e9
        latency = 10e-6

        # ... and back

    ``queue = "backward-first"`` is the order in which devices run the ops that wait, see `Cluster`.
    ``[kinds.NAME]`` describes a kind of device, see `DeviceKind`: ``memory_bytes``,
    ``memory_bandwidth`` and ``peak_flops``. It also takes ``peak_flops_in``, overheads and
    ``efficiency``, which by default are those of an H100. A kind of the catalogue, or one that is
    ``like`` another kind, takes every missing field from there; ``speed`` scales it. A device and a
    kind may have ``memory = "21 GB"`` instead of bytes.

    Without links, each device has one outgoing bus with the bandwidth and latency of the file.
    Without a bandwidth either, the interconnect is that of `parse_cluster`. The file may then have
    ``link``, and a device ``host_link``, the slot that it is in::

        [[devices]]
        name = "3060"
        kind = "rtx3060"
        memory = "11.5 GB"         # that is free
        host_link = "pcie-3-x4"

    Parameters
    ----------
    path
        File to read.

    Raises
    ------
    GraphError
        When the file is not a cluster file that this release can read.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> save_cluster(parse_cluster("2xk80"), "cluster.toml")
    >>> load_cluster("cluster.toml")
    Cluster(k80:0, k80:1)
    """
    content = read_bytes(path)
    with within(f"{os.fspath(path)}: "):
        data = _decoded(content)
        check_header(convert(data, Header), CLUSTER_FORMAT, VERSION)
        return _cluster(convert(data, _ClusterFile))


def _decoded(content: bytearray) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except ValueError as error:  # more than what TOML defines: Python limits the digits of a number
        raise GraphError(f"expected TOML: {error}") from None
    except RecursionError:
        raise GraphError("expected fewer levels of brackets") from None


def _cluster(document: _ClusterFile) -> Cluster:
    kinds = decoded_kinds(document.kinds or {})
    devices = _devices(document, kinds)
    if document.links or (document.machines and document.bandwidth is not None):
        _refuse_beside("links", document)
        return _linked_cluster(document, devices, kinds)
    if document.bandwidth is None:
        return _joined(document, devices, kinds)
    _refuse_beside("bandwidth", document)
    shape = (len(devices), len(devices))
    return Cluster(
        devices=devices,
        bandwidth=np.full(shape, document.bandwidth),
        latency=np.full(shape, document.latency),
        queue=document.queue,
        kinds=kinds,
    )


def _refuse_beside(given: str, document: _ClusterFile) -> None:
    """Refuse names of links where the file has numbers."""
    if document.link is not None:
        raise GraphError(f"link: expected no {given} beside it, got {shown(document.link)}")
    for index, device in enumerate(document.devices):
        if device.host_link is not None:
            raise GraphError(
                f"devices[{index}].host_link: expected no {given} beside it, "
                f"got {shown(device.host_link)}"
            )


def _joined(
    document: _ClusterFile, devices: tuple[Device, ...], kinds: tuple[DeviceKind, ...]
) -> Cluster:
    """Return devices that are joined as `parse_cluster` joins them."""
    if document.latency:
        raise GraphError("latency: expected a bandwidth, or links, beside it, got none")
    names = [device.name for device in devices]
    members = _members(names, document.machines)
    machine_of = {
        device: number
        for number, machine in enumerate(document.machines)
        for device in members[machine]
    }
    apart = [name for index, name in enumerate(names) if index not in machine_of]
    if document.machines and apart:
        raise GraphError(f"machines: expected each device in one, got {shown(apart[0])} in none")
    return joined(
        devices,
        [machine_of.get(index, 0) for index in range(len(devices))],
        [
            _ways(index, device, (document.kinds or {}).get(device.kind, {}))
            for index, device in enumerate(document.devices)
        ],
        link=document.link,
        queue=document.queue,
        kinds=kinds,
    )


def _ways(index: int, device: _Device, description: Mapping[str, Any]) -> Ways:
    """Return the ways of a device, in its slot; of an unknown kind those of a card or the host."""
    usual = WAYS["cpu"] if is_cpu(device.kind) else CARD_WAYS
    kind = description.get("like", device.kind)
    ways = WAYS.get(kind, usual)
    if device.host_link is None:
        return ways
    slot = SLOTS[_named(f"devices[{index}].host_link", device.host_link, {n: n for n in SLOTS})]
    return replace(ways, host_bandwidth=min(ways.host_bandwidth, slot) if kind in WAYS else slot)


def _devices(document: _ClusterFile, kinds: Sequence[DeviceKind]) -> tuple[Device, ...]:
    known = DEVICE_KINDS | {kind.name: kind for kind in kinds}
    complete = []
    for index, device in enumerate(document.devices):
        with within(f"devices[{index}]."):
            device.memory_bytes = given_memory(device.memory, device.memory_bytes)
        fields = {field: getattr(device, field) for field in DeviceFields.__struct_fields__}
        for field, value in fields.items():
            if value is None and device.kind in known:
                fields[field] = getattr(known[device.kind], field)
            elif value is None:
                raise GraphError(
                    f"devices[{index}].{field}: expected a number, or "
                    f"[kinds.{device.kind}] with that of the kind, got none"
                )
        complete.append(DeviceFields(**fields))
    return decoded_devices(complete)


def _linked_cluster(
    document: _ClusterFile, devices: tuple[Device, ...], kinds: tuple[DeviceKind, ...]
) -> Cluster:
    if document.bandwidth is not None:
        _more_than_0("bandwidth", document.bandwidth)
    number("latency", document.latency)
    names = [device.name for device in devices]
    members = _members(names, document.machines)
    shape = (len(names), len(names))
    link = np.full(shape, NO_LINK, np.int32)
    entry_of = np.full(shape, NO_LINK, np.int32)
    bandwidth, latency = np.full(shape, np.inf), np.zeros(shape)
    numbers: dict[str, int] = {}
    made_by: dict[str, tuple[str, str | None]] = {}  # what in an entry makes each name of a link
    for index, entry in enumerate(document.links):
        with within(f"links[{index}]"):
            pairs = _pairs(entry, members)
            at = tuple(pairs.T)
            other = entry_of[at].max()
            if other != NO_LINK:
                pair = pairs[np.argmax(entry_of[at])]
                raise GraphError(
                    f": expected each pair of devices on one link, got {_shown(pair, names)}, "
                    f"which is on links[{other}]"
                )
            entry_of[at] = index
            bandwidth[at] = _bandwidth(entry, document.bandwidth)
            latency[at] = number(
                ".latency", document.latency if entry.latency is None else entry.latency
            )
            for source, destination in pairs.tolist():
                name = _link_name(entry, names[source], names[destination])
                makes = (entry.name, entry.for_each)
                if made_by.setdefault(name, makes) != makes:
                    raise GraphError(
                        ".name: expected a name that tells the links for each pair or source from "
                        f"others, got {shown(entry.name)}, which makes a second {shown(name)}"
                    )
                link[source, destination] = numbers.setdefault(name, len(numbers))
    missing = np.argwhere((link == NO_LINK) & ~np.eye(len(names), dtype=np.bool_))
    if len(missing):
        raise GraphError(
            "links: expected a link for each pair of devices, got none for "
            f"{_shown(missing[0], names)}"
        )
    return Cluster(
        devices=devices,
        bandwidth=bandwidth,
        latency=latency,
        link=link,
        link_names=tuple(numbers),
        queue=document.queue,
        kinds=kinds,
    )


def _members(names: Sequence[str], machines: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the numbers of the devices that each name, of a device or a machine, stands for."""
    devices = {name: index for index, name in enumerate(names)}
    members = {name: [index] for name, index in devices.items()}
    machine_of: dict[str, str] = {}
    for machine, inside in machines.items():
        if machine in members:
            raise GraphError(f"machines: expected names that no device has, got {shown(machine)}")
        members[machine] = []
        for index, name in enumerate(inside):
            place = f"machines.{machine}[{index}]"
            members[machine].append(_named(place, name, devices))
            if name in machine_of:
                raise GraphError(
                    f"{place}: expected each device in one machine, got {shown(name)}, which is "
                    f"in {shown(machine_of[name])}"
                )
            machine_of[name] = machine
    return members


def _pairs(entry: _Link, members: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
    """Return int64[N, 2], the pairs of an entry; a device sends nothing to itself."""
    sources, destinations = (
        list(
            dict.fromkeys(
                device
                for index, name in enumerate(given)
                for device in _named(f".{field}[{index}]", name, members)
            )
        )
        for field, given in (("sources", entry.sources), ("destinations", entry.destinations))
    )
    pairs = [(source, there) for source in sources for there in destinations if source != there]
    if not pairs:
        raise GraphError(": expected a pair of different devices, got none")
    return np.array(pairs)


def _bandwidth(entry: _Link, usual: float | None) -> float:
    given = usual if entry.bandwidth is None else entry.bandwidth
    if given is None:
        raise GraphError(".bandwidth: expected one, here or of the whole file, got none")
    return _more_than_0(".bandwidth", given)


def _more_than_0(field: str, bandwidth: float) -> float:
    if not bandwidth > 0:  # also where NaN
        raise GraphError(f"{field}: expected more than 0 B/s, got {bandwidth}")
    return bandwidth


def _link_name(entry: _Link, source: str, destination: str) -> str:
    if entry.for_each == "pair":
        return f"{source} -> {destination} {entry.name}"
    return f"{source} {entry.name}" if entry.for_each == "source" else entry.name


def _named(field: str, name: str, known: Mapping[str, Known]) -> Known:
    if name not in known:
        raise GraphError(
            f"{field}: expected one of {', '.join(map(repr, known))}, got {shown(name)}"
        )
    return known[name]


def _shown(pair: Sequence[int], names: Sequence[str]) -> str:
    return " -> ".join(shown(names[device]) for device in pair)


def _encoded_links(cluster: Cluster) -> list[_Link]:
    """Return entries for the links in their order, as few as pairs of equal cost allow."""
    names = cluster.device_names
    pairs_of: dict[tuple[int, float, float], list[tuple[int, int]]] = {}
    for source, destination in np.argwhere(cluster.link != NO_LINK).tolist():
        at = source, destination
        key = int(cluster.link[at]), float(cluster.bandwidth[at]), float(cluster.latency[at])
        pairs_of.setdefault(key, []).append(at)
    return [
        _Link(
            name=cluster.link_names[link],
            sources=[names[source] for source in sources],
            destinations=[names[destination] for destination in destinations],
            bandwidth=bandwidth,
            latency=latency,
        )
        for (link, bandwidth, latency), pairs in sorted(pairs_of.items())
        for sources, destinations in _rectangles(pairs)
    ]


def _rectangles(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield sources and destinations; from each to each, but for itself, they are the pairs."""
    destinations = {destination for _, destination in pairs}
    reached: dict[int, set[int]] = {}
    for source, destination in pairs:
        reached.setdefault(source, {source} & destinations).add(destination)
    alike: dict[tuple[int, ...], list[int]] = {}
    for source, ends in reached.items():
        alike.setdefault(tuple(sorted(ends)), []).append(source)
    for shared, begins in alike.items():
        yield begins, list(shared)
