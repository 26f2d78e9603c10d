"""The time of each op on a kind of device: measured, or by the roofline."""

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from placeto_capture.costs.op_classes import RESIDENT_TYPES, OpClass, class_of_type, op_class
from placeto_capture.errors import CaptureError, CaptureWarning
from placeto_graphs import DEVICE_KINDS, DeviceKind, OpGraph

FUNCTION = re.compile(r"\w+\.\w+")  # as torch names its functions: library and name

Tf32 = Literal["never", "convolutions", "always"]
TF32_CHOICES: tuple[Tf32, ...] = get_args(Tf32)
TF32 = "tf32"  # beside the names of dtypes
DEFAULT_DTYPE = "float32"
# The dtype of the numbers that complex ones are made of.
PARTS_OF_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

PRODUCTS = frozenset({OpClass.CONVOLUTION, OpClass.MATRIX_PRODUCT, OpClass.ATTENTION})
# The efficiency of FLOPs where products have a peak above that of float32: on tensor cores.
ON_TENSOR_CORES = {
    OpClass.CONVOLUTION: "tensor_core_convolution",
    OpClass.MATRIX_PRODUCT: "tensor_core_product",
}
# On tensor cores a convolution in groups of c channels reaches (c + KERNEL_CHANNELS) / (c +
# TILE_CHANNELS) of the peak of one without groups: kernels work on tiles of channels, most of which
# a narrow group leaves empty, or on single channels. Fitted by lab/costs/published.py.
KERNEL_CHANNELS = 6
TILE_CHANNELS = {"forward": 40, "backward": 400}
# The part that products in TensorFloat-32 reach of what those of 16 bits do. Fitted there, too.
TF32_PART = 0.6
MOST_UNKNOWN = 0.5  # part of a step's time of which nothing may be known


def cost_model(
    graph: OpGraph, kind: str | DeviceKind, *, tf32: Tf32 = "convolutions"
) -> NDArray[np.float64]:
    """Return the seconds that each op of a graph takes on a kind of device.

    They are the measured times of the graph if it has them for this kind. Otherwise they follow
    the roofline model (Williams et al. 2009): the launch overhead of the kind, plus the time of the
    FLOPs at the peak or of the bytes at the memory bandwidth, whichever is longer. Peak and
    bandwidth are multiplied by the efficiency of the op's class. Parameters, buffers and inputs
    take no time. The peak of a product is that of its dtype. It is that of float32 if the dtype is
    not known, or the kind has no peak for it.

    On tensor cores, where a product has a peak above that of float32, the two times add up: small
    and narrow products do not fill them. Groups of few channels reach less of a convolution's peak.

    An op of a type in no class counts as a matrix product if it does many FLOPs per byte, and
    otherwise as elementwise; one warning names all such types and their share of the time. The time
    between two ops, the ``op_overhead`` of a cluster's device, is not in it.

    Parameters
    ----------
    graph
        The V ops, with FLOPs and bytes or with measured times.
    kind
        Kind of device: one that the graph has measured times for, one of ``DEVICE_KINDS``, or a
        `DeviceKind` that describes another one.
    tf32
        Products of float32 that are computed in TensorFloat-32 on kinds that have it, such as A100
        and H100: ``"convolutions"``, as PyTorch's defaults are
        (``torch.backends.cudnn.allow_tf32`` is True, ``torch.backends.cuda.matmul.allow_tf32``
        False), ``"always"`` or ``"never"``.

    Returns
    -------
    float64[V]
        Seconds.

    Raises
    ------
    CaptureError
        If the kind or the choice of TensorFloat-32 is unknown, or nothing tells the time of most of
        the step, or of an op whose type is of no known class and no function of torch: it has
        neither FLOPs nor bytes. A warning names a smaller part.

    Examples
    --------
    Adding 120 MB to 120 MB is bound by the memory of a K80, a product of matrices by its peak:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> ops = nx.DiGraph()
    >>> ops.add_node("weights", op_type="parameter", parameter_bytes=120_000_000)
    >>> ops.add_node("sum", op_type="aten.add", bytes_accessed=360e6)
    >>> ops.add_node("scores", op_type="aten.mm", flops=1e12, bytes_accessed=360e6)
    >>> cost_model(from_networkx(ops), "k80").round(3)
    array([0.   , 0.002, 0.352])
    """
    (seconds,) = _times(graph, [kind], tf32).values()
    return seconds


