"""Clusters by a short text, such as ``1xcpu+4xk80`` or ``2x(4xv100)``, and their links by name."""

import re
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeto_graphs.clusters.devices import (
    DEFAULT_NETWORK,
    DEVICE_KINDS,
    LINK_NAMES,
    NETWORKS,
    SLOTS,
    WAYS,
    WITHIN,
    DeviceFields,
    Ways,
    decoded_devices,
)
from placeto_graphs.errors import GraphError, check_one_of, short_repr
from placeto_graphs.schema.arrays import text
from placeto_graphs.schema.cluster import (
    DEFAULT_QUEUE,
    MAX_DEVICES,
    NO_LINK,
    Cluster,
    Device,
    DeviceKind,
    default_machine_names,
)

# So many devices of a kind, or machines; and a + that stands in no brackets.
_TERM = re.compile(r"\s*([0-9]{1,4})\s*x\s*(?:([a-z][a-z0-9-]*)|\(([^()]+)\))\s*")
_PLUS = re.compile(r"\+(?![^(]*\))")


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
        Interconnect of the devices of a machine, of the machines, or of both, joined by ``+``; one
        of ``LINK_NAMES``.

        Within a machine ``"bus"`` is one outgoing bus for each device (Addanki et al. 2019), to
        its own kind with the bandwidth of NVLink where the kind has it; ``"nvlink"`` a link for
        each ordered pair of GPUs of one kind; ``"pcie"``, or a slot such as ``"pcie-3-x4"``, an
        outgoing bus of PCI Express, also to its own kind; ``"pageable"`` the same, where tensors in
        the memory of the host are not pinned; ``"pcie-shared"`` one link for all devices. By
        default GPUs whose NVLink joins pairs, P100 and V100, have links as with ``"nvlink"``, and
        others a bus. Between machines ``"ethernet-10g"`` is the default.

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
    machines = _machines(spec)
    kinds = [kind for machine in machines for kind in machine]
    names = [f"{kind}:{kinds[:index].count(kind)}" for index, kind in enumerate(kinds)]
    devices = decoded_devices(list(map(DeviceFields, names, kinds)), kinds=())
    machine_of = np.repeat(np.arange(len(machines)), [len(machine) for machine in machines])
    machine_names = default_machine_names(len(machines))
    return joined(devices, machine_of, machine_names, [WAYS[kind] for kind in kinds], link=link)


def joined(
    devices: Sequence[Device],
    machines: ArrayLike,
    machine_names: Sequence[str],
    ways: Sequence[Ways],
    *,
    link: str | None = None,
    queue: str = DEFAULT_QUEUE,
    kinds: Sequence[DeviceKind] = (),
) -> Cluster:
    """Return the cluster of some devices, each in a machine, joined as `parse_cluster` says."""
    explicit_within, explicit_network = _link_names(link)
    within, network = explicit_within or "bus", NETWORKS[explicit_network or DEFAULT_NETWORK]
    machine, count = np.asarray(machines), len(devices)
    kind_of = np.array([device.kind for device in devices])
    is_processor = np.array([device.is_cpu for device in devices])
    if within in SLOTS:
        cards = zip(devices, ways, strict=True)
        ways = [way if device.is_cpu else way.in_slot(within) for device, way in cards]
    columns = np.array([astuple(way) for way in ways]).T
    to_host, to_card, host_latency, to_peer, to_pair, of_cards, of_peers = columns[:7]
    has_nvlink, is_machine = columns[7:].astype(np.bool_)

    # Ordered pairs of devices, bool[D, D]. Processors are joined whatever joins the GPUs.
    apart = ~np.eye(count, dtype=np.bool_)
    together = apart & (machine[:, None] == machine)
    of_one_kind = together & (kind_of[:, None] == kind_of)
    peers, nvlink = of_one_kind & (to_peer > 0), of_one_kind & has_nvlink
    pairs = nvlink
    if explicit_within is None:
        pairs = nvlink & np.isfinite(to_pair)
    elif explicit_within != "nvlink":
        pairs = np.zeros_like(nvlink)
    direct = peers if within == "bus" else pairs | peers & is_processor
    for kind in kind_of[is_machine & together.any(axis=1)]:
        raise GraphError(
            f"cluster: expected {kind} to be a machine of its own, such as 2x(1x{kind}), got it "
            "with other devices"
        )
    if count > 1:  # one device sends nothing, whatever is asked for
        _check_used(explicit_within, explicit_network, together, nvlink)

    # What says which pairs share a link: d for the bus of device d, D + m for the network card of
    # machine m, 2 D + m for its shared PCIe, and from 3 D on each number for NVLink of two devices.
    source = np.arange(count)[:, None]
    shared = source if within != "pcie-shared" else 2 * count + machine[:, None]
    keys = np.where(together, shared, count + machine[:, None])
    keys = np.where(pairs, 3 * count + source * count + np.arange(count), keys)
    used, link_of_pair = np.unique(keys[apart], return_inverse=True)
    links = np.full(keys.shape, NO_LINK, np.int32)
    links[apart] = link_of_pair

    through_hosts = np.minimum(to_host[:, None], to_host)
    between_cards = ~(is_processor[:, None] | is_processor)
    through_cards = np.where(between_cards, np.minimum(to_card[:, None], to_card), through_hosts)
    between = np.minimum(through_hosts, network.bandwidth)
    bandwidth = np.where(direct, to_peer, np.where(together, through_cards, between))
    # The NVLinks of a GPU are shared out among its peers, where no switch joins them.
    pair_bandwidth = np.minimum(to_pair, to_peer / np.maximum(pairs.sum(axis=1), 1))
    bandwidth = np.where(pairs, pair_bandwidth[:, None], bandwidth)

    # What is published of cards with buses of their own is less as they share the host's memory.
    of_cards = np.ones(count) if within == "pcie-shared" else of_cards
    fraction = np.where(between_cards, np.minimum(of_cards[:, None], of_cards), 1.0)
    fraction = np.where(together, fraction, network.collective)
    fraction = np.where(direct | pairs, of_peers[:, None], fraction)

    # What is measured as the time per copy keeps its link busy, and also delays the copy itself.
    overhead = np.array([device.transfer_overhead for device in devices])
    hosts = np.add.outer(host_latency, host_latency)
    inside = np.where(direct, overhead[:, None], hosts)
    return Cluster(
        devices=tuple(devices),
        bandwidth=bandwidth,
        latency=np.where(together, inside, network.latency + hosts * network.through_hosts),
        collective_fraction=fraction,
        link=links,
        link_names=tuple(_link_name(key, devices, machine_names) for key in used.tolist()),
        machine=machine,
        machine_names=tuple(machine_names),
        queue=queue,
        kinds=tuple(kinds),
    )


