"""Ops of ONNX that move, pick or sum up elements, called as those of `onnx_ops` are."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from placeto_capture.errors import CaptureError
from placeto_capture.programs.onnx_ops import MAX_ELEMENTS, Op, as_operand, whole_numbers


def _reshape(x: Tensor, shape: Any, allowzero: int = 0) -> Tensor:
    wanted = whole_numbers(shape)
    if not allowzero:
        wanted = [x.shape[n] if size == 0 else size for n, size in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(x: Tensor, axis: int = 1) -> Tensor:
    if axis == 1:
        return x.flatten(1)
    axis = axis % x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _squeeze(x: Tensor, given: Any = None, axes: Sequence[int] | None = None) -> Tensor:
    if given is None and axes is None:
        return x.squeeze()
    return x.squeeze(tuple(whole_numbers(given, axes)))


def _unsqueeze(x: Tensor, given: Any = None, axes: Sequence[int] | None = None) -> Tensor:
    places = whole_numbers(given, axes)
    for axis in sorted(axis % (x.dim() + len(places)) for axis in places):
        x = x.unsqueeze(axis)
    return x


def _split(
    x: Tensor,
    given: Any = None,
    *,
    outputs: Sequence[str],
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int = 0,  # noqa: ARG001 (as many as the node has)
) -> Any:
    if given is not None or split is not None:
        parts = whole_numbers(given, split)
    else:
        size = -(-x.shape[axis] // len(outputs))
        parts = [size] * (len(outputs) - 1)
        parts.append(x.shape[axis] - sum(parts))
    return torch.split(x, parts, dim=axis)


def _slice(x: Tensor, *inputs: Any, **attributes: Sequence[int]) -> Tensor:
    given = dict(zip(("starts", "ends", "axes", "steps"), inputs, strict=False))
    starts, ends = (whole_numbers(given.get(k), attributes.get(k)) for k in ("starts", "ends"))
    axes = whole_numbers(given.get("axes"), attributes.get("axes", range(len(starts))))
    steps = whole_numbers(given.get("steps"), [1] * len(starts))
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


def _gather(x: Any, indices: Any, axis: int = 0) -> Any:
    x, indices = as_operand(x), as_operand(indices)
    if isinstance(indices, int):
        return x.select(axis, indices)
    if axis == 0 and x.dim() == 2:
        return F.embedding(indices, x)
    return x.index_select(axis, indices.flatten()).unflatten(axis, indices.shape)


def _gather_elements(x: Any, indices: Any, axis: int = 0) -> Tensor:
    return torch.gather(as_operand(x), axis, as_operand(indices))


def _scatter(function: Callable[..., Tensor]) -> Op:
    def run(*inputs: Any, axis: int = 0, reduction: str = "none") -> Tensor:
        if reduction != "none":
            raise CaptureError("expected a scatter without a reduction")
        return function(*map(as_operand, inputs), axis)

    return run


def _scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    return torch.scatter(x, axis, indices, updates)


def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, _axis: int) -> Tensor:
    return x.index_put(indices.unbind(-1), updates)


def _expand(x: Tensor, shape: Any) -> Tensor:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(whole_numbers(shape))))


def _tile(x: Tensor, repeats: Any) -> Tensor:
    counts = whole_numbers(repeats)
    if x.numel() * math.prod(counts) > MAX_ELEMENTS:
        raise CaptureError(f"expected at most {MAX_ELEMENTS} elements")
    return x.repeat(counts)


def _pad(
    x: Tensor,
    given: Any = None,
    fill: Any = None,
    axes: Any = None,
    *,
    mode: str = "constant",
    pads: Sequence[int] | None = None,
    value: float = 0.0,
) -> Tensor:
    sizes = whole_numbers(given, pads)
    places = [axis % x.dim() for axis in whole_numbers(axes, range(x.dim()))]
    sides = {axis: (sizes[n], sizes[n + len(places)]) for n, axis in enumerate(places)}
    both = [side for axis in reversed(range(x.dim())) for side in sides.get(axis, (0, 0))]
    if mode == "constant":
        return F.pad(x, both, value=value if fill is None else float(np.asarray(fill).ravel()[0]))
    while len(both) > 2 and both[-2:] == [0, 0]:  # only the last axes can be padded so
        both = both[:-2]
    return F.pad(x, both, mode={"edge": "replicate", "wrap": "circular"}.get(mode, mode))


def _triangle(x: Tensor, diagonal: Any = None, upper: int = 1) -> Tensor:
    return (torch.triu if upper else torch.tril)(x, whole_numbers(diagonal, 0)[0])


def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    batch, depth, height, width = x.shape
    channels = depth // blocksize**2
    parts = x.reshape(batch, blocksize, blocksize, channels, height, width)
    moved = parts.permute(0, 3, 4, 1, 5, 2)
    return moved.reshape(batch, channels, height * blocksize, width * blocksize)


def _space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    batch, depth, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    parts = x.reshape(batch, depth, rows, blocksize, columns, blocksize)
    moved = parts.permute(0, 3, 5, 1, 2, 4)
    return moved.reshape(batch, depth * blocksize**2, rows, columns)


def _reduce(function: Op) -> Op:
    def run(
        x: Tensor,
        given: Any = None,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = axes if given is None else whole_numbers(given)
        if not chosen and noop_with_empty_axes:
            return x
        result: Tensor = function(x, dim=tuple(chosen or range(x.dim())), keepdim=bool(keepdims))
        return result

    return run


def _product(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in dim), reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def _arg(function: Op) -> Op:
    def run(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        if select_last_index:
            return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=bool(keepdims))
        return function(x, dim=axis, keepdim=bool(keepdims))

    return run


def _top_k(x: Tensor, count: Any, axis: int = -1, largest: int = 1, **_: Any) -> Any:
    return tuple(torch.topk(x, whole_numbers(count)[0], dim=axis, largest=bool(largest)))


def _cumulative_sum(x: Tensor, axis: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
    if exclusive or reverse:
        raise CaptureError("expected a sum from the beginning on")
    return torch.cumsum(x, whole_numbers(axis)[0])


SHAPES: dict[str, Op] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Concat": lambda *inputs, axis: torch.cat([as_operand(each) for each in inputs], dim=axis),
    "CumSum": _cumulative_sum,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": lambda x, dtype=1: torch.eye(*x.shape),  # noqa: ARG005 (a constant, of any dtype)
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
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
    "ScatterElements": _scatter(_scatter_elements),
    "ScatterND": _scatter(_scatter_nd),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": lambda x, perm=None: x.permute(perm or list(range(x.dim()))[::-1]),
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
