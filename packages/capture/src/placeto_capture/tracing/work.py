"""The work of a call of an ATen function: its FLOPs and bytes.

FLOPs of products are those of `torch.utils.flop_counter`, or of `FORMULAS`; those of factorisations
and Fourier transforms are in `linear_algebra`. Functions that move data have none, all others one
per element of the largest tensor that they touch. Bytes are those of the tensors that a call reads
and writes, each once; of a table, or of the matrices of a grouped product, only what is picked.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from placeto_capture.tracing.fake_results import indexed
from placeto_capture.tracing.functions import (
    ADDS,
    ALLOCATIONS,
    GROUPED,
    OVERWRITES,
    PICKS,
    PUTS,
    SHAPED_ALIKE,
    SHAPED_GRADIENTS,
    Function,
)
from placeto_capture.tracing.linear_algebra import LINEAR_ALGEBRA, Formula
from placeto_capture.tracing.trace import View

aten = torch.ops.aten
BILINEAR, BICUBIC = 0, 2  # as grid_sampler takes them
LOOKED_INTO = PICKS.keys() | PUTS  # functions whose bytes depend on what is in their arguments


def _of_products(first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count products of matrices, or of groups of rows, each with a matrix of its own."""
    products = first.shape[0] if first.dim() == second.dim() == 3 else 1
    return 2 * products * first.shape[-2] * first.shape[-1] * second.shape[-1]


def _of_trilinear(*args: Any, **_: Any) -> int:
    """Count the product of the first two, summed up over what the third one has not, and its."""
    sizes: dict[int, int] = {}
    axes, sumdim = [], args[6]
    for tensor, expanded in zip(args[:3], args[3:6], strict=True):
        tensor_axes = [axis for axis in range(tensor.dim() + len(expanded)) if axis not in expanded]
        sizes.update(zip(tensor_axes, tensor.shape, strict=True))
        axes.append(set(tensor_axes))
    pair = axes[0] | axes[1]
    remaining = (pair - (set(sumdim) - axes[2])) | axes[2]
    return 2 * sum(prod(sizes[axis] for axis in product) for product in (pair, remaining))


def _of_convolution_backward(*args: Any, **_: Any) -> int:
    """Count each gradient as the convolution; torch's formula leaves groups out of account."""
    grad_output, images, weight = args[:3]
    is_transposed, output_mask = args[7], args[10]
    small: torch.Tensor = images if is_transposed else grad_output
    products = small.shape[0] * prod(small.shape[2:]) * weight.numel() * sum(output_mask[:2])
    return int(2 * products)


