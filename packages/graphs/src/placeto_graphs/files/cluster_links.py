"""What the links of a cluster that a spec describes are: by name, within and between machines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, shown
from placeto_graphs.files.device_kinds import DEVICE_KINDS
from placeto_graphs.schema.arrays import text
from placeto_graphs.schema.cluster import NO_LINK

WITHIN = ("bus", "nvlink", "pcie", "pcie-shared")


@dataclass(frozen=True)
class Network:
    """What joins machines.

    Attributes
    ----------
    bandwidth : float
        Bytes per second of a machine's network card.
    latency : float
        Seconds of a message, on top of its bytes.
    through_hosts : bool
        Whether it goes through the memory of both hosts, or from device to device.
    """

    bandwidth: float
    latency: float
    through_hosts: bool


# Bandwidths: the names are bits per second, of data. Latency of Ethernet: about 10 us for 8 bytes
# over MPI without RDMA (University of New Mexico's comparison of EDR InfiniBand with 100 Gb/s
# Ethernet, OSU benchmarks). Latency of InfiniBand between the memories of GPUs (GPUDirect RDMA):
# what NVIDIA's NCCL counts for a hop over the network (src/graph/tuning.cc, ring, simple: 9.6 us).
_ETHERNET_LATENCY, _INFINIBAND_LATENCY = 10e-6, 9.6e-6
NETWORKS = {
    "ethernet-10g": Network(1.25e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-25g": Network(3.125e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-100g": Network(12.5e9, _ETHERNET_LATENCY, through_hosts=True),
    "infiniband-edr": Network(12.5e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-hdr": Network(25e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-ndr": Network(50e9, _INFINIBAND_LATENCY, through_hosts=False),
}
LINK_NAMES = (*WITHIN, *NETWORKS)
"""What `parse_cluster` knows as ``link``: within machines, and between them."""
DEFAULT_NETWORK = "ethernet-10g"  # that of the Amazon p2.8xlarge


@dataclass(frozen=True, eq=False)
class Links:
    """How the D devices of a cluster are joined, as `Cluster` takes it.

    Attributes
    ----------
    bandwidth, latency : float64[D, D]
        Bytes per second; seconds.
    link : int32[D, D]
        The number of each pair's link.
    names : L of text
        The name of each link.
    """

    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    link: NDArray[np.int32]
    names: tuple[str, ...]


def links_of(
    names: Sequence[str], kinds: Sequence[str], machines: Sequence[int], asked: str | None
) -> Links:
    """Return the links between devices.

    Parameters
    ----------
    names, kinds : D of text
        The name and the kind of each device.
    machines : D of int
        The number of the machine that it is in.
    asked
        The names of links, as `parse_cluster` takes them.

    Raises
    ------
    GraphError
        When a name is unknown, or joins no two of the devices.
    """
    within, network = _parsed(asked)
    pairs = _Pairs(kinds, machines)
    _check_used(within, network, pairs)
    within, joined_by = within or "bus", NETWORKS[network or DEFAULT_NETWORK]
    keys = _keys(within, pairs)
    used, numbers = np.unique(keys[pairs.apart], return_inverse=True)
    link = np.full(keys.shape, NO_LINK, np.int32)
    link[pairs.apart] = numbers
    return Links(
        bandwidth=_bandwidth(within, joined_by, pairs),
        latency=_latency(within, joined_by, pairs),
        link=link,
        names=tuple(_label(key, names) for key in used.tolist()),
    )


class _Pairs:
    """What is known of each ordered pair of D devices: bool[D, D], and columns of their kinds."""

    def __init__(self, kinds: Sequence[str], machines: Sequence[int]) -> None:
        known = [DEVICE_KINDS[kind] for kind in kinds]
        self.machine = np.array(machines, np.int64)
        self.host_bandwidth = np.array([kind.host_bandwidth for kind in known])
        self.host_latency = np.array([kind.host_latency for kind in known])
        self.peer_bandwidth = np.array([kind.peer_bandwidth for kind in known])
        self.peer_latency = np.array([kind.peer_latency for kind in known])
        self.overhead = np.array([kind.transfer_overhead for kind in known])
        number = np.array([list(DEVICE_KINDS).index(kind) for kind in kinds])
        self.apart = ~np.eye(len(known), dtype=np.bool_)
        self.together = self.apart & (self.machine[:, None] == self.machine)
        self.peers = self.together & (number[:, None] == number)
        # Processors are joined to each other, whatever joins the GPUs.
        self.sockets = self.peers & np.array([kind == "cpu" for kind in kinds])
        self.nvlink = self.peers & np.array([kind.has_nvlink for kind in known])


def _parsed(asked: str | None) -> tuple[str | None, str | None]:
    """Return what is asked for within machines, and between them."""
    chosen: list[str | None] = [None, None]
    for part in [] if asked is None else text("link", asked).lower().split("+"):
        name = part.strip()
        if name not in LINK_NAMES:
            raise GraphError(f"link: expected one of {', '.join(LINK_NAMES)}, got {shown(name)}")
        place = int(name in NETWORKS)
        if chosen[place] is not None:
            others = ", ".join(NETWORKS if place else WITHIN)
            raise GraphError(f"link: expected at most one of {others}, got {shown(asked)}")
        chosen[place] = name
    return chosen[0], chosen[1]


def _check_used(within: str | None, network: str | None, pairs: _Pairs) -> None:
    if not pairs.apart.any():
        return  # one device sends nothing, whatever is asked for
    if network and pairs.together.sum() == pairs.apart.sum():
        raise GraphError(
            f"link: expected several machines, such as 2x(4xk80), for {network!r}, got one"
        )
    if within and not pairs.together.any():
        raise GraphError(f"link: expected a machine with several devices for {within!r}, got none")
    if within == "nvlink" and not pairs.nvlink.any():
        known = ", ".join(name for name, kind in DEVICE_KINDS.items() if kind.has_nvlink)
        raise GraphError(
            f"link: expected two of one kind of {known} in a machine for 'nvlink', got none"
        )


def _keys(within: str, pairs: _Pairs) -> NDArray[np.int64]:
    """Return int64[D, D], what says which pairs share a link; links are numbered in their order.

    With D devices, d stands for the bus of device d, D + m for the network card of machine m, 2 D +
    m for its shared PCIe, and from 3 D on each number for NVLink from one device to another.
    """
    count = len(pairs.machine)
    source = np.arange(count)[:, None]
    keys = np.where(pairs.together, source, count + pairs.machine[:, None])
    if within == "pcie-shared":
        keys = np.where(pairs.together, 2 * count + pairs.machine[:, None], keys)
    if within == "nvlink":
        keys = np.where(pairs.nvlink, 3 * count + source * count + np.arange(count), keys)
    return keys


def _label(key: int, names: Sequence[str]) -> str:
    kind, number = divmod(key, len(names))
    if kind == 0:
        return f"{names[number]} bus"
    if kind < 3:
        return f"machine {number} {'network' if kind == 1 else 'PCIe'}"
    return f"{names[kind - 3]} -> {names[number]} NVLink"


def _bandwidth(within: str, network: Network, pairs: _Pairs) -> NDArray[np.float64]:
    through_hosts = np.minimum(pairs.host_bandwidth[:, None], pairs.host_bandwidth)
    bandwidth = np.where(
        pairs.together, through_hosts, np.minimum(through_hosts, network.bandwidth)
    )
    direct = pairs.peers if within == "bus" else pairs.sockets
    bandwidth = np.where(direct, pairs.peer_bandwidth, bandwidth)
    if within == "nvlink":
        # The NVLinks of a GPU are shared out among its peers, as they are without a switch.
        each = pairs.peer_bandwidth[:, None] / np.maximum(pairs.nvlink.sum(axis=1), 1)[:, None]
        bandwidth = np.where(pairs.nvlink, each, bandwidth)
    return bandwidth


def _latency(within: str, network: Network, pairs: _Pairs) -> NDArray[np.float64]:
    # What a kind with an overhead after each transfer sends has no latency on the way to the host:
    # it is counted once. A network is not part of what was measured as that overhead.
    counted = pairs.overhead[:, None] == 0
    through_hosts = np.where(counted, pairs.host_latency[:, None] + pairs.host_latency, 0.0)
    between = network.latency + (through_hosts if network.through_hosts else 0.0)
    latency = np.where(pairs.together, through_hosts, between)
    direct = {"bus": pairs.peers, "nvlink": pairs.nvlink}.get(within, pairs.sockets)
    return np.where(direct, pairs.peer_latency, latency)
