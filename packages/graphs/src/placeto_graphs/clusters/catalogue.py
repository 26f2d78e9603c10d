"""What `catalogue.toml` has: kinds of device, how they reach one another, and networks."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from placeto_graphs.schema.device_kind import DeviceKind, Efficiency

_TABLES = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a device of a kind reaches its peers, devices of the same kind, and the machine's memory.

    Bandwidths are bytes per second; a latency is the seconds of a copy on top of its bytes.
    """

    host_bandwidth: float
    host_latency: float = 0.0
    peer_bandwidth: float = 0.0  # 0: peers are reached through the host
    peer_latency: float = 0.0
    has_nvlink: bool = False  # to its peers
    is_machine: bool = False  # of its own, as a Mac, which takes no further devices


@dataclass(frozen=True)
class Network:
    """The interconnect of machines: a network card, and the path of a message from there."""

    bandwidth: float  # bytes per second
    latency: float  # seconds of a message, on top of its bytes
    through_hosts: bool  # through the memory of both hosts, or from device to device


def _row(name: str) -> dict[str, Any]:
    """Return a row with what it takes from the one that it is like."""
    given = (_TABLES["kinds"] | _TABLES["templates"])[name]
    usual = _row(given["like"]) if "like" in given else {"efficiency": {}}
    parts = usual["efficiency"] | given.get("efficiency", {})
    row: dict[str, Any] = usual | given | {"efficiency": parts}
    if "peaks" in row and "peak_flops_in" not in given:
        peaks = _TABLES["peaks"][row["peaks"]]
        row["peak_flops_in"] = {dtype: times * row["peak_flops"] for dtype, times in peaks.items()}
    return row


def _kind(name: str) -> DeviceKind:
    row = _row(name)
    row |= {"name": name, "memory_bytes": int(row["memory_bytes"])}
    row["efficiency"] = Efficiency(**row["efficiency"])
    return DeviceKind(**{field.name: row[field.name] for field in fields(DeviceKind)})


def _ways(name: str) -> Ways:
    row = _row(name)
    return Ways(**{field.name: row[field.name] for field in fields(Ways) if field.name in row})


DEVICE_KINDS: dict[str, DeviceKind] = {name: _kind(name) for name in _TABLES["kinds"]}
"""The kinds by name."""
WAYS = {name: _ways(name) for name in DEVICE_KINDS}
CARD_WAYS = _ways("card")
"""Those of a card on PCI Express of which nothing else is known."""
NETWORKS = {name: Network(**network) for name, network in _TABLES["networks"].items()}
DEFAULT_NETWORK = "ethernet-10g"  # that of the Amazon p2.8xlarge
SLOTS = {
    f"{name}-x{lanes}": bandwidth * lanes / 16
    for name, bandwidth in _TABLES["slots"].items()
    for lanes in (4, 8, 16)
}
"""Bytes per second of slots of PCI Express, as names of links."""
WITHIN = ("bus", "nvlink", "pcie", "pcie-shared", *SLOTS)
LINK_NAMES = (*WITHIN, *NETWORKS)
"""What `parse_cluster` knows as ``link``: within machines, and between them."""
