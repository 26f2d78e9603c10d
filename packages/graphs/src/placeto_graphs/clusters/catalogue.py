"""The kinds of device that specs of clusters name, how they reach one another, and their sources.

The peak of a kind is that of its float32 units, in which Addanki et al. (2019) trained. Products in
other precisions, TensorFloat-32 among them, have peaks of their own: those of tensor cores, if a
kind has them, without sparsity. A precision without a peak is computed at the peak of float32, such
as bfloat16 on a V100 and float16 on a K80.

Each fixed cost is counted once. The `launch_overhead` is the time that every op takes on top of its
work. The `op_overhead` is the time that a device needs between two ops; a simulator adds it after
every op. It is published for a K80 and its host. For later GPUs it is the time from one empty
kernel to the next, less the launch overhead.

A copy takes some time on top of its bytes: either the latency between its devices or the
`transfer_overhead` of its source. Latencies are measured as the time per copy, one copy after the
other, so that they include the overhead. A K80 and its host have the published overhead instead,
and no latency within a machine. Between machines the latency of the network is added to either.

Kinds whose numbers need an explanation come first. Tables with a row for each further card, Mac and
processor follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placeto_graphs.schema.device_kind import DeviceKind, Efficiency

GIGABYTE = 10**9

PCIE_3_X16 = 15.75e9  # 16 lanes of 8 GT/s, 128 bits in 130: PCI Express 3.0 specification
PCIE_4_X16 = 31.5e9  # 16 lanes of 16 GT/s: PCI Express 4.0 specification
PCIE_5_X16 = 63.0e9  # 16 lanes of 32 GT/s: PCI Express 5.0 specification

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
#   H100, which has the same processor (GH100). All of the tables: as an A100, none known to us.

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

# An A100 of 40 GB on NVLink (SXM4). Peaks, bandwidth: the data sheet's 19.5 TFLOP/s in FP32,
# and on tensor cores 19.5 in FP64, 156 in TF32, 312 in BF16 and FP16, 624 in INT8; 1,555
# GB/s.
_A100 = replace(
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

# The processor of an Amazon p2.8xlarge with its 488 GiB: 16 cores (32 hyperthreads) of a Xeon
# E5-2686 v4. Peak: at the base clock of 2.3 GHz, each core has two units that multiply and add
# 8 floats at a time (AVX2 of Broadwell, Intel's optimization manual): 32 FLOPs a cycle, of
# doubles half as many. Numbers of 16 bits have no units. Bandwidth: four channels of DDR4-2400
# of one socket (Intel's product page of the E5-2600 v4 family). Launch overhead: none; starting
# an op is a function call. Efficiencies: those of convolutions are fitted to the CPU-only
# runtimes of Addanki et al. (2019) by lab/costs/fit.py, the others the round figures there.
_CPU = DeviceKind(
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
)

_KINDS = (
    _CPU,
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
    replace(_V100, name="v100-32gb", memory_bytes=32 * GIGABYTE),
    _A100,
    # The one of 80 GB: 2,039 GB/s.
    replace(_A100, name="a100-80gb", memory_bytes=80 * GIGABYTE, memory_bandwidth=2039e9),
    _H100,
    # An H200 on NVLink (SXM): the data sheet's 141 GB and 4.8 TB/s, and the H100's peaks.
    replace(_H100, name="h200", memory_bytes=141 * GIGABYTE, memory_bandwidth=4800e9),
)
# Cards on PCI Express. Peaks of products, as multiples of that of float32: what the tensor cores of
# a multiprocessor do without sparsity in the time of its ordinary units. Those of GeForce cards add
# up in float32 at half the rate of the others.
# - Turing: NVIDIA's Turing whitepaper, data sheet of the T4. Ampere: GA102 whitepaper, data sheet
#   of the A10. Ada: Ada whitepaper, data sheets of L4, L40S and RTX 6000 Ada. Blackwell: RTX
#   Blackwell whitepaper. CDNA 3: AMD's data sheet of the MI300X.
# - In float64, GPUs without units for it: NVIDIA's CUDA programming guide, throughput of arithmetic
#   instructions.
_TURING = {"float64": 1 / 32, "float16": 8, "int8": 16}
_GEFORCE_TURING = _TURING | {"float16": 4}
_GEFORCE_AMPERE = {"float64": 1 / 64, "tf32": 1, "float16": 2, "bfloat16": 2, "int8": 8}
_AMPERE = _GEFORCE_AMPERE | {"tf32": 2, "float16": 4, "bfloat16": 4}
_GEFORCE_ADA = _GEFORCE_AMPERE | {"float8_e4m3fn": 4, "float8_e5m2": 4}
_ADA = _AMPERE | {"float8_e4m3fn": 8, "float8_e5m2": 8}
_GEFORCE_BLACKWELL = _GEFORCE_ADA | {"float4_e2m1fn_x2": 16}
_CDNA_3 = {"float64": 1, "tf32": 4, "float16": 8, "bfloat16": 8, "int8": 16}
_CDNA_3 |= {"float8_e4m3fnuz": 16, "float8_e5m2fnuz": 16}
# Memory, bandwidth, float32 and PCI Express: NVIDIA's data sheets and product pages.
_CARDS = (
    # name, GB, GB/s, TFLOP/s in float32, peaks of products, bytes per second to the host
    ("k40", 12, 288, 4.29, {"float64": 1 / 3}, PCIE_3_X16),
    ("p40", 24, 346, 11.8, {"float64": 1 / 32, "int8": 4}, PCIE_3_X16),
    ("t4", 16, 320, 8.1, _TURING, PCIE_3_X16),
    ("rtx2080", 8, 448, 10.1, _GEFORCE_TURING, PCIE_3_X16),
    ("titan-rtx", 24, 672, 16.3, _TURING, PCIE_3_X16),
    ("rtx3060", 12, 360, 12.7, _GEFORCE_AMPERE, PCIE_4_X16),
    ("rtx3080", 10, 760, 29.8, _GEFORCE_AMPERE, PCIE_4_X16),
    ("rtx3090", 24, 936, 35.6, _GEFORCE_AMPERE, PCIE_4_X16),
    ("rtx3090ti", 24, 1008, 40.0, _GEFORCE_AMPERE, PCIE_4_X16),
    ("a10", 24, 600, 31.2, _AMPERE, PCIE_4_X16),
    ("rtx4060ti", 16, 288, 22.1, _GEFORCE_ADA, PCIE_4_X16 / 2),  # of 16 GB; it has 8 lanes
    ("rtx4090", 24, 1008, 82.6, _GEFORCE_ADA, PCIE_4_X16),
    ("l4", 24, 300, 30.3, _ADA, PCIE_4_X16),
    ("l40s", 48, 864, 91.6, _ADA, PCIE_4_X16),
    ("rtx6000ada", 48, 960, 91.1, _ADA, PCIE_4_X16),
    ("rtx5090", 32, 1792, 104.8, _GEFORCE_BLACKWELL, PCIE_5_X16),
    ("mi300x", 192, 5300, 163.4, _CDNA_3, PCIE_5_X16),
)

# Macs, the GPU of each, and the largest memory that it is sold with: Apple's product pages.
# Float32: Apple's too for M1 and M2; later ones are 256 FLOPs a cycle of each core, at the clocks
# that hmc-tech.com lists (M3 1.398 GHz, M4 1.47, M4 Pro and Max 1.678). Numbers of 16 bits are no
# faster.
_MACS = (
    # name, GB, GB/s, TFLOP/s in float32
    ("m1", 16, 68.3, 2.6),
    ("m1-max", 64, 400, 10.4),
    ("m1-ultra", 128, 800, 21),
    ("m2", 24, 100, 3.6),
    ("m2-max", 96, 400, 13.6),
    ("m2-ultra", 192, 800, 27.2),
    ("m3", 24, 100, 3.6),
    ("m3-max", 128, 400, 14.3),
    ("m3-ultra", 512, 819, 28.6),
    ("m4", 32, 120, 3.8),
    ("m4-pro", 64, 273, 8.6),
    ("m4-max", 128, 546, 17.2),
)
# macOS gives the GPU two thirds of up to 32 GB, and three quarters of more: what Metal returns as
# recommendedMaxWorkingSetSize (llama.cpp's issues 687 of its Python binding, 1870 and 2011).
_MOST_OF_TWO_THIRDS = 32

# Processors by their memory, in the machine of its makers' product pages: bandwidth is channels x
# transfers x 8 bytes, the peak is cores x base clock x FLOPs a cycle, as of `cpu`. A desktop has
# 64 GB here, a server 512 GB: say what yours has in a cluster file.
# - cpu-ddr4-2ch: DDR4-3200, Ryzen 7 5800X, 8 cores of 3.8 GHz, 32 FLOPs.
# - cpu-ddr4-8ch: DDR4-3200, Xeon Platinum 8380, 40 cores of 2.3 GHz, 64 FLOPs (AVX-512).
# - cpu-ddr5-2ch: DDR5-5200, Ryzen 7 7700X, 8 cores of 4.5 GHz, 32 FLOPs.
# - cpu-ddr5-8ch: DDR5-4800, Xeon Platinum 8480+, 56 cores of 2.0 GHz, 64 FLOPs; on matrix units
#   (AMX) 1,024 in bfloat16 and 2,048 in int8.
_AMX = {"bfloat16": 16, "int8": 32}
_PROCESSORS: tuple[tuple[str, float, float, float, dict[str, int], float | None], ...] = (
    # name, GB, GB/s, TFLOP/s in float32, peaks of products, bytes per second between two sockets
    ("cpu-ddr4-2ch", 64, 51.2, 0.97, {}, None),
    ("cpu-ddr4-8ch", 512, 204.8, 5.9, {}, 67.2e9),  # three UPI of 11.2 GT/s, 2 bytes at a time
    ("cpu-ddr5-2ch", 64, 83.2, 1.15, {}, None),
    ("cpu-ddr5-8ch", 512, 307.2, 7.2, _AMX, 128e9),  # four UPI of 16 GT/s
)


def _row(
    like: DeviceKind,
    name: str,
    gigabytes: float,
    bandwidth: float,
    teraflops: float,
    peaks: Mapping[str, float],
) -> DeviceKind:
    """Return the kind of a row; its overheads and efficiencies are those of another one."""
    return replace(
        like,
        name=name,
        memory_bytes=round(gigabytes * GIGABYTE),
        memory_bandwidth=bandwidth * 1e9,
        peak_flops=teraflops * 1e12,
        peak_flops_in={dtype: times * teraflops * 1e12 for dtype, times in peaks.items()},
        transfer_overhead=0.0,
    )


DEVICE_KINDS: dict[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        *_KINDS,
        *(_row(_A100, *card[:5]) for card in _CARDS),
        *(
            _row(_A100, name, gb * (2 / 3 if gb <= _MOST_OF_TWO_THIRDS else 3 / 4), speed, peak, {})
            for name, gb, speed, peak in _MACS
        ),
        *(_row(_CPU, *processor[:4], {"float64": 0.5} | processor[4]) for processor in _PROCESSORS),
    )
}
"""The kinds by name."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a device of a kind reaches its peers, devices of the same kind, and the machine's memory.

    Bandwidths are bytes per second; a latency is the seconds of a copy on top of its bytes.
    """

    host_bandwidth: float
    host_latency: float = 0.0
    peer_bandwidth: float | None = None  # None: peers are reached through the host
    peer_latency: float = 0.0
    has_nvlink: bool = False  # to its peers
    is_machine: bool = False  # of its own, as a Mac, which takes no further devices


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
# - RTX 3090: 14.8 between two without P2P (eight of them, issue 1127 of NCCL). The other cards on
#   PCI Express are taken to need as long: those of GeForce reach each other through the host alone.
# - MI300X: Infinity Fabric has 128 GB/s for each pair, of which half is for each direction (data
#   sheet). That is what its outgoing bus has here, whatever it sends to several.
_V100_WAYS = Ways(
    host_bandwidth=PCIE_3_X16,
    host_latency=11e-6,
    peer_bandwidth=150e9,
    peer_latency=2.65e-6,
    has_nvlink=True,
)
_A100_WAYS = replace(
    _V100_WAYS,
    host_bandwidth=PCIE_4_X16,
    host_latency=11.75e-6,
    peer_bandwidth=300e9,
    peer_latency=2.85e-6,
)
_H100_WAYS = replace(
    _V100_WAYS,
    host_bandwidth=PCIE_5_X16,
    host_latency=8.25e-6,
    peer_bandwidth=450e9,
    peer_latency=2.75e-6,
)
CARD_WAYS = Ways(host_bandwidth=PCIE_4_X16, host_latency=7.4e-6)
"""Those of a card on PCI Express of which nothing else is known."""
WAYS: dict[str, Ways] = {
    # The two processors of the host are joined by QPI of 9.6 GT/s, 2 bytes at a time. What joins
    # them to another device is limited by that device's link.
    "cpu": Ways(host_bandwidth=PCIE_5_X16, peer_bandwidth=19.2e9),
    "k80": Ways(host_bandwidth=K80_BANDWIDTH),
    "p100": replace(_V100_WAYS, peer_bandwidth=80e9, peer_latency=1.35e-6),
    "v100": _V100_WAYS,
    "v100-32gb": _V100_WAYS,
    "a100": _A100_WAYS,
    "a100-80gb": _A100_WAYS,
    "h100": _H100_WAYS,
    "h200": _H100_WAYS,
    **{name: replace(CARD_WAYS, host_bandwidth=to_host) for name, *_, to_host in _CARDS},
    "mi300x": replace(
        CARD_WAYS, host_bandwidth=PCIE_5_X16, peer_bandwidth=64e9, peer_latency=7.4e-6
    ),
    # The GPU of a Mac has the memory of its host.
    **{name: Ways(host_bandwidth=speed * 1e9, is_machine=True) for name, _, speed, _ in _MACS},
    **{
        name: Ways(host_bandwidth=speed * 1e9, peer_bandwidth=between)
        for name, _, speed, *_, between in _PROCESSORS
    },
}


@dataclass(frozen=True)
class Network:
    """The interconnect of machines: a network card, and the path of a message from there."""

    bandwidth: float  # bytes per second
    latency: float  # seconds of a message, on top of its bytes
    through_hosts: bool  # through the memory of both hosts, or from device to device


# Bandwidths: the names are bits per second, of data. Latency of Ethernet: about 10 us for 8 bytes
# over MPI without RDMA (University of New Mexico's comparison of EDR InfiniBand with 100 Gb/s
# Ethernet, OSU benchmarks); up to 2.5 Gb/s 35 us, that of a network card which gathers interrupts
# (NW-GRID's "Gigabit Ethernet MPI Performance Tests", Broadcom BCM5715, its defaults). Latency of
# InfiniBand between the memories of GPUs (GPUDirect RDMA): what NVIDIA's NCCL counts for a hop over
# the network (src/graph/tuning.cc, ring, simple: 9.6 us). Thunderbolt 3 and 4 have 40 Gb/s, 5 has
# 80 (Intel); IP over it takes about 300 us, RDMA less than 50 (reports on Apple's TN3205).
_ETHERNET_LATENCY, _INFINIBAND_LATENCY, _THUNDERBOLT_LATENCY = 10e-6, 9.6e-6, 300e-6
_SLOW_ETHERNET_LATENCY = 35e-6
NETWORKS = {
    "ethernet-1g": Network(0.125e9, _SLOW_ETHERNET_LATENCY, through_hosts=True),
    "ethernet-2.5g": Network(0.3125e9, _SLOW_ETHERNET_LATENCY, through_hosts=True),
    "ethernet-10g": Network(1.25e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-25g": Network(3.125e9, _ETHERNET_LATENCY, through_hosts=True),
    "ethernet-100g": Network(12.5e9, _ETHERNET_LATENCY, through_hosts=True),
    "infiniband-edr": Network(12.5e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-hdr": Network(25e9, _INFINIBAND_LATENCY, through_hosts=False),
    "infiniband-ndr": Network(50e9, _INFINIBAND_LATENCY, through_hosts=False),
    "thunderbolt-4": Network(5e9, _THUNDERBOLT_LATENCY, through_hosts=True),
    "thunderbolt-5": Network(10e9, _THUNDERBOLT_LATENCY, through_hosts=True),
}
SLOTS = {
    f"pcie-{generation}-x{lanes}": bandwidth * lanes / 16
    for generation, bandwidth in ((3, PCIE_3_X16), (4, PCIE_4_X16), (5, PCIE_5_X16))
    for lanes in (4, 8, 16)
}
"""Bytes per second of slots of PCI Express, as names of links."""
WITHIN = ("bus", "nvlink", "pcie", "pcie-shared", *SLOTS)
LINK_NAMES = (*WITHIN, *NETWORKS)
"""What `parse_cluster` knows as ``link``: within machines, and between them."""
DEFAULT_NETWORK = "ethernet-10g"  # that of the Amazon p2.8xlarge
