"""Functions of PyTorch that do what the ops of ONNX do.

Each takes the inputs of a node in order, None for one that is left out, and its attributes as
keywords. An input is a tensor, or a NumPy array where it follows from constants and shapes alone;
sizes and axes have to. Some get the version of the set of ops, or the names of the node's outputs,
empty for those that nothing reads. What gives one value for several outputs gives the first one.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError

Op = Callable[..., Any]

MAX_ELEMENTS = 2**40  # shapes need no memory, but numbers have an end
CONVOLUTIONS: dict[int, Op] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Op] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOLS: dict[int, Op] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOLS: dict[int, Op] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def as_operand(value: Any) -> Any:
    """Return a value for an op on tensors: a constant without dimensions is a number."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.item() if array.ndim == 0 else torch.from_numpy(array.copy())
    return value


def as_tensor(value: Any) -> Tensor:
    """Return a value as a tensor."""
    made = as_operand(value)
    return made if isinstance(made, Tensor) else torch.tensor(made)


def whole_numbers(given: Any, attribute: Any = None) -> list[int]:
    """Return sizes or axes: an input since some version, and an attribute before."""
    value = attribute if given is None else given
    if value is None or isinstance(value, Tensor):
        raise CaptureError("expected sizes and axes that follow from constants and shapes")
    return [int(number) for number in np.asarray(value).ravel()]


# Element by element


def _on_operands(function: Op) -> Op:
    return lambda *inputs: function(*map(as_operand, inputs))


def _variadic(function: Op) -> Op:
    return lambda *inputs: reduce(function, map(as_tensor, inputs))


def _divide(first: Any, second: Any) -> Any:
    if any(isinstance(each, Tensor) and each.is_floating_point() for each in (first, second)):
        return first / second
    return torch.div(first, second, rounding_mode="trunc")


def _clip(x: Tensor, low: Any = None, high: Any = None, **attributes: float) -> Tensor:
    low = attributes.get("min") if low is None else as_operand(low)
    high = attributes.get("max") if high is None else as_operand(high)
    return torch.clamp(x, low, high)


def _hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0, 1)


def _selu(x: Tensor, alpha: float | None = None, gamma: float | None = None) -> Tensor:
    if alpha is None and gamma is None:
        return F.selu(x)
    return (1.0507 if gamma is None else gamma) * F.elu(x, 1.67326 if alpha is None else alpha)


def _softmax(function: Op, x: Tensor, *, version: int, axis: int | None = None) -> Any:
    if version < 13:  # over all axes from this one on
        flat = x.flatten((1 if axis is None else axis) % x.dim())
        return function(flat, dim=-1).view(x.shape)
    return function(x, dim=-1 if axis is None else axis)


def _dropout(
    x: Tensor, rate: Any = None, trains: Any = None, *, outputs: Sequence[str], **_: Any
) -> Any:
    if trains is None or not np.asarray(trains).any():
        return (x, torch.ones_like(x, dtype=torch.bool)) if any(outputs[1:]) else x
    if any(outputs[1:]):
        raise CaptureError("expected a dropout whose mask nothing reads")
    return F.dropout(x, 0.5 if rate is None else np.asarray(rate).item())


def _cast(x: Tensor, *, to: torch.dtype, **_: Any) -> Tensor:
    return x.to(to)


def _modulo(first: Any, second: Any, fmod: int = 0) -> Any:
    return (torch.fmod if fmod else torch.remainder)(as_operand(first), as_operand(second))


# Products


def _gemm(
    first: Any,
    second: Any,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 (as ONNX names it)
    transB: int = 0,  # noqa: N803
) -> Tensor:
    first, second, bias = map(as_operand, (first, second, bias))
    first = first.t() if transA else first
    if transB and alpha == beta == 1.0 and (bias is None or bias.dim() == 1):
        return F.linear(first, second, bias)
    second = second.t() if transB else second
    if bias is None:
        return torch.mm(first, second) * alpha if alpha != 1.0 else torch.mm(first, second)
    return torch.addmm(bias, first, second, alpha=alpha, beta=beta)


