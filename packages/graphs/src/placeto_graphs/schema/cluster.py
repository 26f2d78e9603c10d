"""The devices that ops are placed on, the links between them, and kinds of device.

The time of an op on a kind follows from its numbers if it was not measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.digraphs import compress_rows
from placeto_graphs.errors import GraphError, check_one_of, short_repr
from placeto_graphs.schema.arrays import (
    Record,
    above_0,
    first_index,
    float_array,
    int_array,
    integer,
    number,
    text,
    texts,
)

MAX_DEVICES = 1024
DEFAULT_QUEUE = "fifo"
BACKWARD_FIRST = "backward-first"
QUEUES = (DEFAULT_QUEUE, BACKWARD_FIRST)
FREE = "bytes are free"  # what an infinite bandwidth means
NO_LINK = -1  # from a device to itself
CPU = "cpu"  # a kind of processors; others have it before a hyphen
# With less, the seconds of a tensor that int64 can count might be no number of float64.
LEAST_BANDWIDTH = 2.0**63 / np.finfo(np.float64).max

BACKENDS = ("cuda", "rocm", "metal", "vulkan", "sycl")
PRECISIONS = (
    *("tf32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("uint8", "int8", "int16", "int32", "int64"),
)
"""What a device may have a peak for besides float32: dtypes of torch, and TensorFloat-32."""

_DEFAULT: Any = None
Named = TypeVar("Named", "Device", "DeviceKind")


@dataclass(frozen=True)
class Device(Record):
    """One device.

    Attributes
    ----------
    name : text
        Name, unique in its cluster, such as ``"k80:0"``.
    kind : text
        Type of hardware, such as ``"k80"``; devices of one kind take equal times. Processors are
        ``"cpu"``, and kinds that begin with ``"cpu-"``; all others are accelerators.
    memory_bytes : int
        Bytes that a placement may use on it, at least 1.
    op_overhead : float
        Seconds that the device stays busy after an op that takes any time at all.
    transfer_overhead : float
        Seconds that a link stays busy after a transfer from the device.

    Examples
    --------
    >>> Device("k80:0", "k80", 10_700_000_000, op_overhead=5.7e-6, transfer_overhead=25e-6).is_cpu
    False
    """

    name: str
    kind: str
    memory_bytes: int
    op_overhead: float
    transfer_overhead: float

    def __post_init__(self) -> None:
        self._check("name", text)
        self._check("kind", text)
        self._check("memory_bytes", integer, minimum=1)
        self._check("op_overhead", number)
        self._check("transfer_overhead", number)

    @property
    def is_cpu(self) -> bool:
        """Whether it is a processor, and no accelerator."""
        return is_cpu(self.kind)


def is_cpu(kind: str) -> bool:
    """Return whether a kind of device is one of processors."""
    return kind == CPU or kind.startswith(f"{CPU}-")


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The part of a device's peak FLOP/s and memory bandwidth that each class of op reaches.

    All are above 0 and at most 1; another value raises a `GraphError`.

    Attributes
    ----------
    convolution, matrix_product : float
        Parts of the peak of float32 that convolutions and products of matrices reach.
    tensor_core_convolution, tensor_core_product : float
        Parts of a higher peak, such as that of float16 on tensor cores, that these reach if their
        numbers fill it: the time of their bytes is added.
    attention : float
        Part of the peak, in any precision, that kernels of attention reach.
    depthwise_convolution : float
        Part of the bandwidth that convolutions of single channels reach.
    product_bytes : float
        Part of the bandwidth that products of matrices and dense convolutions reach, where their
        bytes take longer than their FLOPs, such as products of a matrix and a vector.
    normalisation : float
        Part of normalisations, such as those of batches and layers, and of softmax.
    elementwise : float
        Part of ops that compute each number from those at its place.
    reduction : float
        Part of sums, maxima and the like.
    copy : float
        Part of ops that only move bytes.
    """

    convolution: float
    matrix_product: float
    tensor_core_convolution: float
    tensor_core_product: float
    attention: float
    depthwise_convolution: float
    product_bytes: float
    normalisation: float
    elementwise: float
    reduction: float
    copy: float

    def __post_init__(self) -> None:
        for op_class in fields(self):
            value = number(op_class.name, getattr(self, op_class.name))
            if not 0 < value <= 1:
                raise GraphError(
                    f"{op_class.name}: expected more than 0 and at most 1, got {value}"
                )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DeviceKind(Record):
    """A kind of device: what its devices hold, and how fast they compute.

    Attributes
    ----------
    name : text
        Name of the kind in clusters: ``"k80"``.
    memory_bytes : int
        Bytes that a placement may use.
    memory_bandwidth : float
        Bytes per second between the device and its memory.
    peak_flops : float
        Float32 operations per second.
    peak_flops_in : mapping of text to float
        Operations per second in other precisions than float32, by the name of their torch dtype;
        ``"tf32"`` is float32 rounded to TensorFloat-32. A precision without a peak is computed at
        that of float32.
    launch_overhead : float
        Seconds that an op takes on top of its work.
    op_overhead, transfer_overhead : float
        Seconds after an op, and after a transfer, as a `Device` of the kind has them.
    efficiency : `Efficiency`
        Parts of the peak and the bandwidth that each class of op reaches.
    backend : text
        Backend of the kernels of a GPU: ``"cuda"``, ``"rocm"``, ``"metal"``, ``"vulkan"`` or
        ``"sycl"``; ``""``, the default, if unknown. Exports name devices by it.
    speed : float
        Number by which the times of all ops, and of what is between them, are divided.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from placeto_graphs import DEVICE_KINDS
    >>> DEVICE_KINDS["a100"].peak_flops_in["bfloat16"]
    312000000000000.0
    >>> replace(DEVICE_KINDS["a100"], name="a100-80g", memory_bytes=80_000_000_000)
    DeviceKind('a100-80g')
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: float
    peak_flops_in: Mapping[str, float] = field(default_factory=dict)
    launch_overhead: float
    op_overhead: float
    transfer_overhead: float = 0.0
    efficiency: Efficiency
    backend: str = ""
    speed: float = 1.0

    def __post_init__(self) -> None:
        self._check("name", text)
        self._check("memory_bytes", integer, minimum=1)
        for rate in ("memory_bandwidth", "peak_flops", "speed"):
            self._check(rate, above_0)
        self._check("peak_flops_in", _peaks)
        for overhead in ("launch_overhead", "op_overhead", "transfer_overhead"):
            self._check(overhead, number)
        check_one_of("backend", self.backend, ("", *BACKENDS))
        if not isinstance(self.efficiency, Efficiency):
            raise GraphError(f"efficiency: expected Efficiency, got {short_repr(self.efficiency)}")

    def __repr__(self) -> str:
        return f"DeviceKind({self.name!r})"


def _peaks(field: str, peaks: Any) -> Mapping[str, float]:
    if not isinstance(peaks, Mapping):
        raise GraphError(
            f"{field}: expected a mapping of dtypes to numbers, got {short_repr(peaks)}"
        )
    for name in peaks:
        check_one_of(field, name, PRECISIONS)
    return MappingProxyType({name: above_0(f"{field}.{name}", peaks[name]) for name in peaks})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cluster(Record):
    """D devices and the L links between them.

    A transfer of n bytes from device s to device d occupies link ``link[s, d]`` for ``n /
    bandwidth[s, d]`` seconds, and arrives ``latency[s, d]`` seconds later. A link carries one
    transfer at a time. NVLink is a separate link for each pair. A bus, a PCIe switch, a host bridge
    and the network card of a machine are links that several pairs share. By
    default each device has one link for all that it sends, its outgoing bus (Addanki et al. 2019).

    Attributes
    ----------
    devices : D of `Device`
        Devices, 1 to 1024, with unique names.
    bandwidth : float64[D, D]
        Bytes per second, more than 0; infinity makes bytes free. Nothing is sent from a device to
        itself: the diagonal may be given as 0, and is kept as infinity.
    latency : float64[D, D]
        Seconds; the diagonal is kept as 0.
    collective_fraction : float64[D, D] or None
        Fraction of the bandwidth, more than 0, that sums and gathers over copies reach (`copied`);
        None, the default, for all of it.
    link : int32[D, D]
        The number of the link that carries what one device sends another; each of 0 to L - 1 is
        there. The diagonal is -1. By default ``link[d, :] = d``.
    link_names : L of text
        Unique names. By default ``"DEVICE bus"`` for each outgoing bus, else ``"link NUMBER"``.
    machine : int32[D]
        The number of the machine that each device is in; each of 0 to M - 1 is there. By default
        one machine holds all devices.
    machine_names : M of text
        Unique names, which no device has. By default ``"machine NUMBER"``.
    queue : text
        Order in which a device runs the ops that wait for it. ``"fifo"``: first in, first out, as
        in the paper. ``"backward-first"``: ops of the update, then backward, then forward ones, and
        of these the one with the lowest number. In a step in micro-batches that op is of the
        earliest one. A step takes as long as with 1F1B (Narayanan et al. 2019), but an idle device
        starts further micro-batches, while in 1F1B it waits. Three or four micro-batches per stage
        may then be in memory, and one with 1F1B. Links are first in, first out with both.
    kinds : any number of `DeviceKind`
        Kinds for the cost model that are not in ``DEVICE_KINDS``, or that replace those; their
        names are unique.

    Examples
    --------
    >>> from placeto_graphs import parse_cluster
    >>> cluster = parse_cluster("1xcpu+2xk80")
    >>> cluster
    Cluster(cpu:0, k80:0, k80:1)
    >>> cluster.link
    array([[-1,  0,  0],
           [ 1, -1,  1],
           [ 2,  2, -1]], dtype=int32)
    >>> cluster.link_names
    ('cpu:0 bus', 'k80:0 bus', 'k80:1 bus')
    """

    devices: tuple[Device, ...]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    collective_fraction: NDArray[np.float64] | None = None
    link: NDArray[np.int32] = _DEFAULT
    link_names: tuple[str, ...] = _DEFAULT
    machine: NDArray[np.int32] = _DEFAULT
    machine_names: tuple[str, ...] = _DEFAULT
    queue: str = DEFAULT_QUEUE
    kinds: tuple[DeviceKind, ...] = ()

    def __post_init__(self) -> None:
        self._check("devices", _records, Device)
        count = self.num_devices
        if not 1 <= count <= MAX_DEVICES:
            raise GraphError(f"devices: expected 1 to {MAX_DEVICES} devices, got {count}")
        self._check("bandwidth", _between_devices, count, np.inf, FREE)
        self._check("latency", _between_devices, count, 0.0)
        missing = self.bandwidth < LEAST_BANDWIDTH
        if missing.any():
            source, destination = np.argwhere(missing)[0].tolist()
            bandwidth = self.bandwidth[source, destination]
            expected = "more than 0" if bandwidth == 0 else "at least 5.2e-290"
            raise GraphError(
                f"bandwidth[{source}, {destination}]: expected {expected} B/s, got {bandwidth}"
            )
        if self.collective_fraction is not None:
            self._check("collective_fraction", _checked_fraction, count)
        self._check("link", _checked_link, count)
        self._check("link_names", _checked_link_names, self.link, self.device_names)
        last, zeros = count - 1, np.zeros(count, np.int32)
        self._check(
            "machine", int_array, np.int32, (count,), minimum=0, maximum=last, default=zeros
        )
        machines = _without_gaps("machine", self.machine)
        default_names = default_machine_names(machines)
        self._check("machine_names", texts, machines, unique=True, default=default_names)
        custom_names = set(self.machine_names).difference(default_names)
        for name in custom_names.intersection(self.device_names):
            raise GraphError(
                f"machine_names: expected names that no device has, got {short_repr(name)}"
            )
        check_one_of("queue", text("queue", self.queue), QUEUES)
        self._check("kinds", _records, DeviceKind)

    def __repr__(self) -> str:
        return f"Cluster({', '.join(self.device_names)})"

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.devices)

    @property
    def num_links(self) -> int:
        """L, the number of links."""
        return len(self.link_names)

    @property
    def link_pairs(self) -> list[NDArray[np.int64]]:
        """L arrays int64[P, 2], the (source, destination) of each pair that a link carries."""
        pairs = np.argwhere(self.link != NO_LINK)
        of_link = compress_rows(self.num_links, self.link[tuple(pairs.T)], np.arange(len(pairs)))
        return [pairs[rows] for rows in of_link]

    @property
    def device_names(self) -> tuple[str, ...]:
        """The name of each device."""
        return tuple(device.name for device in self.devices)

    @property
    def memory_bytes(self) -> NDArray[np.int64]:
        """int64[D], the bytes that a placement may use on each device."""
        return np.array([device.memory_bytes for device in self.devices])

    @property
    def for_collectives(self) -> "Cluster":
        """The same devices, on links with the bandwidth that collectives reach."""
        if self.collective_fraction is None:
            return self
        bandwidth = self.bandwidth * self.collective_fraction
        return replace(self, bandwidth=bandwidth, collective_fraction=None)

    @property
    def accelerators(self) -> NDArray[np.intp]:
        """The indices of the devices that are no CPUs; of all devices if there are only CPUs."""
        indices = np.flatnonzero([not device.is_cpu for device in self.devices])
        return indices if len(indices) else np.arange(self.num_devices)


def _records(field: str, records: Any, record_type: type[Named]) -> tuple[Named, ...]:
    """Check records of one type, whose names are unique."""
    expected = record_type.__name__
    if not isinstance(records, list | tuple):
        raise GraphError(f"{field}: expected a sequence of {expected}, got {short_repr(records)}")
    for index, record in enumerate(records):
        if not isinstance(record, record_type):
            raise GraphError(f"{field}[{index}]: expected a {expected}, got {short_repr(record)}")
    texts(f"{field}.name", [record.name for record in records], unique=True)
    return tuple(records)


def _between_devices(
    field: str, matrix: Any, count: int, on_diagonal: float, infinity_is: str | None = None
) -> NDArray[np.float64]:
    array = float_array(field, matrix, (count, count), infinity_is=infinity_is).copy()
    np.fill_diagonal(array, on_diagonal)
    array.flags.writeable = False
    return array


def _checked_fraction(field: str, matrix: Any, count: int) -> NDArray[np.float64] | None:
    fraction = _between_devices(field, matrix, count, 1.0)
    if (fraction == 0).any():
        _, place = first_index(fraction == 0)
        raise GraphError(f"{field}{place}: expected more than 0, got 0.0")
    return None if (fraction == 1).all() else fraction


def _outgoing_buses(count: int) -> NDArray[np.int32]:
    link = np.repeat(np.arange(count, dtype=np.int32)[:, None], count, axis=1)
    np.fill_diagonal(link, NO_LINK)
    return link


def default_machine_names(count: int) -> tuple[str, ...]:
    """Return names of machines that have no others."""
    return tuple(f"machine {machine}" for machine in range(count))


def _without_gaps(field: str, indices: NDArray[np.int32]) -> int:
    """Return how many numbers there are; refuse them if one between them is missing."""
    used = np.unique(indices)
    gaps = np.flatnonzero(used != np.arange(len(used)))
    if gaps.size:
        raise GraphError(
            f"{field}: expected every number from 0 to {used[-1]}, got none that is {gaps[0]}"
        )
    return len(used)


def _checked_link(field: str, rows: Any, count: int) -> NDArray[np.int32]:
    rows = _outgoing_buses(count) if rows is None else rows
    maximum = max(count * (count - 1) - 1, NO_LINK)
    link = int_array(field, rows, np.int32, (count, count), minimum=NO_LINK, maximum=maximum)
    for source, destination in np.argwhere((link == NO_LINK) != np.eye(count, dtype=np.bool_)):
        expected = "-1 from a device to itself" if source == destination else "a link"
        raise GraphError(
            f"{field}[{source}, {destination}]: expected {expected}, "
            f"got {link[source, destination]}"
        )
    _without_gaps(field, link[link != NO_LINK])
    return link


def _checked_link_names(
    field: str, names: Any, link: NDArray[np.int32], device_names: Sequence[str]
) -> tuple[str, ...]:
    num_links = int(link.max()) + 1
    if names is None:
        if np.array_equal(link, _outgoing_buses(len(device_names))):
            names = [f"{name} bus" for name in device_names[:num_links]]
        else:
            names = [f"link {link_index}" for link_index in range(num_links)]
    return texts(field, names, num_links, unique=True)