def cost_models(
    graph: OpGraph, kinds: Iterable[str | DeviceKind], *, tf32: Tf32 = "convolutions"
) -> dict[str, NDArray[np.float64]]:
    """Return the seconds that each op of a graph takes on each of some kinds of devices, by name.

    There is one warning for all kinds, with the largest share of each type.

    Parameters
    ----------
    graph
        The V ops, with FLOPs and bytes or with measured times.
    kinds
        Kinds of devices, each as for `cost_model`.
    tf32
        Products of float32 that are computed in TensorFloat-32, as for `cost_model`.

    Returns
    -------
    dict
        Seconds float64[V] by the name of the kind.

    Raises
    ------
    CaptureError
        As `cost_model` does.
    """
    return _times(graph, kinds, tf32)


def _times(
    graph: OpGraph, kinds: Iterable[str | DeviceKind], tf32: Tf32
) -> dict[str, NDArray[np.float64]]:
    if tf32 not in TF32_CHOICES:
        raise CaptureError(f"tf32: expected one of {', '.join(TF32_CHOICES)}, got {tf32!r}")
    seconds: dict[str, NDArray[np.float64]] = {}
    for kind in kinds:
        name = kind if isinstance(kind, str) else kind.name
        if name in graph.measured_time:
            seconds[name] = graph.measured_time[name].copy()
            continue
        device = DEVICE_KINDS.get(kind) if isinstance(kind, str) else kind
        if device is None:
            kind_names = ", ".join(sorted({*DEVICE_KINDS, *graph.measured_time}))
            raise CaptureError(
                f"kind: expected one of {kind_names}, or one that the cluster's file describes in "
                f"[kinds.{kind}], got {kind!r}"
            )
        times = (device.launch_overhead + work_seconds(graph, device, tf32)) / device.speed
        seconds[name] = np.where(is_work(graph), times, 0.0)
    modelled = {kind: seconds[kind] for kind in seconds if kind not in graph.measured_time}
    if modelled:
        _warn_of_unknown_work(graph, modelled)
    shares = _shares_without_class(graph, modelled)
    if shares:
        listed = ", ".join(
            f"{op_type!r} ({share:.1%} on {kind})" for op_type, (share, kind) in shares.items()
        )
        warnings.warn(
            "ops of types in no class are costed by their bytes, or as matrix products where they "
            f"do many FLOPs; their share of the time of all ops: {listed}",
            CaptureWarning,
            stacklevel=3,
        )
    return seconds


def _warn_of_unknown_work(graph: OpGraph, kinds: Collection[str]) -> None:
    """Warn of ops that do something and have neither FLOPs nor bytes; refuse most of the time."""
    classes = [class_of_type(op_type) for op_type in graph.op_types]
    measured = next(iter(graph.measured_time.values()), None)
    if measured is None:
        computes = np.array([op_class not in (None, OpClass.COPY) for op_class in classes])
    else:
        computes = measured > 0
    is_known = (graph.flops > 0) | (graph.bytes_accessed > 0)
    unknown = np.flatnonzero(is_work(graph) & computes & ~is_known)
    for op in np.flatnonzero(is_work(graph) & ~is_known).tolist():
        if classes[op] is None and not FUNCTION.fullmatch(graph.op_types[op]):
            raise CaptureError(
                f"op_types[{op}]: expected a known type, FLOPs, bytes or measured times to tell "
                f"the time of op {graph.op_names[op]!r} on {', '.join(kinds)}, "
                f"got {graph.op_types[op]!r} without any"
            )
    if not len(unknown):
        return
    weights = is_work(graph).astype(np.float64) if measured is None else measured
    share = weights[unknown].sum() / weights.sum()
    text = (
        f"FLOPs, bytes or measured times to tell the time on {', '.join(kinds)} of all ops, got "
        f"none of {len(unknown)} ops, such as {graph.op_names[unknown[0]]!r} "
        f"({graph.op_types[unknown[0]]})"
    )
    if share > MOST_UNKNOWN:
        raise CaptureError(
            f"flops: expected {text}, which are most of the step; measure it on "
            f"{', '.join(kinds)}, or leave that kind out"
        )
    warnings.warn(
        f"expected {text}; they count as launches without work", CaptureWarning, stacklevel=4
    )


