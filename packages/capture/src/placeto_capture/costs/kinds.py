"""The kinds of device whose costs are known, with the source of every number.

The peak of a kind is that of its ordinary float32 units, as Addanki et al. (2019) trained; products
of other numbers, and of float32 that may be rounded to TensorFloat-32, have peaks of their own,
those of tensor cores where a kind has them, without sparsity. What has none is computed at the peak
of float32: bfloat16 on a V100, float16 on a K80.

An op's fixed cost has two parts, and each is counted once. The launch overhead here is what an op
takes on the device on top of its work, however small that is. What a device needs between two ops
is the `op_overhead` of a cluster's device, which a simulator adds after every op: published on a
K80 and its host (5.7 microseconds, Addanki et al. 2019), and on later GPUs what is left, without
the launch overhead, of the time from one empty kernel to the next. That number and the memory of
each kind, with their sources, are those of the devices that `parse_cluster` makes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf

from placeto_capture.errors import CaptureError
from placeto_graphs import parse_cluster


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The part of a device's peak FLOP/s and memory bandwidth that each class of op reaches.

    The fields are named as the classes of `OpClass` are; all are above 0 and at most 1.

    Raises
    ------
    CaptureError
        If a number is out of range.

    Examples
    --------
    >>> K80.efficiency.matrix_product
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
            value = getattr(self, part.name)
            if not 0 < value <= 1:
                raise CaptureError(
                    f"{part.name}: expected an efficiency above 0 and at most 1, got {value}"
                )


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """What the time of an op on a kind of device follows from.

    Attributes
    ----------
    name : text
        As clusters name the kind: ``"k80"``.
    peak_flops : float
        Float32 operations per second.
    memory_bandwidth : float
        Bytes per second between the device and its memory.
    launch_overhead : float
        Seconds that an op takes on top of its work.
    memory_bytes : int
        Bytes that a placement may use.
    efficiency : `Efficiency`
        Parts of the peak and the bandwidth that each class of op reaches, in any precision.
    peak_flops_in : mapping of text to float
        Operations per second on other numbers than float32, by the name of their torch dtype, and
        on float32 rounded to TensorFloat-32 by ``"tf32"``.

    Raises
    ------
    CaptureError
        If a number is out of range.

    Examples
    --------
    >>> DEVICE_KINDS["k80"].memory_bytes
    10700000000
    >>> DEVICE_KINDS["a100"].peak_flops_in["bfloat16"]
    312000000000000.0
    """

    name: str
    peak_flops: float
    memory_bandwidth: float
    launch_overhead: float
    memory_bytes: int
    efficiency: Efficiency
    peak_flops_in: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        positive = {
            "peak_flops": self.peak_flops,
            "memory_bandwidth": self.memory_bandwidth,
            "memory_bytes": self.memory_bytes,
            **{f"peak_flops_in[{name!r}]": peak for name, peak in self.peak_flops_in.items()},
        }
        for name, value in positive.items():
            if not 0 < value < inf:
                raise CaptureError(f"{name}: expected a finite number above 0, got {value}")
        if not 0 <= self.launch_overhead < inf:
            raise CaptureError(
                f"launch_overhead: expected a finite number >= 0, got {self.launch_overhead}"
            )


def _memory_bytes(kind: str) -> int:
    """Return the bytes that the specs of clusters have for a kind."""
    return parse_cluster(f"1x{kind}").devices[0].memory_bytes


GPU_LAUNCH_OVERHEAD = 1.1e-6
"""Seconds of a V100 per kernel launch on top of the kernel's work (Zhang et al. 2020, "A Study of
Single and Multi-device Synchronization Methods in Nvidia GPUs", table of null kernels: 1,081 ns).
The other GPUs take the same."""

K80 = DeviceKind(
    name="k80",
    peak_flops=4.37e12,
    memory_bandwidth=240e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("k80"),
    efficiency=Efficiency(
        convolution=0.386,
        depthwise_convolution=0.0239,
        matrix_product=0.65,
        normalisation=0.5,
        elementwise=0.75,
        reduction=0.5,
        copy=0.6,
    ),
    peak_flops_in={"float64": 1.455e12},
)
"""One GK210, half of a K80 board, as eight of them are in an Amazon p2.8xlarge.

Peak: the data sheet's 8.74 TFLOP/s of a board with GPU Boost (2 x 2,496 cores, 875 MHz, 2 FLOPs),
halved; in double precision its 2.91, halved. Bandwidth: its 480 GB/s, halved. Efficiencies: those
of convolutions are fitted to the single-GPU runtimes of Addanki et al. (2019) by
``lab/costs/fit.py``, the others the round figures that stand there with their source.
"""

P100 = DeviceKind(
    name="p100",
    peak_flops=10.6e12,
    memory_bandwidth=732e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("p100"),
    efficiency=replace(K80.efficiency, convolution=0.566),
    peak_flops_in={"float64": 5.3e12, "float16": 21.2e12},
)
"""A Tesla P100 on NVLink (SXM2).

