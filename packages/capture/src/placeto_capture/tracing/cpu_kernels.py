"""Kernels for CPUs of functions that PyTorch has for GPUs alone, and for GPUs of those for CPUs.

With them a step that was captured for a GPU also runs on a CPU, and attention, which is captured as
the function for CPUs, on a GPU. They are plain and slow. PyTorch has them while `LIBRARY` is there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten
DEFAULTS = 0.0, False  # the share that is dropped, and whether later keys are left out
LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _attention(*operands: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    """Return what attention gives, the logarithms of its sums, and the seed of its dropout."""
    query, key, value, bias, keeps_sums, *options = operands
    all_options: Any = [*options, *DEFAULTS[len(options) :]]
    dropout_p, is_causal = all_options
    scores = _scores(query, key, bias, is_causal, scale)
    seed = torch.randint(2**62, ())
    dropout_factors = _dropout_factors(scores, dropout_p, seed)
    attended = (scores.softmax(-1) * dropout_factors).to(value.dtype) @ value
    # As the kernel for GPUs has it: in whole blocks of 32 rows.
    rows = scores.shape[2] if keeps_sums else 0
    log_sumexp = scores.new_zeros((*scores.shape[:2], -(-rows // 32) * 32))
    log_sumexp[..., :rows] = scores.logsumexp(-1)[..., :rows]
    return attended, log_sumexp, seed, torch.zeros_like(seed)


def _attention_backward(*operands: Any, scale: float | None = None) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys, values and bias."""
    gradient, query, key, value, bias, _out, _log_sumexp, seed, _offset, *options = operands
    dropout_p, is_needed, *is_causal = options
    scores = _scores(query, key, bias, any(is_causal), scale)
    weights, dropout_factors = scores.softmax(-1), _dropout_factors(scores, dropout_p, seed)
    of_weights = (gradient @ value.mT).to(weights.dtype) * dropout_factors
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    of_products = (of_scores * factor).to(query.dtype)
    of_bias = None
    if bias is not None and is_needed[3]:
        of_bias = of_scores.sum_to_size(bias.shape).to(bias.dtype)
    of_value = (weights * dropout_factors).to(gradient.dtype).mT @ gradient
    return of_products @ key, of_products.mT @ query, of_value, of_bias


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Return the logarithms of the weights, at least in float32, but for a term per row."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    product: Any = query @ key.mT * factor
    scores: Tensor = product.to(torch.promote_types(query.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _dropout_factors(scores: Tensor, dropout_p: float, seed: Tensor) -> Tensor:
    """Return by what each weight is multiplied: by 0 where it is dropped."""
    generator = torch.Generator().manual_seed(int(seed))
    drawn = torch.rand(scores.shape, generator=generator, device=scores.device)
    return (drawn >= dropout_p).to(scores.dtype) / (1 - dropout_p)


def _attention_on_gpu(
    *operands: Any, attn_mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return what attention gives, and the logarithms of its sums."""
    query, key, value, *options = operands
    bias, options = _aligned_bias(query, key, attn_mask), [*options, *DEFAULTS[len(options) :]]
    attended, log_sumexp, *_ = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, *options, scale=scale
    )
    return attended, log_sumexp[..., : query.shape[2]]


def _attention_on_gpu_backward(
    *operands: Any, attn_mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys and values."""
    gradient, query, key, value, out, sums, dropout_p, is_causal = operands
    inputs = query, key, value, _aligned_bias(query, key, attn_mask)
    rows = -(-query.shape[2] // 32) * 32  # whole blocks
    in_blocks = sums.new_full((*query.shape[:2], rows), torch.inf)
    in_blocks[..., : query.shape[2]] = sums
    draws = (torch.zeros((), dtype=torch.int64),) * 2
    is_needed = [True, True, True, False]
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        gradient, *inputs, out, in_blocks, *draws, dropout_p, is_needed, is_causal, scale=scale
    )
    return tuple(gradients[:3])


def _aligned_bias(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return a mask with rows that begin at multiples of 16 numbers, as the GPU takes it."""
    if mask is None:
        return None
    room = query.new_empty((*query.shape[:3], -(-key.shape[2] // 16) * 16))
    return room[..., : key.shape[2]].copy_(mask)


# Older versions of PyTorch have no kernel for RMSNorm on GPUs either.
HAS_RMS_NORM = hasattr(aten, "_fused_rms_norm_backward")
KERNELS: dict[Any, tuple[Any, str]] = {
    aten._scaled_dot_product_efficient_attention.default: (_attention, "CPU"),
    aten._scaled_dot_product_efficient_attention_backward.default: (_attention_backward, "CPU"),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (_attention_on_gpu, "CUDA"),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (
        _attention_on_gpu_backward,
        "CUDA",
    ),
}
if HAS_RMS_NORM:
    rms_norm_backward = aten._fused_rms_norm_backward.default
    KERNELS[rms_norm_backward] = decomposition_table[rms_norm_backward], "CPU"


def _in_float32(kernel: Any) -> Callable[..., Tensor]:
    """Return a softmax that takes float16 and gives float32 on any device, not on GPUs alone."""

    def run(values: Tensor, dim: int, half_to_float: bool) -> Any:
        if half_to_float and values.device.type == "cpu":
            return kernel(values.float(), dim, False)
        return kernel(values, dim, half_to_float)

    return run


def _from_float32(kernel: Any) -> Callable[..., Tensor]:
    """Return the gradient of `_in_float32`."""

    def run(gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        if gradient.device.type == "cpu":
            return kernel(gradient, output, dim, gradient.dtype).to(input_dtype)
        return kernel(gradient, output, dim, input_dtype)

    return run


KERNELS_OF_ANY_DEVICE: dict[Any, Callable[..., Tensor]] = {
    aten._softmax.default: _in_float32(aten._softmax),
    aten._log_softmax.default: _in_float32(aten._log_softmax),
    aten._softmax_backward_data.default: _from_float32(aten._softmax_backward_data),
    aten._log_softmax_backward_data.default: _from_float32(aten._log_softmax_backward_data),
}
"""What runs functions whose kernels for CPUs refuse some dtypes."""
for function, (kernel, device) in KERNELS.items():
    if not torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), device):
        LIBRARY.impl(function, kernel, device)
