"""Cluster files: TOML that a person can write."""

import os
import tomllib
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import tomli_w

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.files.decoding import Header, check_header, convert, not_utf8
from placeto_graphs.files.device_fields import DeviceFields, decoded_devices, encoded_devices
from placeto_graphs.files.link_fields import LinkFields, decoded_links, encoded_links
from placeto_graphs.files.storage import DEFAULT_MAX_BYTES, read_bytes, write_atomically
from placeto_graphs.schema.cluster import DEFAULT_QUEUE, Cluster, is_first

CLUSTER_FORMAT = "placeto-cluster"
VERSION = 2  # 1 has no links and queues: each device has one outgoing bus, and fifo


class _Pair(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    destination: str
    bandwidth: float | None = None
    latency: float | None = None


class _FirstFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file of version 1: ``links`` are the pairs that differ."""

    format: str
    version: int
    bandwidth: float
    devices: list[DeviceFields]
    latency: float = 0.0
    links: list[_Pair] = []


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    devices: list[DeviceFields]
    bandwidth: float | None = None
    latency: float = 0.0
    machines: dict[str, list[str]] = {}
    links: list[LinkFields] = []
    queue: str = DEFAULT_QUEUE


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
    document = _first_file(cluster) if is_first(cluster) else _linked_file(cluster)
    write_atomically(path, tomli_w.dumps(msgspec.to_builtins(document)).encode())


def _first_file(cluster: Cluster) -> _FirstFile:
    """Return a cluster of outgoing buses as earlier releases read it."""
    pairs = [
        (source, destination, float(cluster.bandwidth[i, j]), float(cluster.latency[i, j]))
        for i, source in enumerate(cluster.device_names)
        for j, destination in enumerate(cluster.device_names)
        if i != j
    ]
    usual = Counter(pair[2:] for pair in pairs).most_common(1)
    bandwidth, latency = usual[0][0] if usual else (1.0, 0.0)
    return _FirstFile(
        format=CLUSTER_FORMAT,
        version=1,
        bandwidth=bandwidth,
        latency=latency,
        devices=encoded_devices(cluster.devices),
        links=[_Pair(*pair) for pair in pairs if pair[2:] != (bandwidth, latency)],
    )


def _linked_file(cluster: Cluster) -> _ClusterFile:
    return _ClusterFile(
        format=CLUSTER_FORMAT,
        version=VERSION,
        devices=encoded_devices(cluster.devices),
        links=encoded_links(cluster),
        queue=cluster.queue,
    )


def load_cluster(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Cluster:
    """Read a cluster from a TOML file.

    The file gives the devices, and the links with the ordered pairs of devices that each carries:
    all from one of its sources to another one of its destinations. A machine is a name for several
    devices. Entries of one name are one link; ``for_each`` makes a link of its own for each
    ``"pair"``, or for each ``"source"``. A link may leave out its bandwidth and latency where the
    file has them for all::

        format = "placeto-cluster"
        version = 2

        [[devices]]
        name = "v100:0"
        kind = "v100"
        memory_bytes = 16_000_000_000
        op_overhead = 3.76e-6      # seconds
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

    ``queue = "backward-first"`` says in which order devices work off what waits for them, see
    `Cluster`.

    Without links, each device has one outgoing bus with the bandwidth and latency of the file. In
    files of version 1 that is so, too, and ``links`` names the pairs that differ, each by a
    ``source`` and a ``destination``.

    Parameters
    ----------
    path
        The file.
    max_bytes
        Refuse files that are larger than that.

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
    content = read_bytes(path, max_bytes)
    with within(f"{os.fspath(path)}: "):
        data = _decoded(content)
        header = convert(data, Header)
        check_header(header, CLUSTER_FORMAT, VERSION)
        if header.version == 1:
            return _decoded_first(convert(data, _FirstFile))
        return _decoded_cluster(convert(data, _ClusterFile))


def _decoded(content: bytearray) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except ValueError as error:  # more than what TOML defines: Python limits the digits of a number
        raise GraphError(f"expected TOML: {error}") from None
    except RecursionError:
        raise GraphError("expected fewer levels of brackets") from None


def _decoded_cluster(document: _ClusterFile) -> Cluster:
    devices = decoded_devices(document.devices)
    bandwidth = document.bandwidth
    if document.links or document.machines:
        linked = decoded_links(
            document.links, devices, document.machines, bandwidth, document.latency
        )
        return replace(linked, queue=document.queue)
    if bandwidth is None and len(devices) > 1:
        raise GraphError("bandwidth: expected one, as there are no links, got none")
    shape = (len(devices), len(devices))
    return Cluster(
        devices=devices,
        bandwidth=np.full(shape, np.inf if bandwidth is None else bandwidth),
        latency=np.full(shape, document.latency),
        queue=document.queue,
    )


def _decoded_first(document: _FirstFile) -> Cluster:
    devices = decoded_devices(document.devices)
    bandwidth = np.full((len(devices), len(devices)), document.bandwidth)
    latency = np.full((len(devices), len(devices)), document.latency)
    numbers = {device.name: number for number, device in enumerate(devices)}
    seen = set()
    for index, pair in enumerate(document.links):
        with within(f"links[{index}]."):
            source = _number("source", pair.source, numbers)
            destination = _number("destination", pair.destination, numbers)
            if source == destination or (source, destination) in seen:
                raise GraphError(
                    f"destination: expected each pair of two devices once, "
                    f"got {shown(pair.source)}, {shown(pair.destination)}"
                )
        seen.add((source, destination))
        if pair.bandwidth is not None:
            bandwidth[source, destination] = pair.bandwidth
        if pair.latency is not None:
            latency[source, destination] = pair.latency
    return Cluster(devices=devices, bandwidth=bandwidth, latency=latency)


def _number(field: str, name: str, numbers: dict[str, int]) -> int:
    if name not in numbers:
        known = ", ".join(map(repr, numbers))
        raise GraphError(f"{field}: expected one of {known}, got {shown(name)}")
    return numbers[name]