Peaks, bandwidth: the data sheet's 10.6 TFLOP/s in single precision, 5.3 in double and 21.2 in half
precision, and 732 GB/s. Efficiencies: that of dense convolutions is fitted by
``lab/costs/fit.py`` to a step of Inception-V3 (142 images a second, batches of 64,
TensorFlow's own benchmarks of May 2017), the others the K80's.
"""

V100 = DeviceKind(
    name="v100",
    peak_flops=15.7e12,
    memory_bandwidth=900e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("v100"),
    efficiency=replace(K80.efficiency, convolution=0.79),
    peak_flops_in={"float64": 7.8e12, "float16": 125e12},
)
"""A Tesla V100 on NVLink (SXM2).

Peaks, bandwidth: the data sheet's 15.7 TFLOP/s in single precision, 7.8 in double and 125 on tensor
cores, which take float16 only; 900 GB/s. Efficiencies: that of dense convolutions is fitted by
``lab/costs/fit.py`` to a step of Inception-V3 (259 images a second in float32,
TensorFlow 1.12, Lambda Labs' benchmarks of March 2019), the others the K80's. It is high as cuDNN
multiplies less often than a convolution's FLOPs say (Winograd).
"""

HOPPER_PEAKS = {
    "float64": 67e12,
    "tf32": 494.5e12,
    "bfloat16": 989.5e12,
    "float16": 989.5e12,
    "float8_e4m3fn": 1979e12,
    "float8_e5m2": 1979e12,
    "int8": 1979e12,
}
"""Tensor cores of H100 and H200 (SXM): the data sheets' 67 TFLOP/s in FP64 and, as they are with
sparsity, half of their 989 in TF32, 1,979 in BF16 and FP16, 3,958 in FP8 and INT8."""

A100 = DeviceKind(
    name="a100",
    peak_flops=19.5e12,
    memory_bandwidth=1555e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("a100"),
    efficiency=V100.efficiency,
    peak_flops_in={
        "float64": 19.5e12,
        "tf32": 156e12,
        "bfloat16": 312e12,
        "float16": 312e12,
        "int8": 624e12,
    },
)
"""An A100 of 40 GB on NVLink (SXM4).

Peaks, bandwidth: the data sheet's 19.5 TFLOP/s in FP32, and on tensor cores 19.5 in FP64,
156 in TF32, 312 in BF16 and FP16, 624 in INT8; 1,555 GB/s. Efficiencies: those of the V100, the
latest GPU whose training steps in plain float32 we know published times of.
"""

H100 = DeviceKind(
    name="h100",
    peak_flops=67e12,
    memory_bandwidth=3350e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("h100"),
    efficiency=V100.efficiency,
    peak_flops_in=HOPPER_PEAKS,
)
"""An H100 on NVLink (SXM5).

Peak, bandwidth: the data sheet's 67 TFLOP/s in FP32 and 3.35 TB/s. Efficiencies:
those of the V100, as for the A100.
"""

H200 = DeviceKind(
    name="h200",
    peak_flops=67e12,
    memory_bandwidth=4800e9,
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    memory_bytes=_memory_bytes("h200"),
    efficiency=V100.efficiency,
    peak_flops_in=HOPPER_PEAKS,
)
"""An H200 on NVLink (SXM).

Peak, bandwidth: the data sheet's 67 TFLOP/s in FP32 and 4.8 TB/s. Efficiencies:
those of the V100, as for the A100.
"""

CPU = DeviceKind(
    name="cpu",
    peak_flops=1.18e12,
    memory_bandwidth=76.8e9,
    launch_overhead=0.0,
    memory_bytes=_memory_bytes("cpu"),
    efficiency=Efficiency(
        convolution=0.167,
        depthwise_convolution=0.00201,
        matrix_product=0.5,
        normalisation=0.25,
        elementwise=0.5,
        reduction=0.25,
        copy=0.5,
    ),
    peak_flops_in={"float64": 0.59e12},
)
"""The processor of an Amazon p2.8xlarge: 16 cores (32 hyperthreads) of a Xeon E5-2686 v4.

Peak: 16 cores at the base clock of 2.3 GHz, each with two units that multiply and add 8 floats at a
time (AVX2 of Broadwell, Intel's optimization manual): 32 FLOPs a cycle, of doubles half as many.
Numbers of 16 bits have no units. Bandwidth: four channels of DDR4-2400 of one socket (Intel's
product page of the E5-2600 v4 family). Launch overhead: none; starting an op is a function call,
and what the executor does between two ops is the cluster's `op_overhead`. Efficiencies: those of
convolutions are fitted to the CPU-only runtimes of Addanki et al. (2019) by
``lab/costs/fit.py``, the others the round figures that stand there.
"""

DEVICE_KINDS: dict[str, DeviceKind] = {
    kind.name: kind for kind in (CPU, K80, P100, V100, A100, H100, H200)
}
"""The kinds by name."""
