"""Kernels for CPUs of functions that PyTorch has for GPUs alone, and for GPUs of those for CPUs.

With them a step that was captured for a GPU also runs on a CPU, to be tried out or profiled. They
are plain and slow. Attention without dropout is captured as the function for CPUs, and runs on a
GPU as that for GPUs. PyTorch has these kernels as long as `LIBRARY` is there.
"""

from typing import Any

import torch
from torch._decomp import decomposition_table

aten = torch.ops.aten
LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return what attention gives, the logarithms of its sums, and the seed of its dropout."""
    scores = _scores(query, key, bias, is_causal, scale)
    seed = torch.randint(2**62, ())
    kept = _kept(scores, dropout_p, seed)
    attended = (scores.softmax(-1) * kept).to(value.dtype) @ value
    # As the kernel for GPUs has it: in whole blocks of 32 rows.
    rows = scores.shape[2] if compute_log_sumexp else 0
    log_sumexp = scores.new_zeros((*scores.shape[:2], -(-rows // 32) * 32))
    log_sumexp[..., :rows] = scores.logsumexp(-1)[..., :rows]
    return attended, log_sumexp, seed, torch.zeros_like(seed)


def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    _out: torch.Tensor,
    _log_sumexp: torch.Tensor,
    seed: torch.Tensor,
    _offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of queries, keys, values and bias."""
    scores = _scores(query, key, bias, is_causal, scale)
    weights, kept = scores.softmax(-1), _kept(scores, dropout_p, seed)
    of_weights = (gradient @ value.mT).to(weights.dtype) * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    of_products = (of_scores * factor).to(query.dtype)
    return (
        of_products @ key,
        of_products.mT @ query,
        (weights * kept).to(gradient.dtype).mT @ gradient,
        of_scores.sum_to_size(bias.shape).to(bias.dtype)
        if bias is not None and grad_input_mask[3]
        else None,
    )


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Return the logarithms of the weights, at least in float32, but for a term per row."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    product: Any = query @ key.mT * factor
    scores: torch.Tensor = product.to(torch.promote_types(query.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _kept(scores: torch.Tensor, dropout_p: float, seed: torch.Tensor) -> torch.Tensor:
    """Return by what each weight is multiplied: by 0 where it is dropped."""
    generator = torch.Generator().manual_seed(int(seed))
    drawn = torch.rand(scores.shape, generator=generator, device=scores.device)
    return (drawn >= dropout_p).to(scores.dtype) / (1 - dropout_p)


def _attention_on_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what attention gives, and the logarithms of its sums."""
    bias = _aligned_bias(query, key, attn_mask)
    attended, log_sumexp, *_ = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )
    return attended, log_sumexp[..., : query.shape[2]]


def _attention_on_gpu_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    log_sumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of queries, keys and values."""
    bias = _aligned_bias(query, key, attn_mask)
    rows = -(-query.shape[2] // 32) * 32  # whole blocks
    sums = log_sumexp.new_full((*query.shape[:2], rows), torch.inf)
    sums[..., : query.shape[2]] = log_sumexp
    no_draw = torch.zeros((), dtype=torch.int64)
    needed = [True, True, True, False]
    options: Any = {"scale": scale}
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        gradient,
        query,
        key,
        value,
        bias,
        out,
        sums,
        no_draw,
        no_draw,
        dropout_p,
        needed,
        is_causal,
        **options,
    )
    return tuple(gradients[:3])


def _aligned_bias(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Return a mask with rows that begin at multiples of 16 numbers, as the GPU takes it."""
    if mask is None:
        return None
    room = query.new_empty((*query.shape[:3], -(-key.shape[2] // 16) * 16))
    return room[..., : key.shape[2]].copy_(mask)


# Older versions of PyTorch have no kernel for RMSNorm on GPUs either.
HAS_RMS_NORM = hasattr(aten, "_fused_rms_norm_backward")
KERNELS: dict[Any, Any] = {
    aten._scaled_dot_product_efficient_attention.default: _attention,
    aten._scaled_dot_product_efficient_attention_backward.default: _attention_backward,
}
if HAS_RMS_NORM:
    rms_norm_backward = aten._fused_rms_norm_backward.default
    KERNELS[rms_norm_backward] = decomposition_table[rms_norm_backward]
for function, kernel in KERNELS.items():
    if not torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CPU"):
        LIBRARY.impl(function, kernel, "CPU")
KERNELS_FOR_GPUS: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_on_gpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_on_gpu_backward,
}
for function, kernel in KERNELS_FOR_GPUS.items():
    if not torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CUDA"):
        LIBRARY.impl(function, kernel, "CUDA")
