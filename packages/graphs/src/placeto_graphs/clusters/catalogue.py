"""The kinds of device that specs of clusters name, how they reach one another, and their sources.

The peak of a kind is that of its ordinary float32 units, as Addanki et al. (2019) trained; products
of other numbers, and of float32 that may be rounded to TensorFloat-32, have peaks of their own,
those of tensor cores where a kind has them, without sparsity. What has none is computed at the peak
of float32: bfloat16 on a V100, float16 on a K80.

A fixed cost is counted once. What an op takes on a device on top of its work, however small that
is, is its `launch_overhead`. What a device needs between two ops is its `op_overhead`, which a
simulator adds after every op: published on a K80 and its host, and on later GPUs what is left,
without the launch overhead, of the time from one empty kernel to the next.

What a copy takes on top of its bytes is either the latency of its way or the `transfer_overhead` of
its source: latencies are measured as the time per copy, one copy after the other, and nothing is
left for an overhead; a K80 and its host have the published overhead, and what they send within a
machine no latency. Between machines the latency of the network comes on top of either.
"""

from dataclasses import dataclass, replace

from placeto_graphs.schema.device_kind import DeviceKind, Efficiency

GIGABYTE = 10**9

# Addanki et al. 2019, simulator constants: measured on K80s in an Amazon p2.8xlarge. The processor
# of that machine takes the same.
K80_OP_OVERHEAD = 5.7e-6
K80_TRANSFER_OVERHEAD = 25e-6
K80_BANDWIDTH = 7.6e9

# Seconds of a V100 per kernel launch on top of the kernel's work (Zhang et al. 2020, "A Study of
# Single and Multi-device Synchronization Methods in Nvidia GPUs", table of null kernels: 1,081 ns).
# The other GPUs take the same.
GPU_LAUNCH_OVERHEAD = 1.1e-6

# Overheads between ops: the time per launch of empty kernels, one after the other in a stream, less
# `GPU_LAUNCH_OVERHEAD`.
# - V100, 4.86 us on Summit, A100, 2.31 us on Perlmutter: PETSc's benchmark
#   src/sys/objects/device/tests/ex1k.kokkos.cxx, "average asynchronous device kernel launch time".
# - H100, 2.37 us (A100 there: 2.26 us): Vellaisamy et al. 2025, "Characterizing and Optimizing LLM
#   Inference Workloads on CPU-GPU Coupled Architectures", overhead of a null kernel.
# - P100: no measurement known to us; as a V100, its successor on the same PCI Express. H200: as an
#   H100, which has the same processor (GH100).

# One GK210, half of a K80 board, as eight of them are in an Amazon p2.8xlarge. Usable memory: as
# Addanki et al. (2019) give it. Peak: the data sheet's 8.74 TFLOP/s of a board with GPU Boost (2 x
# 2,496 cores, 875 MHz, 2 FLOPs), halved; in double precision its 2.91, halved. Bandwidth: its 480
# GB/s, halved. Efficiencies: those of convolutions are fitted to the single-GPU runtimes of Addanki
# et al. (2019) by lab/costs/fit.py, the others the round figures there, with their source.
_K80 = DeviceKind(
    name="k80",
    memory_bytes=10_700_000_000,
    memory_bandwidth=240e9,
    peak_flops=4.37e12,
    peak_flops_in={"float64": 1.455e12},
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    op_overhead=K80_OP_OVERHEAD,
    transfer_overhead=K80_TRANSFER_OVERHEAD,
    efficiency=Efficiency(
        convolution=0.386,
        depthwise_convolution=0.0239,
        matrix_product=0.65,
        normalisation=0.5,
        elementwise=0.75,
        reduction=0.5,
        copy=0.6,
    ),
)

# A Tesla V100 on NVLink (SXM2). Memory, peaks, bandwidth: the data sheet's 16 GB, 15.7 TFLOP/s in
# single precision, 7.8 in double and 125 on tensor cores, which take float16 only; 900 GB/s.
# Efficiencies: that of dense convolutions is fitted by lab/costs/fit.py to a step of Inception-V3
# (259 images a second in float32, TensorFlow 1.12, Lambda Labs' benchmarks of March 2019), the
# others the K80's. It is high as cuDNN multiplies less often than a convolution's FLOPs say
# (Winograd).
_V100 = DeviceKind(
    name="v100",
    memory_bytes=16 * GIGABYTE,
    memory_bandwidth=900e9,
    peak_flops=15.7e12,
    peak_flops_in={"float64": 7.8e12, "float16": 125e12},
    launch_overhead=GPU_LAUNCH_OVERHEAD,
    op_overhead=4.86e-6 - GPU_LAUNCH_OVERHEAD,
    efficiency=replace(_K80.efficiency, convolution=0.79),
)

