"""Kinds of device: those of `catalogue.toml`, how they reach one another, and those of files."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from placeto_graphs.errors import GraphError, check_one_of, short_repr, within
from placeto_graphs.files.storage import convert
from placeto_graphs.schema.cluster import Device, DeviceKind, Efficiency

_TABLES = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))

UNITS = {
    "kB": 1000,
    "KB": 1000,
    "KiB": 1024,
    "MB": 1000**2,
    "MiB": 1024**2,
    "GB": 1000**3,
    "GiB": 1024**3,
    "TB": 1000**4,
    "TiB": 1024**4,
}
_SIZE = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(UNITS)})")


def _memory_in_bytes(memory: Any, memory_bytes: int | None) -> int | None:
    """Return the bytes of a text such as ``21 GB``, or those that are given as a number."""
    if memory is None:
        return memory_bytes
    match = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    size = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not size:
        raise GraphError(
            'memory: expected a text of a number above 0 and a unit, such as "21 GB" or "20 GiB", '
            f"got {short_repr(memory)}"
        )
    if memory_bytes is not None:
        raise GraphError(f"memory: expected no memory_bytes beside it, got {memory_bytes}")
    return size


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a device of a kind reaches its peers, devices of the same kind, and the machine's memory.

    Bandwidths are bytes per second.
    """

    host_bandwidth: float
    card_bandwidth: float = math.inf  # to another card, through the memory of the host
    host_latency: float = 0.0  # seconds of a copy to the host's memory, on top of its bytes
    peer_bandwidth: float = 0.0  # 0: peers are reached through the host
    pair_bandwidth: float = math.inf  # part of it that one peer gets; all of it through a switch
    card_collective: float = 1.0  # fraction of the bandwidth to cards that collectives reach
    peer_collective: float = 1.0  # and of that to peers
    has_nvlink: bool = False  # to its peers
    is_machine: bool = False  # of its own, as a Mac, which takes no further devices

    def in_slot(self, slot: str) -> "Ways":
        """Return the ways of such a device in a slot of PCI Express, which may be slower."""
        host, card, collective = SLOTS[slot]
        is_slower = card < self.card_bandwidth
        return replace(
            self,
            host_bandwidth=min(self.host_bandwidth, host),
            card_bandwidth=card if is_slower else self.card_bandwidth,
            card_collective=collective if is_slower else self.card_collective,
        )


@dataclass(frozen=True)
class Network:
    """The interconnect of machines: a network card, and the path of a message from there."""

    bandwidth: float  # bytes per second
    latency: float  # seconds of a message, on top of its bytes
    through_hosts: bool  # through the memory of both hosts, or from device to device
    collective: float  # fraction of the bandwidth that collectives reach


def _row(name: str) -> dict[str, Any]:
    """Return a row with what it takes from the one that it is like."""
    entry = (_TABLES["kinds"] | _TABLES["templates"])[name]
    base = _row(entry["like"]) if "like" in entry else {"efficiency": {}}
    of_generation = _TABLES["efficiencies"].get(entry.get("peaks"), {})
    efficiency = base["efficiency"] | of_generation | entry.get("efficiency", {})
    row: dict[str, Any] = base | entry | {"efficiency": efficiency}
    if "peaks" in row and "peak_flops_in" not in entry:
        peaks = _TABLES["peaks"][row["peaks"]]
        row["peak_flops_in"] = {dtype: times * row["peak_flops"] for dtype, times in peaks.items()}
    return row


def _kind(name: str) -> DeviceKind:
    row = _row(name)
    row |= {"name": name, "memory_bytes": _memory_in_bytes(row["memory"], None)}
    row["efficiency"] = Efficiency(**row["efficiency"])
    return DeviceKind(**_fields(DeviceKind, row))


def _fields(described: type[Any], row: dict[str, Any]) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(described) if field.name in row}


def _ways(name: str) -> Ways:
    row = _row(name)
    if "slot" in row:
        row["host_bandwidth"], row["card_bandwidth"], row["card_collective"] = SLOTS[row["slot"]]
    return Ways(**_fields(Ways, {"host_bandwidth": row["memory_bandwidth"]} | row))


SLOTS = {
    f"{name}-x{lanes}": (lanes / 16 * slot["host"], lanes / 16 * slot["card"], slot["collective"])
    for name, slot in _TABLES["slots"].items()
    for lanes in (4, 8, 16)
}
SLOTS["pageable"] = (_TABLES["host_memory"]["pageable"], math.inf, 1.0)
"""Bytes per second to the host and to other cards in slots of PCI Express, by names of links.

With them goes the fraction of the second that collectives reach.
"""
DEVICE_KINDS: dict[str, DeviceKind] = {name: _kind(name) for name in _TABLES["kinds"]}
"""The kinds by name."""
WAYS = {name: _ways(name) for name in DEVICE_KINDS}
_BESIDES_TENSORS = {name: _row(name).get("besides_tensors", 0) for name in DEVICE_KINDS}
CARD_WAYS = _ways("card")
"""Those of a card on PCI Express of which nothing else is known."""
NETWORKS = {name: Network(**network) for name, network in _TABLES["networks"].items()}
DEFAULT_NETWORK = "ethernet-10g"  # that of the Amazon p2.8xlarge
WITHIN = ("bus", "nvlink", "pcie", "pcie-shared", *SLOTS)
LINK_NAMES = (*WITHIN, *NETWORKS)
"""What `parse_cluster` knows as ``link``: within machines, and between them."""


