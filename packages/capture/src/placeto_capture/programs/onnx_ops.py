"""Ops of ONNX that work element by element, or multiply or reduce."""

import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError

Attributes = dict[str, Any]
Op = Callable[[list[Any], Attributes], Any]


def tensor(value: Any) -> Any:
    """Return a value for an op on tensors: a constant without dimensions is a number."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.item() if array.ndim == 0 else torch.from_numpy(array.copy())
    return value


def whole_numbers(value: Any, what: str) -> list[int]:
    """Return sizes or axes, which have to be constants."""
    if value is None or isinstance(value, Tensor):
        raise CaptureError(f"expected {what} that follow from constants and shapes")
    return [int(number) for number in np.asarray(value).ravel()]


def optional(inputs: list[Any], place: int) -> Any:
    """Return an input; None if it is left out."""
    return inputs[place] if place < len(inputs) else None


def _unary(function: Callable[..., Any]) -> Op:
    return lambda inputs, _: function(inputs[0])


def _binary(function: Callable[..., Any]) -> Op:
    def run(inputs: list[Any], _attributes: Attributes) -> Any:
        return function(tensor(inputs[0]), tensor(inputs[1]))

    return run


def _variadic(function: Callable[[Any, Any], Any]) -> Op:
    def run(inputs: list[Any], _attributes: Attributes) -> Any:
        return reduce(function, [_with_dimensions(value) for value in inputs])

    return run


def _with_dimensions(value: Any) -> Any:
    made = tensor(value)
    return made if isinstance(made, Tensor) else torch.tensor(made)


def _divided(first: Any, second: Any) -> Any:
    if any(isinstance(v, Tensor) and v.is_floating_point() for v in (first, second)):
        return first / second
    return torch.div(first, second, rounding_mode="trunc")


def _reduced(function: Callable[..., Tensor]) -> Op:
    def run(inputs: list[Any], attributes: Attributes) -> Any:
        values = inputs[0]
        axes = attributes.get("axes")
        if optional(inputs, 1) is not None:
            axes = whole_numbers(inputs[1], "axes")
        if not axes:
            if attributes.get("noop_with_empty_axes"):
                return values
            axes = list(range(values.dim()))
        return function(values, dim=tuple(axes), keepdim=bool(attributes.get("keepdims", 1)))

    return run


def _product(values: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    for axis in sorted((axis % values.dim() for axis in dim), reverse=True):
        values = values.prod(axis, keepdim=keepdim)
    return values


def _clipped(inputs: list[Any], attributes: Attributes) -> Any:
    least, most = tensor(optional(inputs, 1)), tensor(optional(inputs, 2))
    least = attributes.get("min") if least is None else least
    most = attributes.get("max") if most is None else most
    return torch.clamp(inputs[0], least, most)


def _gemm(inputs: list[Any], attributes: Attributes) -> Any:
    first, second, bias = inputs[0], inputs[1], tensor(optional(inputs, 2))
    first = first.t() if attributes.get("transA") else first
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    if attributes.get("transB") and alpha == beta == 1.0 and (bias is None or bias.dim() == 1):
        return F.linear(first, second, bias)
    second = second.t() if attributes.get("transB") else second
    if bias is None:
        return torch.mm(first, second) * alpha if alpha != 1.0 else torch.mm(first, second)
    return torch.addmm(bias, first, second, alpha=alpha, beta=beta)


def _einsum(inputs: list[Any], attributes: Attributes) -> Any:
    return torch.einsum(attributes["equation"], *map(tensor, inputs))


def _softmax(function: Callable[..., Tensor], inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    if attributes["version"] < 13:  # over all axes from this one on
        axis = attributes.get("axis", 1) % values.dim()
        return function(values.flatten(axis), dim=-1).view(values.shape)
    return function(values, dim=attributes.get("axis", -1))


def _hard_sigmoid(inputs: list[Any], attributes: Attributes) -> Any:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(inputs[0])
    return torch.clamp(inputs[0] * alpha + beta, 0, 1)


def _prelu(inputs: list[Any], _attributes: Attributes) -> Any:
    values, slope = inputs[0], tensor(inputs[1])
    return torch.where(values < 0, values * slope, values)


def _dropout(inputs: list[Any], attributes: Attributes) -> Any:
    trains = optional(inputs, 2)
    if attributes["outputs"] > 1:
        raise CaptureError("expected a dropout without a mask")
    if trains is None or not bool(np.asarray(trains)):
        return inputs[0]
    rate = optional(inputs, 1)
    return F.dropout(inputs[0], 0.5 if rate is None else float(np.asarray(rate)))


def _cast_like(inputs: list[Any], _attributes: Attributes) -> Any:
    return _with_dimensions(inputs[0]).to(_with_dimensions(inputs[1]).dtype)


def _where(inputs: list[Any], _attributes: Attributes) -> Any:
    condition, first, second = (tensor(value) for value in inputs)
    return torch.where(_with_dimensions(condition), first, second)


def _modulo(inputs: list[Any], attributes: Attributes) -> Any:
    function = torch.fmod if attributes.get("fmod") else torch.remainder
    return function(tensor(inputs[0]), tensor(inputs[1]))


def _itself(value: Tensor) -> Tensor:
    return value


_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "Identity": _itself,
    "IsInf": torch.isinf,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": F.relu,
    "Round": torch.round,
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
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "And": torch.logical_and,
    "Div": _divided,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "MatMul": torch.matmul,
    "Mul": operator.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "Sub": operator.sub,
    "Xor": torch.logical_xor,
}
OPS: dict[str, Op] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    "Max": _variadic(torch.maximum),
    "Min": _variadic(torch.minimum),
    "Sum": _variadic(torch.add),
    "ReduceL1": _reduced(partial(torch.linalg.vector_norm, ord=1)),
    "ReduceL2": _reduced(torch.linalg.vector_norm),
    "ReduceLogSumExp": _reduced(torch.logsumexp),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_product),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda values, **named: values.square().sum(**named)),
    "Cast": lambda inputs, attributes: inputs[0].to(attributes["to"]),
    "CastLike": _cast_like,
    "Celu": lambda inputs, attributes: F.celu(inputs[0], attributes.get("alpha", 1.0)),
    "Clip": _clipped,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": lambda inputs, attributes: F.elu(inputs[0], attributes.get("alpha", 1.0)),
    "Gelu": lambda inputs, attributes: F.gelu(
        inputs[0], approximate=attributes.get("approximate", "none")
    ),
    "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": lambda inputs, attributes: F.leaky_relu(inputs[0], attributes.get("alpha", 0.01)),
    "LogSoftmax": partial(_softmax, torch.log_softmax),
    "Mod": _modulo,
    "PRelu": _prelu,
    "Selu": lambda inputs, _: F.selu(inputs[0]),
    "Softmax": partial(_softmax, torch.softmax),
    "Where": _where,
}
