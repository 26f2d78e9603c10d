"""From text to typed structs, with errors that name the field, the index and the value."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.schema.cluster import Device

Decoded = TypeVar("Decoded")


class Header(msgspec.Struct):
    """What every file of this project begins with."""

    format: str
    version: int


class DeviceFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a `Device`."""

    name: str
    kind: str
    memory_bytes: int
    op_overhead: float
    transfer_overhead: float


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


def check_header(header: Header, expected_format: str, newest_version: int) -> None:
    """Refuse files of another format, or of a version that this release cannot read."""
    if header.format != expected_format:
        raise GraphError(f"format: expected {expected_format!r}, got {shown(header.format)}")
    if not 1 <= header.version <= newest_version:
        raise GraphError(
            f"version: expected at most {newest_version}, got {shown(header.version)}: "
            "a newer release of placeto-graphs may read it"
            if header.version > newest_version
            else f"version: expected at least 1, got {shown(header.version)}"
        )


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
