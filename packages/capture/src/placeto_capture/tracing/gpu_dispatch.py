"""What PyTorch's dispatcher does on a GPU and not on a CPU: autocast's dtypes, and one op for many.

Fake tensors are tensors of a CPU to PyTorch. Here the dispatcher itself does with them what it does
with those of a GPU, so that it matters not by which name or from where a function is called.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

from placeto_capture.errors import StepError
from placeto_capture.tracing.cpu_kernels import HAS_RMS_NORM
from placeto_capture.tracing.devices import FAKE

AUTOCAST, AUTOGRAD = DispatchKey.AutocastCPU, DispatchKey.AutogradCPU
NARROW = torch.float16, torch.bfloat16
FUSED_ATTENTION_DTYPES = torch.float32, *NARROW
aten = torch.ops.aten


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What autocast for CUDA does with a function, as ATen/autocast_mode.h has it. A function that is
# in none of these tables runs in the dtypes of its arguments.
FLOAT32 = _names("""
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d acos asin binary_cross_entropy_with_logits
    cdist cosh cosine_embedding_loss cosine_similarity dist erfinv exp expm1 frobenius_norm.dim
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2
    logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal renorm rms_norm rsqrt sinh
    smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d
""")
# Those of which the result is in float32, and the arguments stay as they are.
FLOAT32_RESULT = _names("""
    cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int
    norm.Scalar norm.ScalarOpt_dim prod prod.dim_int softmax.int sum sum.dim_IntList
""")
WITH_DTYPE: dict[str, Any] = {  # the overload that takes a dtype, where it is another one
    "norm.Scalar": aten.norm.ScalarOpt_dtype,
    "norm.ScalarOpt_dim": aten.norm.ScalarOpt_dim_dtype,
}
LOWER_PRECISION = _names("""
    _convolution _convolution.deprecated _scaled_dot_product_flash_attention _thnn_fused_gru_cell
    _thnn_fused_lstm_cell addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d
    conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution
    cudnn_convolution cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot
    linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
""")
WIDEST_DTYPE = _names("""
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
""")


@contextmanager
def dispatch_as_on_gpu() -> Iterator[None]:
    """Let the dispatcher do with fake tensors what it does with those of a GPU."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel for CPUs is replaced
            for name, kernel in kernels_of_autocast().items():
                library.impl(name, kernel, AUTOCAST.name)
        library.impl("dropout", dropout, AUTOGRAD.name)
        for name in ("softmax", "log_softmax"):
            library.impl(f"{name}.int", softmax_of_half(name), AUTOGRAD.name)
        library.impl("group_norm", group_norm, AUTOGRAD.name)
        library.impl("scaled_dot_product_attention", attention, AUTOGRAD.name)
        if HAS_RMS_NORM:
            library.impl("rms_norm", rms_norm, AUTOGRAD.name)
        yield
    finally:
        library._destroy()


# Autocast


@cache
def kernels_of_autocast() -> dict[str, Callable[..., Any]]:
    """Return what autocast for CPUs has to do in another way, by the names of functions."""
    on_gpu, on_cpu = (
        {name.removeprefix("aten::") for name in names if name.startswith("aten::")}
        for names in map(
            torch._C._dispatch_get_registrations_for_dispatch_key, ("AutocastCUDA", "AutocastCPU")
        )
    )
    kernels = dict.fromkeys(on_cpu - on_gpu, torch.library.fallthrough_kernel)
    # Those in lower precision keep their own kernel where there is one: it casts a weight once.
    return kernels | {
        name: kernel_of_autocast(name)
        for name in on_gpu
        if not (name in LOWER_PRECISION and name in on_cpu)
    }


