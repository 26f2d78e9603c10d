"""Clusters by a short text, such as ``1xcpu+4xk80`` or ``2x(4xv100)``."""

import re

from placeto_graphs.errors import GraphError, shown
from placeto_graphs.files.cluster_links import links_of
from placeto_graphs.files.device_kinds import DEVICE_KINDS
from placeto_graphs.schema.cluster import MAX_DEVICES, Cluster, Device

_COUNT = r"\s*([0-9]{1,4})\s*x\s*"
_DEVICES = re.compile(_COUNT + r"([a-z][a-z0-9]*)\s*")
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
        their kind and a number, which counts on from machine to machine: ``"k80:0"``.
    link
        What joins the devices of a machine, the machines, or both, joined by ``+``.

        Within a machine:

        - ``"bus"``, the default: each device has one outgoing bus (Addanki et al. 2019), to its own
          kind with the bandwidth of NVLink where the kind has it: a GPU on an NVSwitch;
        - ``"nvlink"``: a link for each ordered pair of GPUs of one kind, with its share of the
          NVLink of a GPU; all else goes over outgoing buses of PCI Express;
        - ``"pcie"``: each device has one outgoing bus, of PCI Express, also to its own kind;
        - ``"pcie-shared"``: all devices of a machine have one link together, a host bridge.

        Between machines, through one outgoing network card each: ``"ethernet-10g"``, the default,
        ``"ethernet-25g"``, ``"ethernet-100g"``, through the memory of the hosts;
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
    names = _names(kinds)
    links = links_of(names, kinds, machines, link)
    return Cluster(
        devices=tuple(_device(name, kind) for name, kind in zip(names, kinds, strict=True)),
        bandwidth=links.bandwidth,
        latency=links.latency,
        link=links.link,
        link_names=links.names,
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
        repeated.append((int(match[1]), _counts(match[2].split("+"), spec)))
    _check_count(sum(count * _size(machine) for count, machine in repeated))
    return [machine for count, machine in repeated if _size(machine) for _ in range(count)]


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
        counts.append((int(match[1]), match[2]))
    return counts


def _size(counts: Counts) -> int:
    return sum(count for count, _ in counts)


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_DEVICES:
        raise GraphError(f"cluster: expected 1 to {MAX_DEVICES} devices, got {count}")


def _names(kinds: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    names = []
    for kind in kinds:
        number = seen.setdefault(kind, 0)
        seen[kind] += 1
        names.append(f"{kind}:{number}")
    return names


def _device(name: str, kind: str) -> Device:
    known = DEVICE_KINDS[kind]
    return Device(
        name=name,
        kind=kind,
        memory_bytes=known.memory_bytes,
        op_overhead=known.op_overhead,
        transfer_overhead=known.transfer_overhead,
    )
