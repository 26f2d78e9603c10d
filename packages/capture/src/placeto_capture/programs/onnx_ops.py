"""Functions of PyTorch that do what the ops of ONNX do.

Each takes the attributes of a node and then its inputs, None for one that is left out: tensors, or
NumPy arrays of what follows from constants and shapes. Of several outputs it may return the first.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError

Op = Callable[..., Any]

MAX_ELEMENTS = 2**40  # shapes need no memory, but numbers have an end
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}

# Attributes that PyTorch has no choice for, or that follow from the inputs.
NOT_READ = {
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "dtype", "exclude_outside"),
    *("extrapolation_value", "is_test", "keep_aspect_ratio_policy", "kernel_shape"),
    *("nearest_mode", "num_outputs", "ratio", "round_mode", "saturate", "seed", "sorted"),
    *("spatial", "stash_type", "storage_order"),
}


class Attributes:
    """The attributes of a node by their names, None for one that has neither value nor default."""

    def __init__(
        self, values: dict[str, Any], defaults: dict[str, Any], outputs: list[str], version: int
    ) -> None:
        self.outputs = outputs
        self.version = version
        self._values = {**defaults, **values}
        names = values.keys() - NOT_READ
        self._not_read = {name for name in names if values[name] != defaults.get(name)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as those that copies look for
            raise AttributeError(name)
        self._not_read.discard(name)
        return self._values.get(name)

    def check(self) -> None:
        """Refuse an attribute with a value of its own that the op has not looked at."""
        for name in sorted(self._not_read):
            raise CaptureError(f"expected no attribute {name}, got one")

    def refuse_outputs(self, subject: str) -> None:
        """Refuse that something reads other outputs than the first one."""
        if any(self.outputs[1:]):
            raise CaptureError(f"expected {subject} nothing reads")


def as_operand(value: Any) -> Any:
    """Return a value for an op on tensors: a constant without dimensions is a number."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.item() if array.ndim == 0 else torch.from_numpy(array.copy())
    return value


def as_tensor(value: Any) -> Tensor:
    """Return a value as a tensor."""
    operand = as_operand(value)
    return operand if isinstance(operand, Tensor) else torch.tensor(operand)


def whole_numbers(node_input: Any, attribute: Any = None) -> list[int]:
    """Return sizes or axes: an input since some version, and an attribute before."""
    value = attribute if node_input is None else node_input
    if value is None or isinstance(value, Tensor):
        raise CaptureError("expected sizes and axes that follow from constants and shapes")
    return [int(element) for element in np.asarray(value).ravel()]


def _of_elements(function: Op) -> Op:
    return lambda _, *inputs: function(*inputs)


def _of_operands(function: Op) -> Op:
    return lambda _, *inputs: function(*map(as_operand, inputs))


def _variadic(function: Op) -> Op:
    return lambda _, *inputs: reduce(function, map(as_tensor, inputs))


def _divide(first: Any, second: Any) -> Any:
    if any(isinstance(x, Tensor) and x.is_floating_point() for x in (first, second)):
        return first / second
    return torch.div(first, second, rounding_mode="trunc")


def _clip(a: Attributes, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    lowest, highest = _limit(low, a.min), _limit(high, a.max)
    return x if lowest is None and highest is None else torch.clamp(x, lowest, highest)


def _limit(node_input: Any, attribute: float | None) -> Any:
    """Return a limit: an input, or an attribute of older files, whose largest number is none."""
    if node_input is None and attribute is not None and abs(attribute) < 3e38:
        return attribute
    return as_operand(node_input)


def _hard_sigmoid(a: Attributes, x: Tensor) -> Tensor:
    if abs(a.alpha - 1 / 6) < 1e-6 and a.beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * a.alpha + a.beta, 0, 1)


def _softmax(function: Op) -> Op:
    def run(a: Attributes, x: Tensor) -> Any:
        if a.version < 13:  # over all axes from this one on
            flat: Tensor = function(x.flatten(a.axis % x.dim()), dim=-1)
            return flat.view(x.shape)
        return function(x, dim=a.axis)

    return run


def _dropout(a: Attributes, x: Tensor, rate: Any = None, trains: Any = None) -> Any:
    if trains is None or not np.asarray(trains).any():
        return (x, torch.ones_like(x, dtype=torch.bool)) if any(a.outputs[1:]) else x
    a.refuse_outputs("a dropout whose mask")
    return F.dropout(x, 0.5 if rate is None else np.asarray(rate).item())