def kernel_of_autocast(name: str) -> Callable[..., Any]:
    """Return what autocast for CUDA does in place of a function."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(aten, packet), overload or "default")

    def run(*arguments: Any, **keywords: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(AUTOCAST)):
            if name in FLOAT32_RESULT and is_cast(arguments[0]):
                named = dict(zip(schema_names, arguments, strict=False))
                named = defaults | named | keywords
                named["dtype"] = named.get("dtype") or torch.float32
                return WITH_DTYPE.get(name, function)(**named)
            dtype = dtype_of_autocast(name, [arguments, keywords])
            if dtype:
                arguments, keywords = cast((arguments, keywords), dtype)
            return function(*arguments, **keywords)

    schema = function._schema.arguments
    schema_names = [argument.name for argument in schema]
    defaults = {
        argument.name: argument.default_value for argument in schema if argument.has_default_value()
    }
    return run


def dtype_of_autocast(name: str, arguments: Any) -> torch.dtype | None:
    """Return the dtype that autocast for CUDA casts the arguments of a function to, if any."""
    if name in FLOAT32:
        return torch.float32
    lower_precision = torch.get_autocast_dtype(FAKE)
    if name in LOWER_PRECISION:
        return lower_precision
    if name in WIDEST_DTYPE:
        tensors = filter(is_cast, tree_leaves(arguments))
        is_wide = any(tensor.dtype == torch.float32 for tensor in tensors)
        return torch.float32 if is_wide else lower_precision
    if name == "binary_cross_entropy":
        raise StepError(
            "binary_cross_entropy: PyTorch refuses it in an autocast on a GPU; use "
            "binary_cross_entropy_with_logits (BCEWithLogitsLoss) without the sigmoid before it"
        )
    return None


def is_cast(value: Any) -> bool:
    """Return whether autocast casts an argument: a tensor of floating-point numbers, not double."""
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_floating and value.dtype != torch.float64


def cast(arguments: Any, dtype: torch.dtype) -> Any:
    """Return arguments with a dtype where autocast casts them."""
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if is_cast(tensor) else tensor, arguments
    )


# Functions that run in other ops on a GPU than on a CPU


def dropout(values: torch.Tensor, p: float, train: bool) -> Any:
    """Run dropout as the one op that PyTorch has for GPUs."""
    if not train or p == 0:
        return values
    if p == 1:
        return values * torch.zeros((), dtype=values.dtype)
    return torch.native_dropout(values, p, True)[0]


def softmax_of_half(name: str) -> Callable[..., Any]:
    """Return what runs a softmax that takes float16 and gives float32 as the one op for GPUs."""
    function, at_once = getattr(aten, name).int, getattr(aten, f"_{name}")

    def run(self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return at_once(self, dim, True)
        return function.decompose(self, dim, dtype)

    return run


def group_norm(values: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    """Run normalisation in groups with the channels first, as GPUs have it in this order alone."""
    function = aten.group_norm.default
    return function.decompose(values.contiguous(), *arguments, **keywords)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Run attention with dropout, a learned mask or narrow values as the one op for GPUs.

    That op takes no heads that share keys, as flash attention does: in float32 or with a mask they
    are single ops on a GPU (PyTorch, notes on ``enable_gqa``).
    """
    inputs = [query, key, value]
    is_learned = attn_mask is not None and attn_mask.requires_grad
    is_apart = dropout_p or is_learned or query.shape[-1] != value.shape[-1]
    fits = all(tensor.dim() == 4 and tensor.shape[1] == query.shape[1] for tensor in inputs)
    is_flash = query.dtype in NARROW and attn_mask is None
    is_in_parts = bool(options.get("enable_gqa")) and not is_flash
    if is_in_parts or not is_apart or not fits or query.dtype not in FUSED_ATTENTION_DTYPES:
        function = aten.scaled_dot_product_attention.default
        with sdpa_kernel(SDPBackend.MATH) if is_in_parts else nullcontext():
            return function.decompose(*inputs, attn_mask, dropout_p, is_causal, **options)
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            lowest = torch.scalar_tensor(-torch.inf, dtype=query.dtype)
            bias = torch.where(bias, 0.0, lowest)
        bias = bias.to(query.dtype).expand(*query.shape[:3], key.shape[2])
    keeps_sums = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (*inputs, bias)
    )
    return aten._scaled_dot_product_efficient_attention(
        *inputs, bias, keeps_sums, dropout_p, is_causal, scale=options.get("scale")
    )[0]


def rms_norm(
    values: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """Run RMSNorm as the one op that PyTorch has for GPUs."""
    arguments = values, normalized_shape, weight, eps
    if weight is not None and weight.dtype != values.dtype:
        return aten.rms_norm.default.decompose(*arguments)
    return RMSNorm.apply(*arguments)  # type: ignore[no-untyped-call]


class RMSNorm(torch.autograd.Function):
    """RMSNorm on a GPU: on a CPU PyTorch takes it apart above autograd."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            result, factors = aten._fused_rms_norm(*arguments)
        values, ctx.shape, weight, _ = arguments
        ctx.save_for_backward(values, weight, factors)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, weight, factors = ctx.saved_tensors
        is_needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_values, of_weight = aten._fused_rms_norm_backward(
            gradients[0], values, ctx.shape, factors, weight, is_needed
        )
        return of_values, None, of_weight, None