def _of_distances(first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count a difference, a power and an addition per coordinate of each pair of points."""
    return 3 * first.numel() * second.shape[-2]


def _of_euclidean_distances(first: torch.Tensor, second: torch.Tensor, **_: Any) -> int:
    """Count the product of the points, which have the squares of their lengths beside them."""
    pairs = first.shape[:-1].numel() * second.shape[-2]
    return 2 * pairs * (first.shape[-1] + 2)


def _of_bags(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    return indices.numel() * weight.shape[1]


FORMULAS: dict[str, Formula] = {  # of functions that not every version of torch may have
    "aten._scaled_dot_product_flash_attention_for_cpu": (
        flop_registry[aten._scaled_dot_product_flash_attention]
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        flop_registry[aten._scaled_dot_product_flash_attention_backward]
    ),
    "aten.convolution_backward": _of_convolution_backward,
    "aten._int_mm": _of_products,
    "aten._grouped_mm": _of_products,
    "aten._scaled_grouped_mm": _of_products,
    "aten._scaled_grouped_mm_v2": _of_products,
    "aten._scaled_mm_v2": _of_products,
    "aten.addbmm": lambda _added, first, second, **_: _of_products(first, second),
    **dict.fromkeys(
        [f"aten.{name}" for name in ("addmv", "addr", "dot", "mv", "vdot")],
        lambda *args, **_: 2 * max(t.numel() for t in args if isinstance(t, torch.Tensor)),
    ),
    "aten._trilinear": _of_trilinear,
    "aten._cdist_forward": _of_distances,
    "aten._cdist_backward": lambda _, *points, **__: _of_distances(*points),
    "aten._pdist_forward": lambda points, *_, **__: _of_distances(points, points) // 2,
    "aten._pdist_backward": lambda _, points, *__, **___: _of_distances(points, points) // 2,
    "aten._euclidean_dist": _of_euclidean_distances,
    # One for each number that is picked of a table, or added to it.
    "aten._embedding_bag": _of_bags,
    "aten._embedding_bag_forward_only": _of_bags,
    "aten._embedding_bag_backward": lambda grad, indices, *_, **__: indices.numel() * grad.shape[1],
    "aten.embedding_dense_backward": lambda grad, *_, **__: grad.numel(),
    "aten.nll_loss_forward": lambda _, target, *__, **___: target.numel(),
    "aten.nll_loss2d_forward": lambda _, target, *__, **___: target.numel(),
    **LINEAR_ALGEBRA,
}


def changed_elements(function: Function, named: dict[str, Any]) -> int:
    """Return how many elements a call of one of `PUTS` changes, at most."""
    target = named["self"]
    indices: Any = named.get("indices", named.get("index"))
    if "source" in named:
        return int(named["source"].numel())
    if isinstance(indices, torch.Tensor):
        per_index = 1
        if function.name == "aten.embedding_renorm_":
            per_index = target.shape[1]
        elif function.name == "aten.index_fill_":
            per_index = target.numel() // target.shape[named["dim"]]
        return int(indices.numel() * per_index)
    return int(indexed(torch.Tensor.numel, target, indices).numel())  # masks pick all of theirs


def count_flops(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    tensors: Iterable[View],
) -> int:
    """Return the floating-point operations of a call; ``tensors`` are all that it touches."""
    formula = FORMULAS.get(function.name) or flop_registry.get(function.overload.overloadpacket)
    if formula is not None:
        is_complex = any(isinstance(arg, torch.Tensor) and arg.is_complex() for arg in args)
        return int(formula(*args, **kwargs, out_val=result)) * (4 if is_complex else 1)
    if function.name in ADDS or f"{function.name}_" in ADDS:
        return changed_elements(function, function.named(args, kwargs))
    if function.moves:
        return 0
    return max((prod(tensor.size) for tensor in tensors), default=0)


def count_bytes(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[View],
    written: Sequence[View],
    outputs: Sequence[View],
    widths: Mapping[int, float],
    experts_per_token: int,
) -> int:
    """Return the bytes that a call reads and writes; some storages are held in a part of theirs."""

    def stored_bytes(tensor: View, num_bytes: float) -> float:
        return num_bytes * widths.get(tensor.storage, 1.0)

    if function.name in ALLOCATIONS:
        return 0
    write_bytes = sum(tensor.num_bytes for tensor in {*written, *outputs})
    read, read_bytes = set(inputs), 0.0
    named = function.named(args, kwargs) if function.name in LOOKED_INTO else {}
    if function.name in SHAPED_ALIKE:
        read.discard(inputs[0])
    if SHAPED_GRADIENTS.fullmatch(function.name):
        read.discard(inputs[1])
    if function.name in PICKS:
        table = inputs[PICKS[function.name]]
        read.discard(table)
        picked_bytes = min(table.num_bytes, _picked_bytes(function, named, write_bytes))
        read_bytes = stored_bytes(table, picked_bytes)
        if named.get("sorter") is not None:  # the last argument, searched as the table is
            read.discard(inputs[-1])
            read_bytes += picked_bytes * inputs[-1].dtype.itemsize / table.dtype.itemsize
    if function.name in GROUPED:
        experts, rows = sorted(inputs[:2], key=lambda factor: -len(factor.size))
        if len(experts.size) > len(rows.size):
            num_rows = rows.size[0] if rows is inputs[0] else rows.size[-1]
            count = experts.size[0]
            missed = max(0.0, 1 - experts_per_token / count)
            touched = count * (1 - missed ** (num_rows / experts_per_token))  # if as likely
            read.discard(experts)
            read_bytes = stored_bytes(experts, experts.num_bytes) * touched / count
    if function.name in PUTS:
        (target,) = written
        put = stored_bytes(target, changed_elements(function, named) * target.dtype.itemsize)
        write_bytes = round(2 * put if function.name in ADDS or named.get("accumulate") else put)
    if function.name in OVERWRITES or function.name in PUTS:
        read -= set(written)
    read_bytes += sum(stored_bytes(tensor, tensor.num_bytes) for tensor in read)
    return write_bytes + round(read_bytes)


def _picked_bytes(function: Function, named: dict[str, Any], write_bytes: int) -> int:
    """Return how many bytes a call of one of `PICKS` reads of its table: as many as it writes.

    But sums read each row, losses a number, searches one a step, images the pixels around.
    """
    if "bag" in function.name:
        weight = named["weight"]
        return int(named["indices"].numel() * weight.shape[1] * weight.itemsize)
    if "nll_loss" in function.name:
        return int(named["target"].numel() * named["self"].itemsize)
    if function.name in {"aten.bucketize", "aten.searchsorted"}:
        searched = named["self"]
        table = named["boundaries"] if "boundaries" in named else named["sorted_sequence"]
        num_searched = searched.numel() if isinstance(searched, torch.Tensor) else 1
        return int(num_searched * table.shape[-1].bit_length() * table.itemsize)
    if "grid_sampler" in function.name:
        pixels = {BILINEAR: 2 ** (named["input"].dim() - 2), BICUBIC: 16}
        return write_bytes * int(pixels.get(named["interpolation_mode"], 1))
    return write_bytes
