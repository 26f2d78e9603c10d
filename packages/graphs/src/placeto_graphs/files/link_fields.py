"""The links of a cluster as they stand in a cluster file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.schema.arrays import number
from placeto_graphs.schema.cluster import NO_LINK, Cluster, Device


class LinkFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The ordered pairs of devices that a link carries; entries of one name are one link."""

    name: str
    sources: list[str]
    destinations: list[str]
    for_each: Literal["pair", "source"] | None = None
    bandwidth: float | None = None
    latency: float | None = None


def encoded_links(cluster: Cluster) -> list[LinkFields]:
    """Return entries for the links of a cluster, in their order."""
    costs = np.stack([cluster.bandwidth, cluster.latency], axis=2)
    names = cluster.device_names
    entries = []
    for name, link_pairs in zip(cluster.link_names, cluster.link_pairs, strict=True):
        of_cost: dict[tuple[float, float], list[tuple[int, int]]] = {}
        for source, destination in link_pairs.tolist():
            bandwidth, latency = costs[source, destination].tolist()
            of_cost.setdefault((bandwidth, latency), []).append((source, destination))
        for (bandwidth, latency), pairs in of_cost.items():
            entries += [
                LinkFields(
                    name=name,
                    sources=[names[source] for source in sources],
                    destinations=[names[destination] for destination in destinations],
                    bandwidth=bandwidth,
                    latency=latency,
                )
                for sources, destinations in _rectangles(pairs)
            ]
    return entries


def _rectangles(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield sources and destinations, all of which, but for a device to itself, are the pairs."""
    sources = sorted({source for source, _ in pairs})
    destinations = sorted({destination for _, destination in pairs})
    both = len(set(sources) & set(destinations))
    if len(sources) * len(destinations) - both == len(pairs):
        yield sources, destinations
        return
    reached: dict[int, list[int]] = {}
    for source, destination in pairs:
        reached.setdefault(source, []).append(destination)
    alike: dict[tuple[int, ...], list[int]] = {}
    for source, ends in reached.items():
        alike.setdefault(tuple(ends), []).append(source)
    for shared, begins in alike.items():
        yield begins, list(shared)


def decoded_links(
    entries: Sequence[LinkFields],
    devices: Sequence[Device],
    machines: Mapping[str, Sequence[str]],
    bandwidth: float | None,
    latency: float,
) -> Cluster:
    """Return the cluster that the links join.

    Parameters
    ----------
    entries
        The links.
    devices
        The devices.
    machines
        The devices of each machine; its name stands for all of them.
    bandwidth, latency
        Those of the entries that have none.

    Raises
    ------
    GraphError
        When a name is unknown, an entry has no bandwidth or no pair, or a pair is on two links or
        on none.
    """
    if bandwidth is not None:
        _more_than_0("bandwidth", bandwidth)
    number("latency", latency)
    names = [device.name for device in devices]
    members = _members(names, machines)
    shape = (len(names), len(names))
    link = np.full(shape, NO_LINK, np.int32)
    given_by = np.full(shape, NO_LINK, np.int32)  # the entry
    bandwidths, latencies = np.full(shape, np.inf), np.zeros(shape)
    numbers: dict[str, int] = {}
    generated: dict[str, tuple[str, str | None]] = {}
    for index, entry in enumerate(entries):
        with within(f"links[{index}]"):
            pairs = _pairs(entry, members)
            first = given_by[tuple(pairs.T)].max()
            if first != NO_LINK:
                pair = pairs[np.argmax(given_by[tuple(pairs.T)])]
                raise GraphError(
                    f": expected each pair of devices on one link, got {_shown(pair, names)}, "
                    f"which is on links[{first}]"
                )
            bandwidths[tuple(pairs.T)] = _bandwidth(entry, bandwidth)
            latencies[tuple(pairs.T)] = number(
                ".latency", latency if entry.latency is None else entry.latency
            )
        given_by[tuple(pairs.T)] = index
        for pair in pairs.tolist():
            name = _name(entry, pair, names)
            made_of = (entry.name, entry.for_each)
            if generated.setdefault(name, made_of) != made_of:
                raise GraphError(
                    f"links[{index}].name: expected a name that tells the links for each pair or "
                    f"source from others, got {shown(entry.name)}, which makes a second "
                    f"{shown(name)}"
                )
            link[tuple(pair)] = numbers.setdefault(name, len(numbers))
    missing = np.argwhere((link == NO_LINK) & ~np.eye(len(names), dtype=np.bool_))
    if len(missing):
        raise GraphError(
            "links: expected a link for each pair of devices, got none for "
            f"{_shown(missing[0], names)}"
        )
    return Cluster(
        devices=tuple(devices),
        bandwidth=bandwidths,
        latency=latencies,
        link=link,
        link_names=tuple(numbers),
    )


def _members(names: Sequence[str], machines: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the numbers of the devices that each name stands for."""
    members = {name: [index] for index, name in enumerate(names)}
    machine_of: dict[str, str] = {}
    known = list(names)
    for machine, inside in machines.items():
        if machine in members:
            raise GraphError(f"machines: expected names that no device has, got {shown(machine)}")
        for index, name in enumerate(inside):
            place = f"machines.{machine}[{index}]"
            if name not in known:
                raise GraphError(f"{place}: expected one of {_listed(known)}, got {shown(name)}")
            if name in machine_of:
                raise GraphError(
                    f"{place}: expected each device in one machine, got {shown(name)}, which is "
                    f"in {shown(machine_of[name])}"
                )
            machine_of[name] = machine
        members[machine] = [known.index(name) for name in inside]
    return members


def _pairs(entry: LinkFields, members: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
    """Return int64[N, 2], the pairs of an entry; a device sends nothing to itself."""
    ends = []
    for field, given in (("sources", entry.sources), ("destinations", entry.destinations)):
        for index, name in enumerate(given):
            if name not in members:
                raise GraphError(
                    f".{field}[{index}]: expected one of {_listed(members)}, got {shown(name)}"
                )
        ends.append(list(dict.fromkeys(device for name in given for device in members[name])))
    pairs = [(source, there) for source in ends[0] for there in ends[1] if source != there]
    if not pairs:
        raise GraphError(": expected a pair of different devices, got none")
    return np.array(pairs)


def _bandwidth(entry: LinkFields, usual: float | None) -> float:
    given = usual if entry.bandwidth is None else entry.bandwidth
    if given is None:
        raise GraphError(".bandwidth: expected one, here or of the whole file, got none")
    return _more_than_0(".bandwidth", given)


def _more_than_0(field: str, bandwidth: float) -> float:
    if not bandwidth > 0:  # also where NaN
        raise GraphError(f"{field}: expected more than 0 B/s, got {bandwidth}")
    return bandwidth


def _name(entry: LinkFields, pair: Sequence[int], names: Sequence[str]) -> str:
    if entry.for_each == "pair":
        return f"{names[pair[0]]} -> {names[pair[1]]} {entry.name}"
    if entry.for_each == "source":
        return f"{names[pair[0]]} {entry.name}"
    return entry.name


def _shown(pair: Any, names: Sequence[str]) -> str:
    return " -> ".join(shown(names[device]) for device in pair)


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