def _link_name(key: int, devices: Sequence[Device], machine_names: Sequence[str]) -> str:
    kind, index = divmod(key, len(devices))
    if kind == 0:
        return f"{devices[index].name} bus"
    if kind < 3:
        return f"{machine_names[index]} {'network' if kind == 1 else 'PCIe'}"
    return f"{devices[kind - 3].name} -> {devices[index].name} NVLink"


def _link_names(link: str | None) -> tuple[str | None, str | None]:
    """Return what is asked for within machines, and between them."""
    terms = [] if link is None else text("link", link).lower().split("+")
    names = [term.strip() for term in terms]
    for name in names:
        check_one_of("link", name, LINK_NAMES)
    within_and_network = []
    for choices in (WITHIN, NETWORKS):
        selected = [name for name in names if name in choices]
        if len(selected) > 1:
            raise GraphError(
                f"link: expected at most one of {', '.join(choices)}, got {short_repr(link)}"
            )
        within_and_network.append(selected[0] if selected else None)
    return within_and_network[0], within_and_network[1]


def _check_used(
    within: str | None, network: str | None, together: NDArray[np.bool_], nvlink: NDArray[np.bool_]
) -> None:
    if network and together.sum() == together.size - len(together):
        raise GraphError(
            f"link: expected several machines, such as 2x(4xk80), for {network!r}, got one"
        )
    if within and not together.any():
        raise GraphError(f"link: expected a machine with several devices for {within!r}, got none")
    if within == "nvlink" and not nvlink.any():
        kind_names = ", ".join(name for name, ways in WAYS.items() if ways.has_nvlink)
        raise GraphError(
            f"link: expected two of one kind of {kind_names} in a machine for 'nvlink', got none"
        )


def _machines(spec: str) -> list[list[str]]:
    """Return the kinds of the devices of each machine; those outside of brackets are one."""
    terms = _terms(_PLUS.split(spec.strip().lower()), spec)
    inside = [text for *_, text in terms if text is not None]
    if inside and len(inside) < len(terms):
        raise GraphError(
            "cluster: expected either devices or machines, such as 2x(1xcpu+4xk80), "
            f"got {short_repr(spec)}"
        )
    machine_terms = [(count, _terms(text.split("+"), spec)) for count, _, text in terms if text]
    machine_terms = machine_terms or [(1, terms)]
    size = 0
    for num_machines, device_terms in machine_terms:
        for num_devices, kind, _ in device_terms:
            check_one_of("cluster", kind, DEVICE_KINDS)
            size += num_machines * num_devices
    if size > MAX_DEVICES:
        raise GraphError(f"cluster: expected at most {MAX_DEVICES} devices, got {size}")
    machines: list[list[str]] = []
    for num_machines, device_terms in machine_terms:
        kinds = [kind for num_devices, kind, _ in device_terms for _ in range(num_devices)]
        machines += [kinds] * num_machines
    return machines


def _terms(texts: list[str], spec: str) -> list[tuple[int, str, str | None]]:
    """Return how many, and of which kind of device or what text in brackets, each term says."""
    terms = []
    for term in texts:
        match = _TERM.fullmatch(term)
        if match is None:
            raise GraphError(
                f"cluster: expected terms such as 2xk80, joined by +, got {short_repr(spec)}"
            )
        if int(match[1]) == 0:
            raise GraphError(
                f"cluster: expected a count of at least 1, got {short_repr(term.strip())}"
            )
        terms.append((int(match[1]), match[2], match[3]))
    return terms