def _gemm(a: Attributes, first: Any, second: Any, bias: Any = None) -> Tensor:
    first, second, bias = map(as_operand, (first, second, bias))
    first = first.t() if a.transA else first
    is_plain = a.beta == 1.0 and a.alpha == 1.0
    if a.transB and is_plain and (bias is None or bias.dim() == 1):
        return F.linear(first, second, bias)
    second = second.t() if a.transB else second
    if bias is None:
        return torch.mm(first, second) * a.alpha if a.alpha != 1.0 else torch.mm(first, second)
    return torch.addmm(bias, first, second, alpha=a.alpha, beta=a.beta)


def _pad_sides(
    a: Attributes, x: Tensor, kernel: Sequence[int], fill: float = 0.0
) -> tuple[Tensor, list[int]]:
    """Return values, padded where the two sides differ, and what is left to pad on both sides."""
    count = len(kernel)
    pads, strides, dilations = a.pads or [0] * 2 * count, a.strides, a.dilations
    begins, ends = list(pads[:count]), list(pads[-count:])
    if a.auto_pad.startswith("SAME"):
        ones = [1] * count
        steps = zip(x.shape[2:], kernel, strides or ones, dilations or ones, strict=True)
        totals = [
            max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
            for size, width, stride, dilation in steps
        ]
        begins, ends = (
            [total // 2 for total in totals],
            [-(-total // 2) for total in totals],
        )
        if a.auto_pad == "SAME_LOWER":
            begins, ends = ends, begins
    if begins == ends:
        return x, begins
    both = [side for pair in zip(begins[::-1], ends[::-1], strict=True) for side in pair]
    return F.pad(x, both, value=fill), [0] * count


def _of_dims(name: str, num_dims: int) -> Op:
    """Return a function such as ``F.conv2d``."""
    if num_dims not in LINEAR:
        raise CaptureError(f"expected 1 to 3 dimensions, got {num_dims}")
    function: Op = getattr(F, f"{name}{num_dims}d")
    return function


def _convolution(a: Attributes, x: Tensor, weight: Any, bias: Any = None) -> Any:
    weight, bias = as_operand(weight), as_operand(bias)
    kernel, ones = weight.shape[2:], [1] * (weight.dim() - 2)
    x, padding = _pad_sides(a, x, kernel)
    geometry = a.strides or ones, padding, a.dilations or ones, a.group
    return _of_dims("conv", len(kernel))(x, weight, bias, *geometry)


def _transposed_convolution(a: Attributes, x: Tensor, weight: Any, bias: Any = None) -> Any:
    weight, bias = as_operand(weight), as_operand(bias)
    count = weight.dim() - 2
    sides, ones = list(a.pads or [0] * 2 * count), [1] * count
    if sides[:count] != sides[count:] or a.output_shape or a.auto_pad.startswith("SAME"):
        raise CaptureError("expected equal padding on both sides")
    output_padding = a.output_padding or [0] * count
    geometry = a.strides or ones, sides[:count], output_padding, a.group, a.dilations or ones
    return _of_dims("conv_transpose", count)(x, weight, bias, *geometry)


def _max_pool(a: Attributes, x: Tensor) -> Any:
    a.refuse_outputs("a pooling whose indices")
    kernel, ones = a.kernel_shape, [1] * len(a.kernel_shape)
    x, padding = _pad_sides(a, x, kernel, -math.inf)
    geometry = a.strides or ones, padding, a.dilations or ones, bool(a.ceil_mode)
    return _of_dims("max_pool", len(kernel))(x, kernel, *geometry)


def _average_pool(a: Attributes, x: Tensor) -> Any:
    kernel = a.kernel_shape
    if a.dilations and set(a.dilations) != {1}:
        raise CaptureError("expected a pooling of neighbours")
    padded, padding = _pad_sides(a, x, kernel)
    steps, function = a.strides or [1] * len(kernel), _of_dims("avg_pool", len(kernel))
    geometry = kernel, steps, padding, bool(a.ceil_mode), bool(a.count_include_pad)
    if padded is x or a.count_include_pad:
        return function(padded, *geometry)
    inside, _ = _pad_sides(a, torch.ones_like(x), kernel)
    return function(padded, *geometry) / function(inside, *geometry)


def _global_pool(function: Op) -> Op:
    return lambda _, x: function(x, dim=tuple(range(2, x.dim())), keepdim=True)


def _batch_normalization(a: Attributes, x: Tensor, *inputs: Any) -> Any:
    if any(a.outputs[3:]):
        raise CaptureError("expected a normalisation whose averages of the batch nothing reads")
    scale, bias, mean, variance = map(as_operand, inputs)
    # Files of before say by the number of outputs whether they train.
    trains = bool(a.training_mode) if a.version >= 14 else len(a.outputs) > 1
    # PyTorch's momentum is that of the new value; the running averages change in place.
    result = F.batch_norm(x, mean, variance, scale, bias, trains, 1 - a.momentum, a.epsilon)
    averages = mean, variance, None, None
    return (result, *averages)[: len(a.outputs)] if any(a.outputs[1:]) else result


def _layer_normalization(a: Attributes, x: Tensor, scale: Any, bias: Any = None) -> Tensor:
    a.refuse_outputs("a normalisation whose averages")
    shape = x.shape[a.axis % x.dim() :]
    return F.layer_norm(x, shape, as_operand(scale), as_operand(bias), a.epsilon)


def _resize(a: Attributes, x: Tensor, *inputs: Any) -> Tensor:
    operands = inputs if a.version > 10 else (None, *inputs)  # regions, scales and sizes
    _, scales, sizes = (*operands, None, None, None)[:3]
    scales = a.scales if scales is None else scales
    if sizes is not None:
        size = whole_numbers(sizes)[2:]
    elif scales is not None and not isinstance(scales, Tensor):
        factors = np.ravel(scales).tolist()[2:]
        size = [int(n * factor) for n, factor in zip(x.shape[2:], factors, strict=True)]
    else:
        raise CaptureError("expected sizes or scales that are constants")
    if a.mode not in {"linear", "cubic"}:
        return F.interpolate(x, size, mode="nearest")
    corners = a.coordinate_transformation_mode == "align_corners"
    kind = LINEAR[x.dim() - 2] if a.mode == "linear" else "bicubic"
    return F.interpolate(x, size, mode=kind, align_corners=corners)


NAMED_ALIKE = """
    Abs Acos Asin Atan Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Reciprocal Relu Round Sigmoid Sign
    Sin Sinh Sqrt Tan Tanh
"""
ON_TENSORS: dict[str, Op] = {
    **{name: getattr(torch, name.lower()) for name in NAMED_ALIKE.split()},
    "CastLike": lambda x, like: as_tensor(x).to(as_tensor(like).dtype),
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "IsInf": torch.isinf,
    "Mish": F.mish,
    "Not": torch.logical_not,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
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
    **{name: _of_elements(function) for name, function in ON_TENSORS.items()},
    **{name: _of_operands(function) for name, function in ON_OPERANDS.items()},
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": lambda a, x: x.to(a.to),
    "Celu": lambda a, x: F.celu(x, a.alpha),
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Dropout": _dropout,
    "Einsum": lambda a, *inputs: torch.einsum(a.equation, *map(as_operand, inputs)),
    "Elu": lambda a, x: F.elu(x, a.alpha),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.approximate),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "GroupNormalization": lambda a, x, scale, bias: F.group_norm(
        x, a.num_groups, as_operand(scale), as_operand(bias), a.epsilon
    ),
    "HardSigmoid": _hard_sigmoid,
    "InstanceNormalization": lambda a, x, scale, bias: F.instance_norm(
        x, None, None, as_operand(scale), as_operand(bias), eps=a.epsilon
    ),
    "LRN": lambda a, x: F.local_response_norm(x, a.size, a.alpha, a.beta, a.bias),
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.alpha),
    "LogSoftmax": _softmax(torch.log_softmax),
    "Max": _variadic(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _variadic(torch.minimum),
    "Mod": lambda a, *both: (torch.fmod if a.fmod else torch.remainder)(*map(as_operand, both)),
    "RMSNormalization": lambda a, x, scale: F.rms_norm(
        x, x.shape[a.axis % x.dim() :], as_operand(scale), a.epsilon
    ),
    "Resize": _resize,
    "Selu": lambda _, x: F.selu(x),
    "Softmax": _softmax(torch.softmax),
    "Sum": _variadic(torch.add),
    "Upsample": _resize,
}
