"""Devices as they stand in problem files and cluster files."""

from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from placeto_graphs.errors import within
from placeto_graphs.schema.cluster import Device


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
