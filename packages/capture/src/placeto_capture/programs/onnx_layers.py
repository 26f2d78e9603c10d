"""Ops of ONNX that are layers: convolutions, pooling, normalisation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError
from placeto_capture.programs.onnx_ops import Attributes, Op, optional, tensor, whole_numbers

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MODES = {"nearest": "nearest", "linear": "linear", "cubic": "bicubic"}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _padded(
    values: Tensor, kernel: list[int], attributes: Attributes, fill: float
) -> tuple[Tensor, list[int]]:
    """Return values, padded where the two sides differ, and what is left to pad on both sides."""
    count = len(kernel)
    pads = list(attributes.get("pads") or [0] * 2 * count)
    automatic = attributes.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        pads = _same(values, kernel, attributes, lower=automatic == "SAME_LOWER")
    before, after = pads[:count], pads[count:]
    if before == after:
        return values, before
    both = [side for pair in zip(before[::-1], after[::-1], strict=True) for side in pair]
    return F.pad(values, both, value=fill), [0] * count


def _same(values: Tensor, kernel: list[int], attributes: Attributes, *, lower: bool) -> list[int]:
    before, after = [], []
    ones = [1] * len(kernel)
    steps = zip(
        values.shape[2:],
        kernel,
        attributes.get("strides") or ones,
        attributes.get("dilations") or ones,
        strict=True,
    )
    for size, width, stride, dilation in steps:
        covered = (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1
        total = max(0, covered - size)
        less, more = total // 2, total - total // 2
        before.append(more if lower else less)
        after.append(less if lower else more)
    return before + after


def _convolution(inputs: list[Any], attributes: Attributes) -> Any:
    weight, bias = inputs[1], tensor(optional(inputs, 2))
    kernel = list(weight.shape[2:])
    ones = [1] * len(kernel)
    values, padding = _padded(inputs[0], kernel, attributes, 0.0)
    return CONVOLUTIONS[len(kernel)](
        values,
        weight,
        bias,
        attributes.get("strides") or ones,
        padding,
        attributes.get("dilations") or ones,
        attributes.get("group", 1),
    )


def _transposed_convolution(inputs: list[Any], attributes: Attributes) -> Any:
    weight, bias = inputs[1], tensor(optional(inputs, 2))
    count = weight.dim() - 2
    pads = list(attributes.get("pads") or [0] * 2 * count)
    if pads[:count] != pads[count:] or attributes.get("output_shape"):
        raise CaptureError("expected equal padding on both sides")
    ones = [1] * count
    return TRANSPOSED[count](
        inputs[0],
        weight,
        bias,
        attributes.get("strides") or ones,
        pads[:count],
        attributes.get("output_padding") or [0] * count,
        attributes.get("group", 1),
        attributes.get("dilations") or ones,
    )


def _max_pool(inputs: list[Any], attributes: Attributes) -> Any:
    kernel = list(attributes["kernel_shape"])
    if attributes["outputs"] > 1:
        raise CaptureError("expected a pooling without indices")
    values, padding = _padded(inputs[0], kernel, attributes, float("-inf"))
    ones = [1] * len(kernel)
    return MAX_POOLS[len(kernel)](
        values,
        kernel,
        attributes.get("strides") or ones,
        padding,
        attributes.get("dilations") or ones,
        bool(attributes.get("ceil_mode", 0)),
    )


def _average_pool(inputs: list[Any], attributes: Attributes) -> Any:
    kernel = list(attributes["kernel_shape"])
    values, padding = _padded(inputs[0], kernel, attributes, 0.0)
    return AVERAGE_POOLS[len(kernel)](
        values,
        kernel,
        attributes.get("strides") or [1] * len(kernel),
        padding,
        bool(attributes.get("ceil_mode", 0)),
        bool(attributes.get("count_include_pad", 0)),
    )


def _global(function: Callable[..., Tensor]) -> Op:
    def run(inputs: list[Any], _attributes: Attributes) -> Any:
        values = inputs[0]
        return function(values, dim=tuple(range(2, values.dim())), keepdim=True)

    return run


def _batch_normalization(inputs: list[Any], attributes: Attributes) -> Any:
    values, scale, bias, mean, variance = inputs[:5]
    if attributes["outputs"] > 1 and attributes["version"] >= 14:
        raise CaptureError("expected a normalisation by fixed averages")
    return F.batch_norm(
        values, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5)
    )


def _layer_normalization(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    if attributes["outputs"] > 1:
        raise CaptureError("expected a normalisation without its averages")
    axis = attributes.get("axis", -1) % values.dim()
    bias = tensor(optional(inputs, 2))
    epsilon = attributes.get("epsilon", 1e-5)
    return F.layer_norm(values, values.shape[axis:], tensor(inputs[1]), bias, epsilon)


def _rms_normalization(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    axis = attributes.get("axis", -1) % values.dim()
    return F.rms_norm(
        values, values.shape[axis:], tensor(inputs[1]), attributes.get("epsilon", 1e-5)
    )


def _instance_normalization(inputs: list[Any], attributes: Attributes) -> Any:
    values, scale, bias = inputs
    epsilon = attributes.get("epsilon", 1e-5)
    return F.instance_norm(values, weight=tensor(scale), bias=tensor(bias), eps=epsilon)


def _group_normalization(inputs: list[Any], attributes: Attributes) -> Any:
    values, scale, bias = inputs
    epsilon = attributes.get("epsilon", 1e-5)
    return F.group_norm(values, attributes["num_groups"], tensor(scale), tensor(bias), epsilon)


def _resized(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    count = values.dim() - 2
    sizes = optional(inputs, 3)
    scales = optional(inputs, 2 if attributes["version"] > 10 else 1)
    if sizes is not None:
        size = whole_numbers(sizes, "sizes")[2:]
    elif scales is not None and not isinstance(scales, Tensor):
        factors = [float(scale) for scale in scales.ravel()][2:]
        size = [int(n * f) for n, f in zip(values.shape[2:], factors, strict=True)]
    else:
        raise CaptureError("expected sizes or scales that are constants")
    mode = MODES.get(attributes.get("mode", "nearest"), "nearest")
    if mode == "nearest":
        return F.interpolate(values, size, mode=mode)
    corners = attributes.get("coordinate_transformation_mode") == "align_corners"
    mode = LINEAR[count] if mode == "linear" else mode
    return F.interpolate(values, size, mode=mode, align_corners=corners)


LAYERS: dict[str, Op] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    "RMSNormalization": _rms_normalization,
    "Resize": _resized,
    "Upsample": _resized,
}