def _shares_without_class(
    graph: OpGraph, seconds: Mapping[str, NDArray[np.float64]]
) -> dict[str, tuple[float, str]]:
    """Return the largest share of time of each type in no class with its kind, largest first."""
    types = np.array(graph.op_types)
    shares = {
        op_type: max(
            (float(times[types == op_type].sum() / (times.sum() or 1.0)), kind)
            for kind, times in seconds.items()
        )
        for op_type in dict.fromkeys(graph.op_types if seconds else ())
        if op_type not in RESIDENT_TYPES and class_of_type(op_type) is None
    }
    return dict(sorted(shares.items(), key=lambda entry: -entry[1][0]))


def work_seconds(
    graph: OpGraph, device: DeviceKind, tf32: Tf32 = "convolutions"
) -> NDArray[np.float64]:
    """Return float64[V], the seconds of the work of each op, without its launch."""
    flops, moved, efficiency = graph.flops, graph.bytes_accessed, device.efficiency
    peak, bandwidth = np.full((2, graph.num_ops), np.inf)
    is_overlapped = np.ones(graph.num_ops, bool)
    is_inference = not graph.phases.any()
    for op in np.flatnonzero(is_work(graph)).tolist():
        op_type = graph.op_types[op]
        its_class = op_class(op_type, flops[op], moved[op], dtype=graph.dtype[op])
        if is_inference and "batch_norm" in op_type:
            its_class = OpClass.ELEMENTWISE  # its statistics are known, and it reads images once
        precision = precision_of(graph.dtype[op], its_class, tf32)
        peak[op] = device.peak_flops_in.get(precision, device.peak_flops)
        is_overlapped[op] = its_class not in PRODUCTS or peak[op] <= device.peak_flops
        computes_as = its_class if is_overlapped[op] else ON_TENSOR_CORES.get(its_class, its_class)
        peak[op] *= getattr(efficiency, computes_as)
        if precision == TF32 and not is_overlapped[op]:
            peak[op] *= TF32_PART
        moves_as = "product_bytes" if its_class in PRODUCTS else its_class
        bandwidth[op] = device.memory_bandwidth * getattr(efficiency, moves_as)
        if graph.groups[op] > 1:
            channels = max(int(graph.group_channels[op]), 1)
            if not is_overlapped[op]:
                tile = TILE_CHANNELS["backward" if op_type.endswith("_backward") else "forward"]
                peak[op] *= (channels + KERNEL_CHANNELS) / (channels + tile)
            of_one = efficiency.product_bytes / efficiency.depthwise_convolution
            bandwidth[op] /= 1 + (of_one - 1) / channels
    computing, moving = flops * graph.computed_part / peak, moved / bandwidth
    times: NDArray[np.float64] = np.where(
        is_overlapped, np.maximum(computing, moving), computing + moving
    )
    return times


def is_work(graph: OpGraph) -> NDArray[np.bool_]:
    """Return bool[V], false of what is there when the step begins, such as weights."""
    return np.array([op_type not in RESIDENT_TYPES for op_type in graph.op_types])


def precision_of(dtype: str, op_class: OpClass, tf32: Tf32) -> str:
    """Return the name of a dtype, or ``"tf32"``; what is no product is bound by its bytes."""
    if op_class not in PRODUCTS:
        return DEFAULT_DTYPE
    dtype = PARTS_OF_COMPLEX.get(dtype, dtype or DEFAULT_DTYPE)
    convolutions = frozenset({OpClass.CONVOLUTION})
    rounded = {"never": frozenset(), "convolutions": convolutions, "always": PRODUCTS}[tf32]
    return TF32 if dtype == DEFAULT_DTYPE and op_class in rounded else dtype
