"""What the spec of a cluster assumes of devices and links, with the source of every number.

A fixed cost is counted once. What an op takes on a device on top of its work is part of its compute
time, `launch_overhead` of placeto-capture, so it is taken off the published time per launch here.
What a copy takes on top of its bytes is either the latency of its way or the `transfer_overhead` of
its source: latencies are measured as the time per copy, one copy after the other, and nothing is
left for an overhead; a K80 and its host have the published overhead, and what they send within a
machine no latency. Between machines the latency of the network comes on top of either.
"""

from dataclasses import dataclass, replace

GIGABYTE = 10**9

# Addanki et al. 2019, simulator constants: measured on K80s in an Amazon p2.8xlarge. The processor
# of that machine takes the same.
K80_OP_OVERHEAD = 5.7e-6
K80_TRANSFER_OVERHEAD = 25e-6
K80_BANDWIDTH = 7.6e9

PCIE_3_X16 = 15.75e9  # 16 lanes of 8 GT/s, 128 bits in 130: PCI Express 3.0 specification
PCIE_4_X16 = 31.5e9  # 16 lanes of 16 GT/s: PCI Express 4.0 specification
PCIE_5_X16 = 63.0e9  # 16 lanes of 32 GT/s: PCI Express 5.0 specification

# Of each launch, what `GPU_LAUNCH_OVERHEAD` of placeto-capture counts as part of the op.
LAUNCH = 1.1e-6


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """What is assumed of a kind of device, in bytes, seconds and bytes per second.

    A peer is another device of the same kind, the host the memory of the machine; a latency is what
    a copy takes on top of its bytes.
    """

    memory_bytes: int  # that a placement may use
    op_overhead: float  # between two ops
    transfer_overhead: float = 0.0  # for which a link stays busy after a transfer from the device
    peer_bandwidth: float
    peer_latency: float = 0.0
    host_bandwidth: float
    host_latency: float = 0.0
    has_nvlink: bool = True  # to its peers


# Memory and bandwidth of NVLink, of which half is for each direction: NVIDIA's data sheets.
#
# Overheads between ops: the time per launch of empty kernels, one after the other in a stream, less
# `LAUNCH`.
# - V100, 4.86 us on Summit, A100, 2.31 us on Perlmutter: PETSc's benchmark
#   src/sys/objects/device/tests/ex1k.kokkos.cxx, "average asynchronous device kernel launch time".
# - H100, 2.37 us (A100 there: 2.26 us): Vellaisamy et al. 2025, "Characterizing and Optimizing LLM
#   Inference Workloads on CPU-GPU Coupled Architectures", overhead of a null kernel.
# - P100: no measurement known to us; as a V100, its successor on the same PCI Express. H200: as an
#   H100, which has the same processor (GH100).
#
# Latencies: NVIDIA's p2pBandwidthLatencyTest (CUDA samples), microseconds per small copy as users
# published them, about the median of all pairs. Peers: P2P enabled, writes. Host: half of the time
# without P2P, when a copy goes through the memory of the host and so is two.
# - P100: 1.35 (four of them).
# - V100: 2.65 and 22 (DGX-2, V100-SXM3-32GB).
# - A100: 2.85 and 23.5 (eight A100-SXM4-80GB).
# - H100: 2.75 and 16.5 (eight H100 80GB HBM3).
# - To the host, a P100 is taken to need as long as a V100, and an H200 all as an H100.
_V100 = DeviceKind(
    memory_bytes=16 * GIGABYTE,
    op_overhead=4.86e-6 - LAUNCH,
    peer_bandwidth=150e9,
    peer_latency=2.65e-6,
    host_bandwidth=PCIE_3_X16,
    host_latency=11e-6,
)
_H100 = DeviceKind(
    memory_bytes=80 * GIGABYTE,
    op_overhead=2.37e-6 - LAUNCH,
    peer_bandwidth=450e9,
    peer_latency=2.75e-6,
    host_bandwidth=PCIE_5_X16,
    host_latency=8.25e-6,
)
DEVICE_KINDS: dict[str, DeviceKind] = {
    # The host of an Amazon p2.8xlarge, two Xeon E5-2686 v4 with 488 GiB: QPI of 9.6 GT/s, 2 bytes
    # at a time, joins them. What joins them to another device is limited by that device's link.
    "cpu": DeviceKind(
        memory_bytes=488 * 1024**3,
        op_overhead=K80_OP_OVERHEAD,
        transfer_overhead=K80_TRANSFER_OVERHEAD,
        peer_bandwidth=19.2e9,
        host_bandwidth=PCIE_5_X16,
        has_nvlink=False,
    ),
    # One of the two GPUs of a K80 board; usable memory as Addanki et al. (2019) give it.
    "k80": DeviceKind(
        memory_bytes=10_700_000_000,
        op_overhead=K80_OP_OVERHEAD,
        transfer_overhead=K80_TRANSFER_OVERHEAD,
        peer_bandwidth=K80_BANDWIDTH,
        host_bandwidth=K80_BANDWIDTH,
        has_nvlink=False,
    ),
    "p100": replace(_V100, peer_bandwidth=80e9, peer_latency=1.35e-6),
    "v100": _V100,
    "a100": DeviceKind(
        memory_bytes=40 * GIGABYTE,
        op_overhead=2.31e-6 - LAUNCH,
        peer_bandwidth=300e9,
        peer_latency=2.85e-6,
        host_bandwidth=PCIE_4_X16,
        host_latency=11.75e-6,
    ),
    "h100": _H100,
    "h200": replace(_H100, memory_bytes=141 * GIGABYTE),
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
