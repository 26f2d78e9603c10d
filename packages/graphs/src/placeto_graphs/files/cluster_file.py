"""Cluster files: TOML that a person can write."""

import os
import tomllib
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import tomli_w

from placeto_graphs.errors import GraphError
from placeto_graphs.errors import shown
from placeto_graphs.errors import within
from placeto_graphs.files.decoding import Header
from placeto_graphs.files.decoding import check_header
from placeto_graphs.files.decoding import convert
from placeto_graphs.files.decoding import not_utf8
from placeto_graphs.files.device_fields import DeviceFields
from placeto_graphs.files.device_fields import decoded_devices
from placeto_graphs.files.device_fields import encoded_devices
from placeto_graphs.files.storage import DEFAULT_MAX_BYTES
from placeto_graphs.files.storage import read_bytes
from placeto_graphs.files.storage import write_atomically
from placeto_graphs.schema.cluster import Cluster

CLUSTER_FORMAT = "placeto-cluster"
VERSION = 1


class _Link(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    destination: str
    bandwidth: float | None = None
    latency: float | None = None


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    bandwidth: float
    devices: list[DeviceFields]
    latency: float = 0.0
    links: list[_Link] = []


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
    links = [
        (source, destination, float(cluster.bandwidth[i, j]), float(cluster.latency[i, j]))
        for i, source in enumerate(cluster.device_names)
        for j, destination in enumerate(cluster.device_names)
        if i != j
    ]
    usual = Counter(link[2:] for link in links).most_common(1)
    bandwidth, latency = usual[0][0] if usual else (1.0, 0.0)
    document = _ClusterFile(
        format=CLUSTER_FORMAT,
        version=VERSION,
        bandwidth=bandwidth,
        latency=latency,
        devices=encoded_devices(cluster.devices),
        links=[_Link(*link) for link in links if link[2:] != (bandwidth, latency)],
    )
    write_atomically(path, tomli_w.dumps(msgspec.to_builtins(document)).encode())


def load_cluster(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> Cluster:
    """Read a cluster from a TOML file.

    The file gives the devices and one bandwidth and latency for all pairs of them; ``links`` names
    the pairs that differ, each for one direction::

        format = "placeto-cluster"
        version = 1
        bandwidth = 7.6e9     # bytes per second
        latency = 0.0         # seconds

        [[devices]]
        name = "k80:0"
        kind = "k80"
        memory_bytes = 10_700_000_000
        op_overhead = 5.7e-6
        transfer_overhead = 25e-6

        [[links]]
        source = "k80:0"
        destination = "k80:1"
        bandwidth = 10e9

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
        check_header(convert(data, Header), CLUSTER_FORMAT, VERSION)
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
    bandwidth = np.full((len(devices), len(devices)), document.bandwidth)
    latency = np.full((len(devices), len(devices)), document.latency)
    numbers = {device.name: number for number, device in enumerate(devices)}
    seen = set()
    for index, link in enumerate(document.links):
        with within(f"links[{index}]."):
            source = _number("source", link.source, numbers)
            destination = _number("destination", link.destination, numbers)
            if source == destination or (source, destination) in seen:
                raise GraphError(
                    f"destination: expected each pair of two devices once, "
                    f"got {shown(link.source)}, {shown(link.destination)}"
                )
        seen.add((source, destination))
        if link.bandwidth is not None:
            bandwidth[source, destination] = link.bandwidth
        if link.latency is not None:
            latency[source, destination] = link.latency
    return Cluster(devices=devices, bandwidth=bandwidth, latency=latency)


def _number(field: str, name: str, numbers: dict[str, int]) -> int:
    if name not in numbers:
        known = ", ".join(map(repr, numbers))
        raise GraphError(f"{field}: expected one of {known}, got {shown(name)}")
    return numbers[name]
