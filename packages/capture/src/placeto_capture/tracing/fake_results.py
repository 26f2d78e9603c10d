"""Fake results of functions that torch has none for."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey

from placeto_capture.errors import StepError
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.functions import Function
from placeto_capture.tracing.gpu_dispatch import NARROW

aten = torch.ops.aten
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default
# Returns how many elements a mask picks, or how many of a number of elements are picked.
PickedCount = Callable[[Any], int]


class UnknownCountError(Exception):
    """Nothing says how many elements are picked."""


def picked_result(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], count_picked: PickedCount
) -> Any:
    """Return fake tensors for a function whose shape depends on values."""
    make = _PICKED.get(function.overload)
    if make is not None:
        with suppress(UnknownCountError):
            return make(count_picked, **function.named(args, kwargs))
    advice = "take a function that is told the size, as repeat_interleave is by its output_size"
    if make is not None:
        advice = "say with mask_fraction which part of the elements a mask picks"
    raise StepError(
        f"the shape of what {function.name} gives depends on the values of a tensor, and capture "
        f"has none; use a mask of fixed shape, or {advice}"
    ) from None


def list_function(func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return what runs a function of lists for each tensor by itself; None of others."""
    if func is UNSCALE and len(args[0]) > 1:
        return _unscale
    if func.namespace == "aten" and func._opname.startswith("_foreach_"):
        return partial(func._op_dk, DispatchKey.CompositeExplicitAutograd)
    return None


def _unscale(gradients: Any, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    for gradient in gradients:
        UNSCALE([gradient], found_inf, inverse_scale)


def own_result(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], target: Target
) -> Any:
    """Return what a function gives on a device, as fake tensors; None where torch knows it."""
    named = function.named(args, kwargs)
    if function.name in _NORMALISATIONS:
        return _normalised(function, named)
    if function.name in _ATTENTION:
        return _laid_out_as_on(target, function, named)
    make = _OWN.get(function.name)
    return None if make is None else make(**named)


def _nonzero(count_picked: PickedCount, self: torch.Tensor) -> Any:
    # As torch lays it out: column by column.
    return self.new_empty((self.dim(), count_picked(self)), dtype=torch.int64).t()


def _masked_select(count_picked: PickedCount, self: torch.Tensor, mask: torch.Tensor) -> Any:
    times = _shape(self, mask).numel() // max(mask.numel(), 1)
    return self.new_empty(count_picked(mask) * times)


def indexed(count_picked: PickedCount, self: torch.Tensor, indices: Any) -> Any:
    """Return what rows of ``nonzero`` of each mask in its place pick."""
    whole_indices: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in {torch.bool, torch.uint8}:
            rows = index.new_empty(count_picked(index), dtype=torch.int64)
            whole_indices += [rows] * index.dim()
        else:
            whole_indices.append(index)
    return aten.index.Tensor(self, whole_indices)


def _unique(count_picked: PickedCount, self: torch.Tensor, **options: Any) -> Any:
    if options.get("dim") is not None:
        raise UnknownCountError
    count = count_picked(self.numel())
    return (
        self.new_empty(count),
        self.new_empty(self.shape if options.get("return_inverse") else 0, dtype=torch.int64),
        self.new_empty(count if options.get("return_counts") else 0, dtype=torch.int64),
    )


_PICKED: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: indexed,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
}


def _shape(*tensors: torch.Tensor) -> torch.Size:
    shapes = (tensor.shape for tensor in tensors)
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return shape


def _grouped_product(
    self: torch.Tensor, mat2: torch.Tensor, offs: Any = None, out_dtype: Any = None, **_: Any
) -> torch.Tensor:
    """Return what products of groups of rows, each with a matrix of its own, give.

    torch's formula has the dtypes of one kind of GPU. Of two matrices the sum is in groups.
    """
    size = [self.shape[-2], mat2.shape[-1]]
    if self.dim() == mat2.dim():
        groups = self.shape[0] if self.dim() == 3 or offs is None else offs.shape[0]
        size.insert(0, groups)
    dtype = out_dtype or self.dtype
    whole_rows = 16 // dtype.itemsize  # rows begin at whole 16 bytes
    padded = math.ceil(size[-1] / whole_rows) * whole_rows
    stride = [size[-2] * padded, padded, 1][-len(size) :]
    return self.new_empty_strided(size, stride, dtype=dtype)


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, **_: Any) -> Any:
    """Return losses, and probabilities of symbols between blanks, of equally long targets."""
    steps, batch = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else math.ceil(len(targets) / max(batch, 1))
    states = 2 * longest + 1
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, states)


def _averaged_loss(self: torch.Tensor, target: torch.Tensor, reduction: int = 1, **_: Any) -> Any:
    """Return the loss, a number where the losses of all elements have been before."""
    if not reduction:
        return None
    dtype = torch.promote_types(self.dtype, target.dtype)
    return self.new_empty(_shape(self, target), dtype=dtype).as_strided((), ())


def _normalised(function: Function, named: dict[str, Any]) -> Any:
    """Return normalised values, and statistics in the dtype of the parameters, as kernels have it.

    That of the values, which torch's formulas have for CPUs, is no other if both are the same. A
    batch normalisation that is not trained has no statistics.
    """
    if not named.get("training", True):
        return None
    result, *statistics = function.overload(**named)
    parameters = (named.get(name) for name in ("weight", "bias", "running_mean"))
    dtype = next((tensor.dtype for tensor in parameters if tensor is not None), None)
    if dtype is not None:
        statistics = [statistic.to(dtype) for statistic in statistics]
    return result, *statistics


def _laid_out_as_on(target: Target, function: Function, named: dict[str, Any]) -> Any:
    """Return what attention gives, laid out as the kernel of a device does it.

    Flash attention, which GPUs have in narrow dtypes and without a mask, follows the layout of its
    arguments. All other kernels put the heads behind the places; torch's formula of the one for
    CPUs is that of flash attention forward, and another one backward.
    """
    result = function.overload(**named)
    query = named["query"]
    masks = named.get("attn_mask"), named.get("attn_bias")
    is_flash = target == "gpu" and query.dtype in NARROW and masks == (None, None)
    if "grad_out" in named or "grad_out_" in named:
        arguments = [query, named["key"], named["value"]]
    else:
        arguments = [query]
    laid_out = (
        torch.empty_like(argument)
        if is_flash and argument.shape == tensor.shape
        else tensor.new_empty(tensor.transpose(1, 2).shape).transpose(1, 2)
        for tensor, argument in zip(result, arguments, strict=False)
    )
    return *laid_out, *result[len(arguments) :]


def _number(self: torch.Tensor) -> Any:
    """Return the value of a constant, as torch does it in more time."""
    constant = getattr(self, "constant", None)
    with torch._C._DisableTorchDispatch():
        return None if constant is None else constant.item()


_LOSSES = "binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"
_NORMALISATIONS = tuple(f"aten.native_{kind}_norm" for kind in ("batch", "group", "layer"))
_ATTENTION = tuple(
    f"aten._scaled_dot_product_{kernel}{suffix}"
    for kernel in ("efficient_attention", "flash_attention_for_cpu")
    for suffix in ("", "_backward")
)
_OWN: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm": _grouped_product,
    "aten._ctc_loss": _ctc_loss,
    "aten._local_scalar_dense": _number,
    **{f"aten.{name}": _averaged_loss for name in _LOSSES},
}
