"""From text to typed structs, with errors that name the field, the index and the value."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import msgspec

from placeto_graphs.clusters.catalogue import DEVICE_KINDS
from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.schema.cluster import Device
from placeto_graphs.schema.device_kind import DeviceKind, Efficiency

Decoded = TypeVar("Decoded")


class Header(msgspec.Struct):
    """First fields of every file of this project."""

    format: str
    version: int


class DeviceFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a `Device`."""

    name: str
    kind: str
    memory_bytes: int
    op_overhead: float
    transfer_overhead: float


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


class _Kind(_KindFields, forbid_unknown_fields=True):
    """Further fields of a kind, for files that people write."""

    memory: Any = None
    like: str | None = None
    speed: float = 1.0


LIKE_AN_H100 = "h100"  # what a description leaves out of a kind that is not in the catalogue
NEEDED = ("memory_bytes", "memory_bandwidth", "peak_flops")  # of such a kind
UNITS = {
    f"{prefix}{end}B": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for end, base in (("", 1000), ("i", 1024))
}
_SIZE = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(UNITS)})")


def encoded_devices(devices: Sequence[Device]) -> list[DeviceFields]:
    """Return the fields of each device."""
    return [DeviceFields(**asdict(device)) for device in devices]


def decoded_devices(devices: Sequence[DeviceFields]) -> tuple[Device, ...]:
    """Return the devices; an error names the number of the device and the field."""
    decoded = []
    for index, device in enumerate(devices):
        with within(f"devices[{index}]."):
            decoded.append(Device(**msgspec.structs.asdict(device)))
    return tuple(decoded)


def encoded_kinds(kinds: Sequence[DeviceKind]) -> dict[str, Any]:
    """Return the fields of each kind by its name."""
    encoded = {}
    for kind in kinds:
        fields = {field: getattr(kind, field) for field in _KindFields.__struct_fields__}
        peaks, efficiency = dict(kind.peak_flops_in), asdict(kind.efficiency)
        encoded[kind.name] = fields | {"peak_flops_in": peaks, "efficiency": efficiency}
    return encoded


def decoded_kinds(kinds: Mapping[str, Any]) -> tuple[DeviceKind, ...]:
    """Return the kinds; what a description leaves out is that of the catalogue's kind."""
    decoded = []
    for name, description in kinds.items():
        with within(f"kinds.{name}: "):
            kind = convert(description, _Kind)
            known = name if kind.like is None else kind.like
            if kind.like is not None and known not in DEVICE_KINDS:
                raise GraphError(f"like: expected one of {', '.join(DEVICE_KINDS)}, got {known!r}")
            usual = DEVICE_KINDS.get(known, DEVICE_KINDS[LIKE_AN_H100])
            fields = {field: getattr(kind, field) for field in _KindFields.__struct_fields__}
            fields["memory_bytes"] = given_memory(kind.memory, kind.memory_bytes)
            parts = asdict(usual.efficiency)
            for part in kind.efficiency:
                if part not in parts:
                    raise GraphError(f"efficiency: expected {', '.join(parts)}, got {shown(part)}")
            with within("efficiency."):
                fields["efficiency"] = Efficiency(**parts | kind.efficiency)
            if known not in DEVICE_KINDS:
                for field in NEEDED:
                    if fields[field] is None:
                        raise GraphError(
                            f"{field}: expected a number, or `like` with a kind of the catalogue, "
                            "got none"
                        )
                if kind.peak_flops_in is None:
                    fields["peak_flops_in"] = {}  # those of another card would be too high
            given = {field: value for field, value in fields.items() if value is not None}
            decoded.append(replace(usual, name=name, **given).at_speed(kind.speed))
    return tuple(decoded)


def given_memory(memory: Any, memory_bytes: int | None) -> int | None:
    """Return the bytes of a text such as ``21 GB``, or those that are given as a number."""
    if memory is None:
        return memory_bytes
    match = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    size = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not size:
        raise GraphError(
            'memory: expected a text of a number above 0 and a unit, such as "21 GB" or "20 GiB", '
            f"got {shown(memory)}"
        )
    if memory_bytes is not None:
        raise GraphError(f"memory: expected no memory_bytes beside it, got {memory_bytes}")
    return size


def decode_json(content: bytes | bytearray, expected: type[Decoded]) -> Decoded:
    """Decode JSON into a struct, or raise a `GraphError` that says what is wrong."""
    try:
        return msgspec.json.decode(content, type=expected)
    except msgspec.ValidationError as error:
        raise GraphError(_located(error, _decode_loosely(content))) from None
    except msgspec.DecodeError as error:
        raise GraphError(f"expected JSON: {_uncapitalised(error)}") from None
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except RecursionError:
        raise GraphError("expected fewer levels of brackets") from None


def check_keys(content: bytes | bytearray) -> None:
    """Refuse a key that stands twice in an object of JSON, of which msgspec takes the last one."""
    decode_pairs(content, _once)


def decode_pairs(content: bytes | bytearray, hook: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Decode JSON whose objects are what a function makes of their pairs of a key and a value."""
    try:
        return json.loads(content, object_pairs_hook=hook)
    except GraphError:
        raise
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except ValueError as error:  # also of numbers with more digits than Python takes
        raise GraphError(f"expected JSON: {error}") from None
    except RecursionError:
        raise GraphError("expected fewer levels of brackets") from None


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise GraphError(f"{shown(key)}: expected each key of an object once, got it again")
        seen.add(key)


def convert(data: Any, expected: type[Decoded]) -> Decoded:
    """Convert decoded data into a struct, or raise a `GraphError` that says what is wrong."""
    try:
        return msgspec.convert(data, type=expected)
    except msgspec.ValidationError as error:
        raise GraphError(_located(error, data)) from None
    except RecursionError:
        raise GraphError("expected fewer levels of brackets") from None


def not_utf8(error: UnicodeDecodeError) -> GraphError:
    """Return what to raise when a file is not text."""
    return GraphError(f"expected text in UTF-8: byte {error.start}: {error.reason}")


def check_header(header: Header, expected_format: str, expected_version: int) -> None:
    """Refuse files of another format or version."""
    if header.format != expected_format:
        raise GraphError(f"format: expected {expected_format!r}, got {shown(header.format)}")
    if header.version != expected_version:
        raise GraphError(f"version: expected {expected_version}, got {shown(header.version)}")


def _located(error: msgspec.ValidationError, data: Any) -> str:
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`")
    field = path.removeprefix(".")
    value = _value_at(data, path)
    ending = "" if isinstance(value, dict | list) else f" ({shown(value)})"
    prefix = f"{field}: " if field else ""
    return f"{prefix}{_uncapitalised(message).replace('`', '')}{ending}"


def _value_at(data: Any, path: str) -> Any:
    """Follow a path such as ``.graph.flops[3]``; a whole container where it leads nowhere."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            data = data[name or int(index)]
        except (KeyError, IndexError, TypeError):
            return {}
    return data


def _decode_loosely(content: bytes | bytearray) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _uncapitalised(message: object) -> str:
    text = str(message)
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text