# An H100 on NVLink (SXM5). Memory, peaks, bandwidth: the data sheet's 80 GB, 67 TFLOP/s in FP32; on
# tensor cores 67 in FP64 and, as they are with sparsity, half of its 989 in TF32, 1,979 in BF16 and
# FP16, 3,958 in FP8 and INT8; 3.35 TB/s. Efficiencies: those of the V100, the latest GPU whose
# training steps in plain float32 we know published times of.
_H100 = replace(
    _V100,
    name="h100",
    memory_bytes=80 * GIGABYTE,
    memory_bandwidth=3350e9,
    peak_flops=67e12,
    peak_flops_in={
        "float64": 67e12,
        "tf32": 494.5e12,
        "bfloat16": 989.5e12,
        "float16": 989.5e12,
        "float8_e4m3fn": 1979e12,
        "float8_e5m2": 1979e12,
        "int8": 1979e12,
    },
    op_overhead=2.37e-6 - GPU_LAUNCH_OVERHEAD,
)

_KINDS = (
    # The processor of an Amazon p2.8xlarge with its 488 GiB: 16 cores (32 hyperthreads) of a Xeon
    # E5-2686 v4. Peak: at the base clock of 2.3 GHz, each core has two units that multiply and add
    # 8 floats at a time (AVX2 of Broadwell, Intel's optimization manual): 32 FLOPs a cycle, of
    # doubles half as many. Numbers of 16 bits have no units. Bandwidth: four channels of DDR4-2400
    # of one socket (Intel's product page of the E5-2600 v4 family). Launch overhead: none; starting
    # an op is a function call. Efficiencies: those of convolutions are fitted to the CPU-only
    # runtimes of Addanki et al. (2019) by lab/costs/fit.py, the others the round figures there.
    DeviceKind(
        name="cpu",
        memory_bytes=488 * 1024**3,
        memory_bandwidth=76.8e9,
        peak_flops=1.18e12,
        peak_flops_in={"float64": 0.59e12},
        launch_overhead=0.0,
        op_overhead=K80_OP_OVERHEAD,
        transfer_overhead=K80_TRANSFER_OVERHEAD,
        efficiency=Efficiency(
            convolution=0.167,
            depthwise_convolution=0.00201,
            matrix_product=0.5,
            normalisation=0.25,
            elementwise=0.5,
            reduction=0.25,
            copy=0.5,
        ),
    ),
    _K80,
    # A Tesla P100 on NVLink (SXM2). Memory, peaks, bandwidth: the data sheet's 16 GB, 10.6 TFLOP/s
    # in single precision, 5.3 in double and 21.2 in half precision, and 732 GB/s. Efficiencies:
    # that of dense convolutions is fitted by lab/costs/fit.py to a step of Inception-V3 (142 images
    # a second, batches of 64, TensorFlow's own benchmarks of May 2017), the others the K80's.
    replace(
        _V100,
        name="p100",
        memory_bandwidth=732e9,
        peak_flops=10.6e12,
        peak_flops_in={"float64": 5.3e12, "float16": 21.2e12},
        efficiency=replace(_K80.efficiency, convolution=0.566),
    ),
    _V100,
    # An A100 of 40 GB on NVLink (SXM4). Peaks, bandwidth: the data sheet's 19.5 TFLOP/s in FP32,
    # and on tensor cores 19.5 in FP64, 156 in TF32, 312 in BF16 and FP16, 624 in INT8; 1,555
    # GB/s.
    replace(
        _V100,
        name="a100",
        memory_bytes=40 * GIGABYTE,
        memory_bandwidth=1555e9,
        peak_flops=19.5e12,
        peak_flops_in={
            "float64": 19.5e12,
            "tf32": 156e12,
            "bfloat16": 312e12,
            "float16": 312e12,
            "int8": 624e12,
        },
        op_overhead=2.31e-6 - GPU_LAUNCH_OVERHEAD,
    ),
    _H100,
    # An H200 on NVLink (SXM): the data sheet's 141 GB and 4.8 TB/s, and the H100's peaks.
    replace(_H100, name="h200", memory_bytes=141 * GIGABYTE, memory_bandwidth=4800e9),
)
DEVICE_KINDS: dict[str, DeviceKind] = {kind.name: kind for kind in _KINDS}
"""The kinds by name."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a device of a kind reaches its peers, devices of the same kind, and the machine's memory.

    Bandwidths are bytes per second; a latency is the seconds of a copy on top of its bytes.
    """

    peer_bandwidth: float
    peer_latency: float = 0.0
    host_bandwidth: float
    host_latency: float = 0.0
    has_nvlink: bool = True  # to its peers


