"""Clusters by a short text, such as ``1xcpu+4xk80`` or ``2x(4xv100)``, and their links by name."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.clusters.catalogue import (
    DEFAULT_NETWORK,
    DEVICE_KINDS,
    LINK_NAMES,
    NETWORKS,
    SLOTS,
    WAYS,
    WITHIN,
    Network,
    Ways,
)
from placeto_graphs.errors import GraphError, shown
from placeto_graphs.schema.arrays import text
from placeto_graphs.schema.cluster import (
    DEFAULT_QUEUE,
    MAX_DEVICES,
    NO_LINK,
    Cluster,
    Device,
    is_cpu,
)
from placeto_graphs.schema.device_kind import DeviceKind

_COUNT = r"\s*([0-9]{1,4})\s*x\s*"
_DEVICES = re.compile(_COUNT + r"([a-z][a-z0-9-]*)\s*")
_MACHINES = re.compile(_COUNT + r"\(([^()]*)\)\s*")
_PLUS = re.compile(r"\+(?![^(]*\))")  # one that stands in no brackets

Counts = list[tuple[int, str]]  # how many devices of each kind, in order


def parse_cluster(spec: str, *, link: str | None = None) -> Cluster:
    """Return the cluster that a short text describes.

    Parameters
    ----------
    spec
        Terms of the form ``COUNTxKIND``, joined by ``+``: ``"2xk80"``, ``"1xcpu+4xk80"``. Or
        machines of such devices: ``"2x(4xv100)"``, ``"2x(1xcpu+4xk80)"``. Devices are named after
        their kind and a number, which counts on from machine to machine: ``"k80:0"``. A Mac is a
        machine of its own: ``"2x(1xm3-max)"``. The kinds are those of ``DEVICE_KINDS``.
    link
        Interconnect of the devices of a machine, of the machines, or of both, joined by ``+``.

        Within a machine:

        - ``"bus"``, the default: each device has one outgoing bus (Addanki et al. 2019), to its own
          kind with the bandwidth of NVLink where the kind has it: a GPU on an NVSwitch;
        - ``"nvlink"``: a link for each ordered pair of GPUs of one kind, with its share of the
          NVLink of a GPU; all else goes over outgoing buses of PCI Express;
        - ``"pcie"``: each device has one outgoing bus, of PCI Express, also to its own kind;
        - ``"pcie-3-x4"`` and so on, generations 3 to 5 with 4, 8 or 16 lanes: the same, in slots of
          that bandwidth, or of the device's own where that is less;
        - ``"pcie-shared"``: all devices of a machine have one link together, a host bridge.

        Between machines, through one outgoing network card each: ``"ethernet-10g"``, the default,
        ``"ethernet-1g"``, ``"ethernet-2.5g"``, ``"ethernet-25g"``, ``"ethernet-100g"``,
        ``"thunderbolt-4"``, ``"thunderbolt-5"``, through the memory of the hosts;
        ``"infiniband-edr"``, ``"infiniband-hdr"``, ``"infiniband-ndr"``, from GPU to GPU.

    Raises
    ------
    GraphError
        When the text is of another form, or names an unknown kind; when the link is unknown or
        joins no two of the devices.

    Examples
    --------
    >>> cluster = parse_cluster("1xcpu+2xk80")
    >>> cluster.device_names
    ('cpu:0', 'k80:0', 'k80:1')
    >>> float(cluster.bandwidth[1, 2])
    7600000000.0
    >>> machines = parse_cluster("2x(2xv100)", link="pcie-shared+infiniband-hdr")
    >>> machines.link_names
    ('machine 0 network', 'machine 1 network', 'machine 0 PCIe', 'machine 1 PCIe')
    >>> machines.link_names[machines.link[0, 2]]  # from v100:0 to v100:2
    'machine 0 network'
    """
    kinds: list[str] = []
    machines: list[int] = []
    for number, counts in enumerate(_machines(spec)):
        here = [kind for count, kind in counts for _ in range(count)]
        kinds += here
        machines += [number] * len(here)
    devices = [
        Device(
            name=f"{kind.name}:{kinds[:index].count(kind.name)}",
            kind=kind.name,
            memory_bytes=kind.memory_bytes,
            op_overhead=kind.op_overhead,
            transfer_overhead=kind.transfer_overhead,
        )
        for index, kind in enumerate(map(DEVICE_KINDS.__getitem__, kinds))
    ]
    return joined(devices, machines, [WAYS[kind] for kind in kinds], link=link)


def joined(
    devices: Sequence[Device],
    machines: Sequence[int],
    ways: Sequence[Ways],
    *,
    link: str | None = None,
    queue: str = DEFAULT_QUEUE,
    kinds: Sequence[DeviceKind] = (),
) -> Cluster:
    """Return the cluster of some devices, each in a machine, joined as `parse_cluster` says."""
    pairs = _Pairs(devices, machines, ways)
    within, network = _link_names(link)
    _check_used(within, network, pairs)
    within, joined_by = within or "bus", NETWORKS[network or DEFAULT_NETWORK]
    if within in SLOTS:
        pairs.host_bandwidth = np.where(
            pairs.cpu, pairs.host_bandwidth, np.minimum(pairs.host_bandwidth, SLOTS[within])
        )
    keys = _link_keys(within, pairs)
    used, numbers = np.unique(keys[pairs.apart], return_inverse=True)
    links = np.full(keys.shape, NO_LINK, np.int32)
    links[pairs.apart] = numbers
    names = [device.name for device in devices]
    return Cluster(
        devices=tuple(devices),
        bandwidth=_bandwidth(within, joined_by, pairs),
        latency=_latency(within, joined_by, pairs),
        link=links,
        link_names=tuple(_name_of_key(key, names) for key in used.tolist()),
        queue=queue,
        kinds=tuple(kinds),
    )


def _machines(spec: str) -> list[Counts]:
    """Return the devices of each machine; those outside of brackets are one machine."""
    terms = _PLUS.split(spec.strip().lower())
    nested = [_MACHINES.fullmatch(term) for term in terms]
    if not any(nested):
        counts = _counts(terms, spec)
        _check_count(_size(counts))
        return [counts]
    repeated = []
    for match in nested:
        if match is None:
            raise GraphError(
                "cluster: expected either devices or machines, such as 2x(1xcpu+4xk80), "
                f"got {shown(spec)}"
            )
        repeated.append((_at_least_1(match), _counts(match[2].split("+"), spec)))
    _check_count(sum(count * _size(machine) for count, machine in repeated))
    return [machine for count, machine in repeated for _ in range(count)]


def _counts(terms: list[str], spec: str) -> Counts:
    counts = []
    for term in terms:
        match = _DEVICES.fullmatch(term)
        if match is None:
            raise GraphError(
                f"cluster: expected terms such as 2xk80, joined by +, got {shown(spec)}"
            )
        if match[2] not in DEVICE_KINDS:
            known = ", ".join(DEVICE_KINDS)
            raise GraphError(f"cluster: expected one of the kinds {known}, got {shown(match[2])}")
        counts.append((_at_least_1(match), match[2]))
    return counts


def _at_least_1(term: re.Match[str]) -> int:
    count = int(term[1])
    if count == 0:
        raise GraphError(f"cluster: expected a count of at least 1, got {shown(term[0].strip())}")
    return count


def _size(counts: Counts) -> int:
    return sum(count for count, _ in counts)


def _check_count(count: int) -> None:
    if count > MAX_DEVICES:
        raise GraphError(f"cluster: expected at most {MAX_DEVICES} devices, got {count}")


class _Pairs:
    """Properties of each ordered pair of D devices: bool[D, D], and columns of their kinds."""

    def __init__(
        self, devices: Sequence[Device], machines: Sequence[int], ways: Sequence[Ways]
    ) -> None:
        self.machine = np.array(machines, np.int64)
        self.host_bandwidth = np.array([way.host_bandwidth for way in ways])
        self.host_latency = np.array([way.host_latency for way in ways])
        self.peer_bandwidth = np.array([way.peer_bandwidth for way in ways])
        self.peer_latency = np.array([way.peer_latency for way in ways])
        self.overhead = np.array([device.transfer_overhead for device in devices])
        self.cpu = np.array([is_cpu(device.kind) for device in devices])
        kinds = np.array([device.kind for device in devices])
        self.apart = ~np.eye(len(devices), dtype=np.bool_)
        self.together = self.apart & (self.machine[:, None] == self.machine)
        peers = self.together & (kinds[:, None] == kinds)
        self.peers = peers & (self.peer_bandwidth > 0)
        # Processors are joined to each other, whatever joins the GPUs.
        self.sockets = self.peers & self.cpu
        self.nvlink = peers & np.array([way.has_nvlink for way in ways])
        for device, way, together in zip(devices, ways, self.together, strict=True):
            if way.is_machine and together.any():
                raise GraphError(
                    f"cluster: expected {device.kind} to be a machine of its own, such as "
                    f"2x(1x{device.kind}), got it with other devices"
                )


def _link_names(asked: str | None) -> tuple[str | None, str | None]:
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
        known = ", ".join(name for name, ways in WAYS.items() if ways.has_nvlink)
        raise GraphError(
            f"link: expected two of one kind of {known} in a machine for 'nvlink', got none"
        )


def _link_keys(within: str, pairs: _Pairs) -> NDArray[np.int64]:
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


def _name_of_key(key: int, names: Sequence[str]) -> str:
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
