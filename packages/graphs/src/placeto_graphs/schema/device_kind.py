"""Numbers from which the time of an op on a kind of device follows if it was not measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from placeto_graphs.errors import GraphError, one_of, shown
from placeto_graphs.schema.arrays import Record, above_0, integer, number, text

PRECISIONS = (
    *("tf32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("uint8", "int8", "int16", "int32", "int64"),
)
"""What a device may have a peak for besides float32: dtypes of torch, and TensorFloat-32."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The part of a device's peak FLOP/s and memory bandwidth that each class of op reaches.

    All are above 0 and at most 1.

    Examples
    --------
    >>> from placeto_graphs import DEVICE_KINDS
    >>> DEVICE_KINDS["k80"].efficiency.matrix_product
    0.65
    """

    convolution: float
    depthwise_convolution: float
    matrix_product: float
    normalisation: float
    elementwise: float
    reduction: float
    copy: float

    def __post_init__(self) -> None:
        for part in fields(self):
            value = number(part.name, getattr(self, part.name))
            if not 0 < value <= 1:
                raise GraphError(f"{part.name}: expected more than 0 and at most 1, got {value}")


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
        Parts of the peak and the bandwidth that each class of op reaches, in any precision.

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

    def __post_init__(self) -> None:
        self._check("name", text)
        self._check("memory_bytes", integer, minimum=1)
        self._check("memory_bandwidth", above_0)
        self._check("peak_flops", above_0)
        self._check("peak_flops_in", _peaks)
        for overhead in ("launch_overhead", "op_overhead", "transfer_overhead"):
            self._check(overhead, number)
        if not isinstance(self.efficiency, Efficiency):
            raise GraphError(f"efficiency: expected Efficiency, got {shown(self.efficiency)}")

    def __repr__(self) -> str:
        return f"DeviceKind({self.name!r})"

    def at_speed(self, speed: float) -> "DeviceKind":
        """Return the kind with all of its ops, and what is between them, so many times as fast.

        Examples
        --------
        >>> from placeto_graphs import DEVICE_KINDS
        >>> DEVICE_KINDS["rtx3090"].at_speed(0.5).memory_bandwidth
        468000000000.0
        """
        if above_0("speed", speed) == 1:
            return self
        return replace(
            self,
            memory_bandwidth=self.memory_bandwidth * speed,
            peak_flops=self.peak_flops * speed,
            peak_flops_in={dtype: peak * speed for dtype, peak in self.peak_flops_in.items()},
            launch_overhead=self.launch_overhead / speed,
            op_overhead=self.op_overhead / speed,
        )


def _peaks(field: str, given: Any) -> Mapping[str, float]:
    if not isinstance(given, Mapping):
        raise GraphError(f"{field}: expected a mapping of dtypes to numbers, got {shown(given)}")
    for name in given:
        one_of(field, name, PRECISIONS)
    return MappingProxyType({name: above_0(f"{field}.{name}", given[name]) for name in given})