def bytes_besides_tensors(device: Device) -> int:
    """Return the bytes of a device's memory that a process may need besides its tensors.

    These are the context of the driver with its kernels, workspaces of libraries, blocks of the
    allocator that are free in part, and buffers of communication. They depend on the versions of
    all of these. A step that leaves less may run out of memory.

    Parameters
    ----------
    device : `Device`
        A device of any kind.

    Returns
    -------
    int
        2 GB for a GPU with all of the memory that the catalogue has for its kind; else 0, as a
        ``memory_bytes`` that you choose is what a placement may use. 0 also for processors, Macs
        and the K80, whose memory in the catalogue is what may be used.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> [bytes_besides_tensors(device) for device in parse_cluster("1xv100+1xk80").devices]
    [2000000000, 0]
    """
    kind = DEVICE_KINDS.get(device.kind)
    has_all = kind is not None and device.memory_bytes == kind.memory_bytes
    return _BESIDES_TENSORS[device.kind] if has_all else 0


class DeviceFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a `Device`; what is not there is that of its kind."""

    name: str
    kind: str
    memory_bytes: int | None = None
    op_overhead: float | None = None
    transfer_overhead: float | None = None
    memory: Any = None


class _KindFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a `DeviceKind`; what is not there is as in the catalogue."""

    memory_bytes: int | None = None
    memory_bandwidth: float | None = None
    peak_flops: float | None = None
    peak_flops_in: dict[str, float] | None = None
    launch_overhead: float | None = None
    op_overhead: float | None = None
    transfer_overhead: float | None = None
    efficiency: dict[str, float] = {}
    memory: Any = None
    like: str | None = None
    backend: str | None = None
    speed: float = 1.0


# What a description leaves out of a kind that is not in the catalogue: an H100 on PCI Express.
UNKNOWN_KIND = replace(
    DEVICE_KINDS["h100"], transfer_overhead=_row("card")["transfer_overhead"], backend=""
)
REQUIRED_FIELDS = ("memory_bytes", "memory_bandwidth", "peak_flops")  # of such a kind


def decoded_devices(
    devices: Sequence[DeviceFields], kinds: Sequence[DeviceKind]
) -> tuple[Device, ...]:
    """Return the devices; an error names the number of the device and the field."""
    kind_of_name = DEVICE_KINDS | {kind.name: kind for kind in kinds}
    decoded = []
    for index, device in enumerate(devices):
        with within(f"devices[{index}]."):
            arguments = {field.name: getattr(device, field.name) for field in fields(Device)}
            arguments["memory_bytes"] = _memory_in_bytes(device.memory, device.memory_bytes)
            for field, value in arguments.items():
                if value is None and device.kind not in kind_of_name:
                    near = get_close_matches(device.kind, kind_of_name, n=1) or list(kind_of_name)
                    raise GraphError(
                        f"kind: expected {near[0]}, another known kind, [kinds.{device.kind}], or "
                        f"a number for {field}, got {short_repr(device.kind)}"
                    )
                if value is None:
                    arguments[field] = getattr(kind_of_name[device.kind], field)
            if device.op_overhead is None:
                arguments["op_overhead"] /= kind_of_name[device.kind].speed
            decoded.append(Device(**arguments))
    return tuple(decoded)


def encoded_kinds(kinds: Sequence[DeviceKind]) -> dict[str, Any] | None:
    """Return the fields of each kind by its name; None if there are no kinds."""
    encoded = {kind.name: msgspec.to_builtins(kind, enc_hook=dict) for kind in kinds}
    for kind in encoded.values():
        del kind["name"]
    return encoded or None


def decoded_kinds(kinds: Mapping[str, Any] | None) -> tuple[DeviceKind, ...]:
    """Return the kinds; what a description leaves out is that of the catalogue's kind."""
    decoded = []
    for name, description in (kinds or {}).items():
        with within(f"kinds.{name}: "):
            decoded.append(_decoded_kind(name, convert(description, _KindFields)))
    return tuple(decoded)


def _decoded_kind(name: str, kind: _KindFields) -> DeviceKind:
    if kind.like is not None:
        check_one_of("like", kind.like, DEVICE_KINDS)
    base_name = name if kind.like is None else kind.like
    base = DEVICE_KINDS.get(base_name, UNKNOWN_KIND)
    arguments = msgspec.structs.asdict(kind) | {
        "name": name,
        "memory_bytes": _memory_in_bytes(kind.memory, kind.memory_bytes),
    }
    if base_name not in DEVICE_KINDS:
        for field in REQUIRED_FIELDS:
            if arguments[field] is None:
                raise GraphError(
                    f"{field}: expected a number, or `like` with a kind of the catalogue, got none"
                )
        if kind.peak_flops_in is None:
            arguments["peak_flops_in"] = {}  # those of another card would be too high
    efficiencies = asdict(base.efficiency)
    for op_class in kind.efficiency:
        check_one_of("efficiency", op_class, efficiencies)
    with within("efficiency."):
        arguments["efficiency"] = Efficiency(**efficiencies | kind.efficiency)
    field_names = (field.name for field in fields(DeviceKind))
    changes = {field: arguments[field] for field in field_names if arguments[field] is not None}
    return replace(base, **changes)
