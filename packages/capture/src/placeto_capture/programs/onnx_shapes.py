"""Ops of ONNX that move elements: shapes, slices, gathers."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError
from placeto_capture.programs.onnx_ops import Attributes, Op, optional, tensor, whole_numbers

MAX_ELEMENTS = 2**40  # shapes need no memory, but numbers have an end


def _numbers_of(inputs: list[Any], place: int, attributes: Attributes, key: str) -> list[int]:
    """Return numbers that are an input since some version, and an attribute before."""
    given = optional(inputs, place)
    return whole_numbers(attributes.get(key) if given is None else given, key)


def _reshape(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    wanted = whole_numbers(inputs[1], "shapes")
    if not attributes.get("allowzero"):
        wanted = [
            values.shape[place] if number == 0 else number for place, number in enumerate(wanted)
        ]
    return values.reshape(wanted)


def _flatten(inputs: list[Any], attributes: Attributes) -> Any:
    values, axis = inputs[0], attributes.get("axis", 1)
    if axis == 1:
        return values.flatten(1)
    axis = axis % values.dim() if axis < 0 else axis
    return values.reshape(math.prod(values.shape[:axis]), -1)


def _transpose(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    return values.permute(attributes.get("perm") or list(range(values.dim()))[::-1])


def _squeeze(inputs: list[Any], attributes: Attributes) -> Any:
    if optional(inputs, 1) is None and "axes" not in attributes:
        return inputs[0].squeeze()
    return inputs[0].squeeze(tuple(_numbers_of(inputs, 1, attributes, "axes")))


def _unsqueeze(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    axes = _numbers_of(inputs, 1, attributes, "axes")
    rank = values.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        values = values.unsqueeze(axis)
    return values


def _concat(inputs: list[Any], attributes: Attributes) -> Any:
    return torch.cat([tensor(value) for value in inputs], dim=attributes["axis"])


def _split(inputs: list[Any], attributes: Attributes) -> Any:
    values, axis = inputs[0], attributes.get("axis", 0)
    if optional(inputs, 1) is not None or "split" in attributes:
        parts = _numbers_of(inputs, 1, attributes, "split")
    else:
        size = -(-values.shape[axis] // attributes["outputs"])
        parts = [size] * (attributes["outputs"] - 1)
        parts.append(values.shape[axis] - sum(parts))
    found = torch.split(values, parts, dim=axis)
    return found[0] if attributes["outputs"] == 1 else found


def _slice(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    starts = _numbers_of(inputs, 1, attributes, "starts")
    ends = _numbers_of(inputs, 2, attributes, "ends")
    if optional(inputs, 3) is not None or "axes" in attributes:
        axes = _numbers_of(inputs, 3, attributes, "axes")
    else:
        axes = list(range(len(starts)))
    given = optional(inputs, 4)
    steps = [1] * len(starts) if given is None else whole_numbers(given, "steps")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = values.shape[axis]
        if step == -1:
            values = values.flip(axis)
            start, end = _mirrored(start, size), _mirrored(end, size)  # noqa: PLW2901
        elif step < 1:
            raise CaptureError(f"expected steps of -1 or of at least 1, got {step}")
        places = [slice(None)] * (axis % values.dim())
        values = values[(*places, slice(start, end, max(step, 1)))]
    return values


def _mirrored(place: int, size: int) -> int:
    return size - 1 - (place + size if place < 0 else min(place, size - 1))


def _gather(inputs: list[Any], attributes: Attributes) -> Any:
    values, axis = inputs[0], attributes.get("axis", 0)
    indices = tensor(inputs[1])
    if isinstance(values, np.ndarray):
        values = tensor(values)
    if isinstance(indices, int):
        return values.select(axis, indices)
    if axis == 0 and values.dim() == 2:
        return F.embedding(indices, values)
    found = values.index_select(axis, indices.flatten())
    return found.unflatten(axis, indices.shape)


def _gather_elements(inputs: list[Any], attributes: Attributes) -> Any:
    return torch.gather(tensor(inputs[0]), attributes.get("axis", 0), tensor(inputs[1]))


def _scatter_elements(inputs: list[Any], attributes: Attributes) -> Any:
    values, indices, updates = (tensor(value) for value in inputs)
    if attributes.get("reduction", "none") != "none":
        raise CaptureError("expected a scatter without a reduction")
    return torch.scatter(values, attributes.get("axis", 0), indices, updates)


def _scatter_nd(inputs: list[Any], attributes: Attributes) -> Any:
    values, indices, updates = (tensor(value) for value in inputs)
    if attributes.get("reduction", "none") != "none":
        raise CaptureError("expected a scatter without a reduction")
    return values.index_put(indices.unbind(-1), updates)


def _expand(inputs: list[Any], _attributes: Attributes) -> Any:
    values = inputs[0]
    wanted = whole_numbers(inputs[1], "shapes")
    shape = np.broadcast_shapes(tuple(values.shape), tuple(wanted))
    return values.expand(shape)


def _tile(inputs: list[Any], _attributes: Attributes) -> Any:
    counts = whole_numbers(inputs[1], "repeats")
    if inputs[0].numel() * math.prod(counts) > MAX_ELEMENTS:
        raise CaptureError(f"expected at most {MAX_ELEMENTS} elements")
    return inputs[0].repeat(counts)


def _pad(inputs: list[Any], attributes: Attributes) -> Any:
    values = inputs[0]
    pads = _numbers_of(inputs, 1, attributes, "pads")
    given = optional(inputs, 2)
    fill = attributes.get("value", 0.0) if given is None else float(np.asarray(given).ravel()[0])
    axes = list(range(values.dim()))
    if optional(inputs, 3) is not None:
        axes = [axis % values.dim() for axis in whole_numbers(inputs[3], "axes")]
    sides = {axis: (pads[n], pads[n + len(axes)]) for n, axis in enumerate(axes)}
    both = [side for axis in reversed(range(values.dim())) for side in sides.get(axis, (0, 0))]
    mode = str(attributes.get("mode", "constant"))
    mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    if mode == "constant":
        return F.pad(values, both, value=fill)
    while len(both) > 2 and both[-2:] == [0, 0]:  # only the last axes can be padded so
        both = both[:-2]
    return F.pad(values, both, mode=mode)


def _arg(function: Any) -> Op:
    def run(inputs: list[Any], attributes: Attributes) -> Any:
        keep = bool(attributes.get("keepdims", 1))
        return function(inputs[0], dim=attributes.get("axis", 0), keepdim=keep)

    return run


def _top_k(inputs: list[Any], attributes: Attributes) -> Any:
    (count,) = whole_numbers(inputs[1], "numbers")
    largest = bool(attributes.get("largest", 1))
    return tuple(torch.topk(inputs[0], count, dim=attributes.get("axis", -1), largest=largest))


def _cumulative_sum(inputs: list[Any], attributes: Attributes) -> Any:
    if attributes.get("exclusive") or attributes.get("reverse"):
        raise CaptureError("expected a sum from the beginning on")
    return torch.cumsum(inputs[0], whole_numbers(inputs[1], "axes")[0])


def _triangle(inputs: list[Any], attributes: Attributes) -> Any:
    diagonal = 0 if optional(inputs, 1) is None else whole_numbers(inputs[1], "diagonals")[0]
    function = torch.triu if attributes.get("upper", 1) else torch.tril
    return function(inputs[0], diagonal)


def _depth_to_space(inputs: list[Any], attributes: Attributes) -> Any:
    values, block = inputs[0], attributes["blocksize"]
    if attributes.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(values, block)
    batch, depth, height, width = values.shape
    parts = values.reshape(batch, block, block, depth // block**2, height, width)
    moved = parts.permute(0, 3, 4, 1, 5, 2)
    return moved.reshape(batch, depth // block**2, height * block, width * block)


def _space_to_depth(inputs: list[Any], attributes: Attributes) -> Any:
    values, block = inputs[0], attributes["blocksize"]
    batch, depth, height, width = values.shape
    parts = values.reshape(batch, depth, height // block, block, width // block, block)
    moved = parts.permute(0, 3, 5, 1, 2, 4)
    return moved.reshape(batch, depth * block**2, height // block, width // block)


def _like(inputs: list[Any], _attributes: Attributes) -> Tensor:
    return torch.eye(*inputs[0].shape)


SHAPES: dict[str, Op] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Concat": _concat,
    "CumSum": _cumulative_sum,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _like,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