PCIE_3_X16 = 15.75e9  # 16 lanes of 8 GT/s, 128 bits in 130: PCI Express 3.0 specification
PCIE_4_X16 = 31.5e9  # 16 lanes of 16 GT/s: PCI Express 4.0 specification
PCIE_5_X16 = 63.0e9  # 16 lanes of 32 GT/s: PCI Express 5.0 specification

# Bandwidth of NVLink, of which half is for each direction: NVIDIA's data sheets.
#
# Latencies: NVIDIA's p2pBandwidthLatencyTest (CUDA samples), microseconds per small copy as users
# published them, about the median of all pairs. Peers: P2P enabled, writes. Host: half of the time
# without P2P, when a copy goes through the memory of the host and so is two.
# - P100: 1.35 (four of them).
# - V100: 2.65 and 22 (DGX-2, V100-SXM3-32GB).
# - A100: 2.85 and 23.5 (eight A100-SXM4-80GB).
# - H100: 2.75 and 16.5 (eight H100 80GB HBM3).
# - To the host, a P100 is taken to need as long as a V100, and an H200 all as an H100.
_V100_WAYS = Ways(
    peer_bandwidth=150e9, peer_latency=2.65e-6, host_bandwidth=PCIE_3_X16, host_latency=11e-6
)
_H100_WAYS = Ways(
    peer_bandwidth=450e9, peer_latency=2.75e-6, host_bandwidth=PCIE_5_X16, host_latency=8.25e-6
)
WAYS: dict[str, Ways] = {
    # The two processors of the host are joined by QPI of 9.6 GT/s, 2 bytes at a time. What joins
    # them to another device is limited by that device's link.
    "cpu": Ways(peer_bandwidth=19.2e9, host_bandwidth=PCIE_5_X16, has_nvlink=False),
    "k80": Ways(peer_bandwidth=K80_BANDWIDTH, host_bandwidth=K80_BANDWIDTH, has_nvlink=False),
    "p100": replace(_V100_WAYS, peer_bandwidth=80e9, peer_latency=1.35e-6),
    "v100": _V100_WAYS,
    "a100": Ways(
        peer_bandwidth=300e9, peer_latency=2.85e-6, host_bandwidth=PCIE_4_X16, host_latency=11.75e-6
    ),
    "h100": _H100_WAYS,
    "h200": _H100_WAYS,
}


@dataclass(frozen=True)
class Network:
    """What joins machines: the network card of one, and the way that a message takes from there."""

    bandwidth: float  # bytes per second
    latency: float  # seconds of a message, on top of its bytes
    through_hosts: bool  # through the memory of both hosts, or from device to device


# Bandwidths: the names are bits per second, of data. Latency of Ethernet: about 10 us for 8 bytes
# over MPI without RDMA (University of New Mexico's comparison of EDR InfiniBand with 100 Gb/s
# Ethernet, OSU benchmarks). Latency of InfiniBand between the memories of GPUs (GPUDirect RDMA):
# what NVIDIA's NCCL counts for a hop over the network (src/graph/tuning.cc, ring, simple: 9.6 us).
_ETHERNET_LATENCY, _INFINIBAND_LATENCY = 10e-6, 9.6e-6
NETWORKS = {
    "ethernet-10g": Network(1.25e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-25g": Network(3.125e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-100g": Network(12.5e9, _ETHERNET_LATENCY, through_hosts=True),
    "infiniband-edr": Network(12.5e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-hdr": Network(25e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-ndr": Network(50e9, _INFINIBAND_LATENCY, through_hosts=False),
}
WITHIN = ("bus", "nvlink", "pcie", "pcie-shared")
LINK_NAMES = (*WITHIN, *NETWORKS)
"""What `parse_cluster` knows as ``link``: within machines, and between them."""
DEFAULT_NETWORK = "ethernet-10g"  # that of the Amazon p2.8xlarge
