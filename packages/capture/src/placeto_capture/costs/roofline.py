"""The time of each op on a kind of device: measured, or by the roofline."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from placeto_capture.costs.op_classes import RESIDENT_TYPES, OpClass, class_of_type, op_class
from placeto_capture.errors import CaptureError, CaptureWarning
from placeto_graphs import DEVICE_KINDS, DeviceKind, Efficiency, OpGraph

FUNCTION = re.compile(r"\w+\.\w+")  # as torch names its functions: library and name

Tf32 = Literal["never", "convolutions", "always"]
TF32_CHOICES: tuple[Tf32, ...] = get_args(Tf32)
TF32 = "tf32"  # beside the names of dtypes
DEFAULT_DTYPE = "float32"
# The dtype of the numbers that complex ones are made of.
PARTS_OF_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

CONVOLUTIONS = frozenset(member for member in OpClass if member.endswith("convolution"))
PRODUCTS = CONVOLUTIONS | {OpClass.MATRIX_PRODUCT}
EFFICIENCIES = tuple(field.name for field in fields(Efficiency))
# The efficiency of FLOPs, and that of bytes, of classes for which it is not the one of their name.
# How well products read their factors says nothing of how well they compute.
COMPUTES_AS = {OpClass.GROUPED_CONVOLUTION: "convolution"}
MOVES_AS = {OpClass.CONVOLUTION: "product_bytes", OpClass.MATRIX_PRODUCT: "product_bytes"}


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
        If the kind or the choice of TensorFloat-32 is unknown, or nothing tells what an op does:
        its type is of no known class, it is no function of torch, and it has neither FLOPs nor
        bytes.

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
        classes, work = work_of(graph, device, tf32)
        times = (
            device.launch_overhead + work / efficiency_array(device.efficiency)[classes]
        ) / device.speed
        seconds[name] = np.where(classes < 0, 0.0, times)
    modelled = {kind: seconds[kind] for kind in seconds if kind not in graph.measured_time}
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


def work_of(
    graph: OpGraph, device: DeviceKind, tf32: Tf32 = "convolutions"
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the work of each op on a device.

    That is the place in `EFFICIENCIES` of the one that it reaches, -1 for no work, and its seconds
    at the full peak and bandwidth.
    """
    flops, moved = graph.flops, graph.bytes_accessed
    resident = np.array([op_type in RESIDENT_TYPES for op_type in graph.op_types])
    position = {name: index for index, name in enumerate(EFFICIENCIES)}
    computes, moves = np.zeros((2, graph.num_ops), np.int64)
    peaks = np.full(graph.num_ops, device.peak_flops)
    for op in np.flatnonzero(~resident).tolist():
        op_type = graph.op_types[op]
        # Torch's own functions may do and move nothing.
        is_known = class_of_type(op_type) is not None or FUNCTION.fullmatch(op_type)
        if flops[op] == 0 and moved[op] == 0 and not is_known:
            raise CaptureError(
                f"op_types[{op}]: expected a known type, FLOPs, bytes or measured times to tell "
                f"the time of op {graph.op_names[op]!r} on {device.name}, "
                f"got {op_type!r} without any"
            )
        its_class = op_class(
            op_type,
            flops[op],
            moved[op],
            dtype=graph.dtype[op],
            groups=int(graph.groups[op]),
            group_channels=int(graph.group_channels[op]),
        )
        computes[op] = position[COMPUTES_AS.get(its_class, its_class)]
        moves[op] = position[MOVES_AS.get(its_class, its_class)]
        precision = precision_of(graph.dtype[op], its_class, tf32)
        peaks[op] = device.peak_flops_in.get(precision, device.peak_flops)
    computing, moving = flops / peaks, moved / device.memory_bandwidth
    efficiency = efficiency_array(device.efficiency)
    is_moving = moving / efficiency[moves] > computing / efficiency[computes]
    classes = np.where(resident, -1, np.where(is_moving, moves, computes))
    return classes, np.where(is_moving, moving, computing)


def efficiency_array(efficiency: Efficiency) -> NDArray[np.float64]:
    """Return the efficiencies in the order of `EFFICIENCIES`."""
    return np.array([getattr(efficiency, name) for name in EFFICIENCIES])


def precision_of(dtype: str, op_class: OpClass, tf32: Tf32) -> str:
    """Return the name of a dtype, or ``"tf32"``; what is no product is bound by its bytes."""
    if op_class not in PRODUCTS:
        return DEFAULT_DTYPE
    dtype = PARTS_OF_COMPLEX.get(dtype, dtype or DEFAULT_DTYPE)
    rounded = {"never": frozenset(), "convolutions": CONVOLUTIONS, "always": PRODUCTS}[tf32]
    return TF32 if dtype == DEFAULT_DTYPE and op_class in rounded else dtype
