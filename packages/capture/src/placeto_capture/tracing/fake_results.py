"""Fake results of functions that torch has none for.

Of some the shapes depend on values: how large they are can be said beforehand only as a part of
what they could be. Of others torch's formula is that of one kind of device.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey

from placeto_capture.errors import CaptureError

aten = torch.ops.aten
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default


class UnknownCountError(Exception):
    """Nothing says how many elements are picked."""


@dataclass(frozen=True)
class Picking:
    """How many elements are picked: the fraction is of those of masks that are not known."""

    fraction: float | None
    known_count: Callable[[torch.Tensor], int | None]

    def of(self, count: int) -> int:
        """Return how many of some elements are picked."""
        if self.fraction is None:
            raise UnknownCountError
        return math.ceil(self.fraction * count)

    def of_mask(self, mask: torch.Tensor) -> int:
        """Return how many elements a mask picks."""
        known = self.known_count(mask)
        return self.of(mask.numel()) if known is None else known


def picked_result(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], picking: Picking, place: str
) -> Any:
    """Return fake tensors for a function whose shape depends on values."""
    make, result = _PICKED.get(func), None
    if make is not None:
        with suppress(UnknownCountError):
            result = make(picking, *args, **kwargs)
    if result is None:
        raise CaptureError(
            f"{place}: the shape of what {func.overloadpacket} gives depends on the values of a "
            "tensor, and capture has none; use a mask of fixed shape, or say with mask_fraction "
            "which part of the elements a mask picks"
        ) from None
    return result


def list_function(func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return what runs a function of lists of tensors as one function for each; None of others.

    So each tensor can be where its weight is.
    """
    if func is UNSCALE and len(args[0]) > 1:
        return _unscale
    if func.namespace == "aten" and func._opname.startswith("_foreach_"):
        return partial(func._op_dk, DispatchKey.CompositeExplicitAutograd)
    return None


def _unscale(gradients: Any, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    for gradient in gradients:
        UNSCALE([gradient], found_inf, inverse_scale)


def own_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function gives, as fake tensors; None where torch knows it."""
    make = _OWN.get(func)
    return None if make is None else make(*args, **kwargs)


def _nonzero(picking: Picking, tensor: torch.Tensor) -> Any:
    size = (picking.of_mask(tensor), tensor.dim())
    # As torch lays it out: column by column.
    return tensor.new_empty(size[::-1], dtype=torch.int64).t()


def _masked_select(picking: Picking, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
    shape: torch.Size = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    times = math.prod(shape) // max(mask.numel(), 1)
    return tensor.new_empty(picking.of_mask(mask) * times)


def _index(picking: Picking, tensor: torch.Tensor, indices: Any) -> Any:
    """Return what rows of ``nonzero`` of each mask in its place pick."""
    numbers: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in {torch.bool, torch.uint8}:
            rows = index.new_empty(picking.of_mask(index), dtype=torch.int64)
            numbers += [rows] * index.dim()
        else:
            numbers.append(index)
    return aten.index.Tensor(tensor, numbers)


def _unique(
    picking: Picking,
    tensor: torch.Tensor,
    _sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    count = picking.of(tensor.numel())
    return (
        tensor.new_empty(count),
        tensor.new_empty(tensor.shape if return_inverse else 0, dtype=torch.int64),
        tensor.new_empty(count if return_counts else 0, dtype=torch.int64),
    )


def _unique_consecutive(
    picking: Picking,
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is not None:
        return None
    return _unique(picking, tensor, True, return_inverse, return_counts)


_PICKED: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
}


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    _bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return what products of groups of rows, each with a matrix of its own, give.

    torch's formula has the dtypes of one kind of GPU. Of two matrices the groups are of what is
    summed up, so that there is a product for each.
    """
    size = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():
        groups = left.shape[0] if left.dim() == 3 or offs is None else offs.shape[0]
        size.insert(0, groups)
    dtype = out_dtype or left.dtype
    whole_rows = 16 // dtype.itemsize  # rows begin at whole 16 bytes
    padded = math.ceil(size[-1] / whole_rows) * whole_rows
    stride = [size[-2] * padded, padded, 1][-len(size) :]
    return left.new_empty_strided(size, stride, dtype=dtype)


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses, and the probabilities of each symbol and of a blank around each.

    Targets are taken to be equally long: those of one dimension stand one behind the other.
    """
    steps, batch = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else math.ceil(len(targets) / max(batch, 1))
    states = 2 * longest + 1
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, states)


def _averaged_loss(values: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> Any:
    """Return the loss, a number where the losses of all elements have been before."""
    if not reduction:
        return None
    shape: torch.Size = torch.broadcast_shapes(values.shape, target.shape)  # type: ignore[no-untyped-call]
    dtype = torch.promote_types(values.dtype, target.dtype)
    return values.new_empty(shape, dtype=dtype).as_strided((), ())


_OWN: dict[Any, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_product,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.binary_cross_entropy.default: lambda values, target, _weight=None, reduction=1: (
        _averaged_loss(values, target, reduction)
    ),
    aten.mse_loss.default: _averaged_loss,
    aten.smooth_l1_loss.default: lambda values, target, reduction=1, _beta=1.0: _averaged_loss(
        values, target, reduction
    ),
    aten.soft_margin_loss.default: _averaged_loss,
}