# Layers


def _pad_sides(
    x: Tensor,
    kernel: Sequence[int],
    fill: float,
    pads: Sequence[int] | None,
    auto_pad: str,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
) -> tuple[Tensor, list[int]]:
    """Return values, padded where the two sides differ, and what is left to pad on both sides."""
    count = len(kernel)
    before, after = list((pads or [0] * count)[:count]), list((pads or [0] * count)[-count:])
    if auto_pad.startswith("SAME"):
        ones = [1] * count
        steps = zip(x.shape[2:], kernel, strides or ones, dilations or ones, strict=True)
        totals = [
            max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
            for size, width, stride, dilation in steps
        ]
        before, after = [total // 2 for total in totals], [-(-total // 2) for total in totals]
        if auto_pad == "SAME_LOWER":
            before, after = after, before
    if before == after:
        return x, before
    both = [side for pair in zip(before[::-1], after[::-1], strict=True) for side in pair]
    return F.pad(x, both, value=fill), [0] * count


def _convolution(
    x: Tensor,
    weight: Any,
    bias: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] = (),  # noqa: ARG001 (that of the weight)
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    weight, bias = as_operand(weight), as_operand(bias)
    kernel, ones = weight.shape[2:], [1] * (weight.dim() - 2)
    x, padding = _pad_sides(x, kernel, 0.0, pads, auto_pad, strides, dilations)
    return CONVOLUTIONS[len(kernel)](
        x, weight, bias, strides or ones, padding, dilations or ones, group
    )


def _transposed_convolution(
    x: Tensor,
    weight: Any,
    bias: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] = (),  # noqa: ARG001 (that of the weight)
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    weight, bias = as_operand(weight), as_operand(bias)
    count = weight.dim() - 2
    sides, ones = list(pads or [0] * 2 * count), [1] * count
    if sides[:count] != sides[count:] or output_shape or auto_pad.startswith("SAME"):
        raise CaptureError("expected equal padding on both sides")
    padding, more = sides[:count], output_padding or [0] * count
    return TRANSPOSED[count](
        x, weight, bias, strides or ones, padding, more, group, dilations or ones
    )


def _max_pool(
    x: Tensor,
    *,
    outputs: Sequence[str],
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,  # noqa: ARG001 (of the indices)
    strides: Sequence[int] | None = None,
) -> Any:
    if any(outputs[1:]):
        raise CaptureError("expected a pooling whose indices nothing reads")
    ones = [1] * len(kernel_shape)
    x, padding = _pad_sides(x, kernel_shape, -math.inf, pads, auto_pad, strides, dilations)
    return MAX_POOLS[len(kernel_shape)](
        x, kernel_shape, strides or ones, padding, dilations or ones, bool(ceil_mode)
    )


def _average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    if dilations and set(dilations) != {1}:
        raise CaptureError("expected a pooling of neighbours")
    padded, padding = _pad_sides(x, kernel_shape, 0.0, pads, auto_pad, strides)
    steps, function = strides or [1] * len(kernel_shape), AVERAGE_POOLS[len(kernel_shape)]
    how = kernel_shape, steps, padding, bool(ceil_mode), bool(count_include_pad)
    if padded is x or count_include_pad:
        return function(padded, *how)
    inside, _ = _pad_sides(torch.ones_like(x), kernel_shape, 0.0, pads, auto_pad, strides)
    return function(padded, *how) / function(inside, *how)


def _global_pool(function: Op) -> Op:
    return lambda x: function(x, dim=tuple(range(2, x.dim())), keepdim=True)


def _batch_normalization(
    x: Tensor,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *,
    version: int,
    outputs: Sequence[str],
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    **_: Any,
) -> Any:
    if any(outputs[3:]):
        raise CaptureError("expected a normalisation whose averages of the batch nothing reads")
    scale, bias, mean, variance = map(as_operand, (scale, bias, mean, variance))
    # Files of before say by the number of outputs whether they train.
    trains = bool(training_mode) if version >= 14 else len(outputs) > 1
    # PyTorch's momentum is that of the new value; the running averages change in place.
    result = F.batch_norm(x, mean, variance, scale, bias, trains, 1 - momentum, epsilon)
    return (result, mean, variance, None, None)[: len(outputs)] if any(outputs[1:]) else result


def _layer_normalization(
    x: Tensor,
    scale: Any,
    bias: Any = None,
    *,
    outputs: Sequence[str],
    axis: int = -1,
    epsilon: float = 1e-5,
    **_: Any,
) -> Tensor:
    if any(outputs[1:]):
        raise CaptureError("expected a normalisation whose averages nothing reads")
    shape = x.shape[axis % x.dim() :]
    return F.layer_norm(x, shape, as_operand(scale), as_operand(bias), epsilon)


def _rms_normalization(
    x: Tensor, scale: Any, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    return F.rms_norm(x, x.shape[axis % x.dim() :], as_operand(scale), epsilon)


def _instance_normalization(x: Tensor, scale: Any, bias: Any, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, weight=as_operand(scale), bias=as_operand(bias), eps=epsilon)


def _group_normalization(
    x: Tensor, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    return F.group_norm(x, num_groups, as_operand(scale), as_operand(bias), epsilon)


def _resize(x: Tensor, *inputs: Any, version: int, mode: str = "nearest", **how: Any) -> Tensor:
    regions_scales_sizes = inputs if version > 10 else (None, *inputs)
    _, scales, sizes = (*regions_scales_sizes, None, None, None)[:3]
    if sizes is not None:
        size = whole_numbers(sizes)[2:]
    elif scales is not None and not isinstance(scales, Tensor):
        factors = np.ravel(scales).tolist()[2:]
        size = [int(n * factor) for n, factor in zip(x.shape[2:], factors, strict=True)]
    else:
        raise CaptureError("expected sizes or scales that are constants")
    if mode not in {"linear", "cubic"}:
        return F.interpolate(x, size, mode="nearest")
    corners = how.get("coordinate_transformation_mode") == "align_corners"
    kind = LINEAR[x.dim() - 2] if mode == "linear" else "bicubic"
    return F.interpolate(x, size, mode=kind, align_corners=corners)


ON_TENSORS: dict[str, Op] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "AveragePool": _average_pool,
    "Cast": _cast,
    "CastLike": lambda x, like, **_: as_tensor(x).to(as_tensor(like).dtype),
    "Ceil": torch.ceil,
    "Celu": F.celu,
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Einsum": lambda *inputs, equation: torch.einsum(equation, *map(as_operand, inputs)),
    "Elu": F.elu,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Gelu": F.gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "GroupNormalization": _group_normalization,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "InstanceNormalization": _instance_normalization,
    "IsInf": torch.isinf,
    "IsNaN": torch.isnan,
    "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(
        x, size, alpha, beta, bias
    ),
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Log": torch.log,
    "Mish": F.mish,
    "Mod": _modulo,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "RMSNormalization": _rms_normalization,
    "Reciprocal": torch.reciprocal,
    "Relu": F.relu,
    "Round": torch.round,
    "Selu": _selu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
ON_OPERANDS: dict[str, Op] = {
    "Add": operator.add,
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "MatMul": torch.matmul,
    "Mul": operator.mul,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Pow": torch.pow,
    "Sub": operator.sub,
    "Where": lambda condition, *both: torch.where(as_tensor(condition), *both),
    "Xor": torch.logical_xor,
}
OPS: dict[str, Op] = {
    **ON_TENSORS,
    **{name: _on_operands(function) for name, function in ON_OPERANDS.items()},
    "Max": _variadic(torch.maximum),
    "Min": _variadic(torch.minimum),
    "Sum": _variadic(torch.add),
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": partial(_softmax, torch.log_softmax),
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Softmax": partial(_softmax, torch.softmax),
    "Upsample": _resize,
}
NEEDS_VERSION = {"BatchNormalization", "LogSoftmax", "Resize", "Softmax", "Upsample"}
NEEDS_OUTPUTS = {"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool", "Split"}
