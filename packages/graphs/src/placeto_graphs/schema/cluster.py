"""The devices that ops are placed on, and the links between them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.errors import shown
from placeto_graphs.schema.arrays import float_array
from placeto_graphs.schema.arrays import integer
from placeto_graphs.schema.arrays import number
from placeto_graphs.schema.arrays import text
from placeto_graphs.schema.arrays import texts
from placeto_graphs.schema.record import Record
from placeto_graphs.schema.record import set_field


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes
    ----------
    name : text
        Unique in its cluster, such as ``"k80:0"``.
    kind : text
        What it is, such as ``"k80"``; devices of one kind take equal times.
    memory_bytes : int
        Bytes that a placement may use on it, at least 1.
    op_overhead : float
        Seconds that the device stays busy after an op that takes any time at all.
    transfer_overhead : float
        Seconds that the device's bus stays busy after a transfer.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> device = Device(
    ...     name="k80:0",
    ...     kind="k80",
    ...     memory_bytes=10_700_000_000,
    ...     op_overhead=5.7e-6,
    ...     transfer_overhead=25e-6,
    ... )
    >>> device.memory_bytes
    10700000000
    """

    name: str
    kind: str
    memory_bytes: int
    op_overhead: float
    transfer_overhead: float

    def __post_init__(self) -> None:
        checked = {
            "name": text("name", self.name),
            "kind": text("kind", self.kind),
            "memory_bytes": integer("memory_bytes", self.memory_bytes, minimum=1),
            "op_overhead": number("op_overhead", self.op_overhead),
            "transfer_overhead": number("transfer_overhead", self.transfer_overhead),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cluster(Record):
    """D devices and the link from each to each other one.

    A transfer of n bytes from device s to device d takes ``latency[s, d] + n / bandwidth[s, d]``
    seconds.

    Attributes
    ----------
    devices : D of `Device`
        At least one; their names are unique.
    bandwidth : float64[D, D]
        Bytes per second, more than 0; infinity makes bytes free. Nothing is sent from a device to
        itself: the diagonal may be given as 0, and is kept as infinity.
    latency : float64[D, D]
        Seconds; the diagonal is kept as 0.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> parse_cluster("1xcpu+2xk80")
    Cluster(cpu:0, k80:0, k80:1)
    """

    devices: tuple[Device, ...]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]

    def __post_init__(self) -> None:
        set_field(self, "devices", _checked_devices(self.devices))
        shape = (self.num_devices, self.num_devices)
        bandwidth = float_array("bandwidth", self.bandwidth, shape, infinity_is="bytes are free")
        latency = float_array("latency", self.latency, shape)
        between = ~np.eye(self.num_devices, dtype=np.bool_)
        missing = between & (bandwidth == 0)
        if missing.any():
            source, destination = np.argwhere(missing)[0].tolist()
            raise GraphError(
                f"bandwidth[{source}, {destination}]: expected more than 0 B/s, got 0.0"
            )
        set_field(self, "bandwidth", _read_only(np.where(between, bandwidth, np.inf)))
        set_field(self, "latency", _read_only(np.where(between, latency, 0.0)))

    def __repr__(self) -> str:
        return f"Cluster({', '.join(self.device_names)})"

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The name of each device."""
        return tuple(device.name for device in self.devices)


def _checked_devices(given: Any) -> tuple[Device, ...]:
    if not isinstance(given, list | tuple):
        raise GraphError(f"devices: expected a sequence of Device, got {shown(given)}")
    for index, device in enumerate(given):
        if not isinstance(device, Device):
            raise GraphError(f"devices[{index}]: expected a Device, got {shown(device)}")
    if not given:
        raise GraphError("devices: expected at least one device, got none")
    texts("devices.name", [device.name for device in given], unique=True)
    return tuple(given)


def _read_only(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.flags.writeable = False
    return array
