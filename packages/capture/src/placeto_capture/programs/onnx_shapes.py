"""Ops of ONNX that move, pick or sum up elements, called as those of `onnx_ops` are."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError
from placeto_capture.programs.onnx_ops import (
    MAX_ELEMENTS,
    Attributes,
    Op,
    as_operand,
    whole_numbers,
)


def _reshape(a: Attributes, x: Tensor, shape: Any) -> Tensor:
    sizes = whole_numbers(shape)
    if not a.allowzero:
        sizes = [x.shape[n] if size == 0 else size for n, size in enumerate(sizes)]
    return x.reshape(sizes)


def _unsqueeze(a: Attributes, x: Tensor, axes: Any = None) -> Tensor:
    places = whole_numbers(axes, a.axes)
    for axis in sorted(axis % (x.dim() + len(places)) for axis in places):
        x = x.unsqueeze(axis)
    return x


def _squeeze(a: Attributes, x: Tensor, axes: Any = None) -> Tensor:
    if axes is None and a.axes is None:
        return x.squeeze()
    return x.squeeze(tuple(whole_numbers(axes, a.axes)))


def _split(a: Attributes, x: Tensor, split: Any = None) -> Any:
    if split is not None or a.split is not None:
        sizes = whole_numbers(split, a.split)
    else:
        size = -(-x.shape[a.axis] // len(a.outputs))
        sizes = [size] * (len(a.outputs) - 1)
        sizes.append(x.shape[a.axis] - sum(sizes))
    return torch.split(x, sizes, dim=a.axis)


def _slice(a: Attributes, x: Tensor, *inputs: Any) -> Tensor:
    named_inputs = dict(zip(("starts", "ends", "axes", "steps"), inputs, strict=False))
    starts = whole_numbers(named_inputs.get("starts"), a.starts)
    ends = whole_numbers(named_inputs.get("ends"), a.ends)
    axes = whole_numbers(named_inputs.get("axes"), a.axes or range(len(starts)))
    steps = whole_numbers(named_inputs.get("steps"), [1] * len(starts))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places = [slice(None)] * (axis % x.dim())
        if step == -1:
            size = x.shape[axis]
            first, last = _mirrored(start, size), _mirrored(end, size)
            x = x.flip(axis)[(*places, slice(first, last))]
        elif step < 1:
            raise CaptureError(f"expected steps of -1 or of at least 1, got {step}")
        else:
            x = x[(*places, slice(start, end, step))]
    return x


def _mirrored(place: int, size: int) -> int:
    return size - 1 - (place + size if place < 0 else min(place, size - 1))


def _from_the_start(indices: Any, x: Tensor, axis: int) -> Any:
    """Return indices for functions that do not count from the end, as ONNX does; see `_gather`."""
    if isinstance(indices, np.ndarray) and indices.ndim > 0:
        indices = np.where(indices < 0, indices + x.shape[axis], indices)
    return as_operand(indices)


def _never_negative(indices: Any, x: Tensor, axis: int) -> Any:
    """Return indices for `torch.gather` and `torch.scatter`, which refuse negative ones."""
    positions = _from_the_start(indices, x, axis)
    if isinstance(indices, Tensor):  # computed; a remainder would also take those beyond the end
        positions = torch.where(positions < 0, positions + x.shape[axis], positions)
    return positions


def _gather(a: Attributes, table: Any, indices: Any) -> Any:
    x = as_operand(table)
    positions = _from_the_start(indices, x, a.axis)
    if isinstance(positions, int):
        return x.select(a.axis, positions)
    is_constant = not isinstance(indices, Tensor)
    if a.axis == 0 and x.dim() == 2 and (is_constant or isinstance(x, nn.Parameter)):
        return F.embedding(positions, x)
    return x[(slice(None),) * (a.axis % x.dim()) + (positions,)]


def _picked_elements(function: Op) -> Op:
    """Return what calls `torch.gather` or `torch.scatter`, the latter with the new values."""

    def run(a: Attributes, operand: Any, indices: Any, *updates: Any) -> Any:
        x = as_operand(operand)
        positions = _never_negative(indices, x, a.axis)
        return function(x, a.axis, positions, *map(as_operand, updates))

    return run


def _tile(_: Attributes, x: Tensor, repeats: Any) -> Tensor:
    counts = whole_numbers(repeats)
    if x.numel() * math.prod(counts) > MAX_ELEMENTS:
        raise CaptureError(f"expected at most {MAX_ELEMENTS} elements")
    return x.repeat(counts)


def _pad(a: Attributes, x: Tensor, pads: Any = None, fill: Any = None, axes: Any = None) -> Tensor:
    sizes = whole_numbers(pads, a.pads)
    places = [axis % x.dim() for axis in whole_numbers(axes, range(x.dim()))]
    sides = {axis: (sizes[n], sizes[n + len(places)]) for n, axis in enumerate(places)}
    both = [side for axis in reversed(range(x.dim())) for side in sides.get(axis, (0, 0))]
    value = a.value if fill is None else float(np.asarray(fill).ravel()[0])
    if a.mode == "constant":
        return F.pad(x, both, value=value)
    while len(both) > 2 and both[-2:] == [0, 0]:  # only the last axes can be padded so
        both = both[:-2]
    return F.pad(x, both, mode={"edge": "replicate", "wrap": "circular"}.get(a.mode, a.mode))


def _depth_to_space(a: Attributes, x: Tensor) -> Tensor:
    if a.mode == "CRD":
        return F.pixel_shuffle(x, a.blocksize)
    (batch, depth, height, width), size = x.shape, a.blocksize
    blocks = x.reshape(batch, size, size, depth // size**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * size, width * size)


def _space_to_depth(a: Attributes, x: Tensor) -> Tensor:
    (batch, depth, height, width), size = x.shape, a.blocksize
    blocks = x.reshape(batch, depth, height // size, size, width // size, size)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // size, width // size)


def _reduce(function: Op) -> Op:
    def run(a: Attributes, x: Tensor, axes: Any = None) -> Tensor:
        default_axes, keepdim, is_noop = a.axes, bool(a.keepdims), bool(a.noop_with_empty_axes)
        chosen = default_axes if axes is None else whole_numbers(axes)
        if is_noop and not chosen:
            return x
        result: Tensor = function(x, dim=tuple(chosen or range(x.dim())), keepdim=keepdim)
        return result

    return run


def _product(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in dim), reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def _arg(function: Op) -> Op:
    def run(a: Attributes, x: Tensor) -> Any:
        return function(x, dim=a.axis, keepdim=bool(a.keepdims))

    return run


SHAPES: dict[str, Op] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Concat": lambda a, *inputs: torch.cat([as_operand(operand) for operand in inputs], dim=a.axis),
    "CumSum": lambda _, x, axis: torch.cumsum(x, whole_numbers(axis)[0]),
    "DepthToSpace": _depth_to_space,
    "Expand": lambda _, x, shape: x.expand(
        np.broadcast_shapes(tuple(x.shape), tuple(whole_numbers(shape)))
    ),
    "EyeLike": lambda _, x: torch.eye(*x.shape),  # a constant, of any dtype
    "Flatten": lambda a, x: x.reshape(math.prod(x.shape[: a.axis]), -1),
    "Gather": _gather,
    "GatherElements": _picked_elements(torch.gather),
    "Pad": _pad,
    "ReduceL1": _reduce(partial(torch.linalg.vector_norm, ord=1)),
    "ReduceL2": _reduce(torch.linalg.vector_norm),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(torch.sum),
    "ReduceSumSquare": _reduce(lambda x, **named: x.square().sum(**named)),
    "Reshape": _reshape,
    "ScatterElements": _picked_elements(torch.scatter),
    "ScatterND": lambda _, x, indices, updates: as_operand(x).index_put(
        as_operand(indices).unbind(-1), as_operand(updates)
    ),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": lambda a, x, count: tuple(
        torch.topk(x, whole_numbers(count)[0], a.axis, largest=a.largest is None or bool(a.largest))
    ),
    "Transpose": lambda a, x: x.permute(a.perm or list(range(x.dim()))[::-1]),
    "Trilu": lambda a, x, diagonal=None: (torch.triu if a.upper else torch.tril)(
        x, whole_numbers(diagonal, 0)[0]
    ),
    "Unsqueeze": _unsqueeze,
}
