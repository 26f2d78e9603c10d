"""Clusters by a short text, such as ``1xcpu+4xk80``, and what is known of each kind of device."""

import re
from dataclasses import dataclass

import numpy as np

from placeto_graphs.errors import GraphError
from placeto_graphs.errors import shown
from placeto_graphs.schema.cluster import MAX_DEVICES
from placeto_graphs.schema.cluster import Cluster
from placeto_graphs.schema.cluster import Device

GIGABYTE = 10**9

# Measured on K80s (Addanki et al. 2019, simulator constants); not measured for the other kinds,
# which take the same overheads.
OP_OVERHEAD = 5.7e-6
TRANSFER_OVERHEAD = 25e-6


@dataclass(frozen=True)
class DeviceKind:
    """What the spec of a cluster assumes of a kind of device.

    Attributes
    ----------
    memory_bytes : int
        Bytes that a placement may use.
    peer_bandwidth : float
        Bytes per second to another device of the same kind.
    host_bandwidth : float
        Bytes per second to a device of another kind.
    """

    memory_bytes: int
    peer_bandwidth: float
    host_bandwidth: float


K80_BANDWIDTH = 7.6e9  # bytes per second, measured (Addanki et al. 2019, simulator constants)
PCIE_3_X16 = 15.75e9  # 16 lanes of 8 GT/s, 128 bits in 130: PCI Express 3.0 specification
PCIE_4_X16 = 31.5e9  # 16 lanes of 16 GT/s: PCI Express 4.0 specification
PCIE_5_X16 = 63.0e9  # 16 lanes of 32 GT/s: PCI Express 5.0 specification

DEVICE_KINDS: dict[str, DeviceKind] = {
    # The host of an Amazon p2.8xlarge, two Xeon E5-2686 v4 with 488 GiB: QPI of 9.6 GT/s, 2 bytes
    # at a time, joins them. What joins them to another device is limited by that device's link.
    "cpu": DeviceKind(488 * 1024**3, 19.2e9, PCIE_5_X16),
    # One of the two GPUs of a K80 board; usable memory as Addanki et al. (2019) give it.
    "k80": DeviceKind(10_700_000_000, K80_BANDWIDTH, K80_BANDWIDTH),
    # NVIDIA's data sheets: memory; NVLink bandwidth, of which half is for each direction.
    "p100": DeviceKind(16 * GIGABYTE, 80e9, PCIE_3_X16),
    "v100": DeviceKind(16 * GIGABYTE, 150e9, PCIE_3_X16),
    "a100": DeviceKind(40 * GIGABYTE, 300e9, PCIE_4_X16),
    "h100": DeviceKind(80 * GIGABYTE, 450e9, PCIE_5_X16),
    "h200": DeviceKind(141 * GIGABYTE, 450e9, PCIE_5_X16),
}


def parse_cluster(spec: str) -> Cluster:
    """Return the cluster that a short text describes.

    Parameters
    ----------
    spec
        Terms of the form ``COUNTxKIND``, joined by ``+``: ``"2xk80"``, ``"1xcpu+4xk80"``. Devices
        are named after their kind and a number: ``"k80:0"``.

    Raises
    ------
    GraphError
        When the text is of another form, or names an unknown kind.

    Examples
    --------
    >>> cluster = parse_cluster("1xcpu+2xk80")
    >>> cluster.device_names
    ('cpu:0', 'k80:0', 'k80:1')
    >>> float(cluster.bandwidth[1, 2])
    7600000000.0
    """
    kinds: list[str] = []
    for term in spec.strip().lower().split("+"):
        match = re.fullmatch(r"\s*([0-9]{1,4})\s*x\s*([a-z][a-z0-9]*)\s*", term)
        if match is None:
            raise GraphError(
                f"cluster: expected terms such as 2xk80, joined by +, got {shown(spec)}"
            )
        if match[2] not in DEVICE_KINDS:
            known = ", ".join(DEVICE_KINDS)
            raise GraphError(f"cluster: expected one of the kinds {known}, got {shown(match[2])}")
        kinds += [match[2]] * int(match[1])
    if not 1 <= len(kinds) <= MAX_DEVICES:
        raise GraphError(f"cluster: expected 1 to {MAX_DEVICES} devices, got {len(kinds)}")
    devices = [_device(kind, number=kinds[:index].count(kind)) for index, kind in enumerate(kinds)]
    bandwidth = [[_bandwidth(source, destination) for destination in kinds] for source in kinds]
    return Cluster(
        devices=tuple(devices),
        bandwidth=np.array(bandwidth),
        latency=np.zeros((len(kinds), len(kinds))),
    )


def _device(kind: str, number: int) -> Device:
    return Device(
        name=f"{kind}:{number}",
        kind=kind,
        memory_bytes=DEVICE_KINDS[kind].memory_bytes,
        op_overhead=OP_OVERHEAD,
        transfer_overhead=TRANSFER_OVERHEAD,
    )


def _bandwidth(source: str, destination: str) -> float:
    one, other = DEVICE_KINDS[source], DEVICE_KINDS[destination]
    if source == destination:
        return one.peer_bandwidth
    return min(one.host_bandwidth, other.host_bandwidth)
