"""Properties of each ATen function: the arguments that it writes, and those that it looks at."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing import cpu_kernels  # noqa: F401 (they are registered)
from placeto_capture.tracing.trace import Op, Placeholder, views_in

MATMUL = torch.backends.cuda.matmul
PRECISION = "fp32_precision" if hasattr(MATMUL, "fp32_precision") else "allow_tf32"
TF32 = "tf32"  # as kinds of devices call it


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# Functions that change arguments in training although their schema does not say so.
BATCH_NORMS = _aten("native_batch_norm cudnn_batch_norm miopen_batch_norm")
UNDECLARED_WRITES = "running_mean", "running_var"

# Functions that allocate memory and leave it as it is.
ALLOCATIONS = _aten("empty empty_like empty_strided new_empty new_empty_strided")

# In-place functions that do not look at what was there before.
OVERWRITES = _aten("""
    bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ random_ uniform_
    zero_
""")

# Functions that look at the shape of a tensor, and not at its values.
SHAPED_ALIKE = _aten("""
    full_like new_full new_ones new_zeros ones_like rand_like randint_like randn_like zeros_like
""")

# Functions that move data and compute nothing, beside copies; and copies that do compute.
MOVES = _aten("masked_fill masked_fill_ masked_scatter masked_scatter_ tril triu where")
INTERPOLATES = re.compile(r"aten\.(_?upsample_(?!nearest)|grid_sampler)")

# Functions that read of a table only what they pick, and the position of the table.
PICKS = {
    **dict.fromkeys(
        _aten("""
            _ctc_loss _embedding_bag _embedding_bag_forward_only _unsafe_index embedding gather
            grid_sampler_2d grid_sampler_3d index index_select nll_loss2d_forward nll_loss_forward
            searchsorted take
        """),
        0,
    ),
    "aten._embedding_bag_per_sample_weights_backward": 1,
    "aten.bucketize": -1,
}

# Products of groups of rows, each with a matrix of its own.
GROUPED = _aten("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")

# Gradients that look at the shape of their second argument, and not at its values.
SHAPED_GRADIENTS = re.compile(
    r"aten\.(\w+_pool[23]d(_with_indices)?|\w+_pad[123]d|nll_loss(2d)?)_backward"
)

# In-place functions that change the places that they are told, and leave the others alone.
PUTS = _aten("""
    _index_put_impl_ embedding_renorm_ index_add_ index_copy_ index_fill_ index_put_ index_reduce_
    masked_scatter_ put_ scatter_ scatter_add_ scatter_reduce_
""")

# Functions that make what autograd puts gradients into.
ZEROS = _aten("new_zeros zeros zeros_like")

# Those of `PUTS` that read what was there before; `index_put_` does if it is told to accumulate.
ADDS = _aten("embedding_renorm_ index_add_ index_reduce_ scatter_add_ scatter_reduce_")


@dataclass(frozen=True)
class Function:
    """An ATen function."""

    overload: Any  # the function itself
    name: str  # such as ``"aten.add_"``
    arguments: tuple[str, ...]  # their names
    changed: frozenset[str]  # those that it changes in place
    reshapes: bool  # True if it changes how an argument looks at its storage
    is_composite: bool  # True if PyTorch takes it apart, as it has no kernel for it

    @property
    def moves(self) -> bool:
        """Whether it moves or makes data, and computes nothing."""
        is_copy = class_of_type(self.name) is OpClass.COPY and not INTERPOLATES.match(self.name)
        return is_copy or self.name in MOVES

    def named(self, args: Iterable[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names, but those that are left out."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return those arguments of a call that it changes in place."""
        named = self.named(args, kwargs)
        is_undeclared = self.name in BATCH_NORMS and named["training"]
        changed = UNDECLARED_WRITES if is_undeclared else self.changed
        return [value for name, value in named.items() if name in changed]


@cache
def function_of(overload: Any) -> Function:
    """Return what is known of an overload of an ATen function."""
    arguments = overload._schema.arguments
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, overload.name())
    reshapes = torch.Tag.inplace_view in overload.tags
    changed = (
        argument.name
        for argument in arguments
        if argument.alias_info and argument.alias_info.is_write
    )
    return Function(
        overload,
        name=str(overload.overloadpacket),
        arguments=tuple(argument.name for argument in arguments),
        changed=frozenset(() if reshapes else changed),  # how it looks is no value
        reshapes=reshapes,
        is_composite=has_kernel("CompositeImplicitAutograd")
        and not has_kernel("CPU")
        and overload._opname != "_fused_rms_norm",  # which has one on a GPU
    )


def dtype_of(op: Op) -> str:
    """Return the name of the dtype that an op computes with, or that a placeholder holds.

    It is the narrowest floating-point one among the arguments of a call, else the narrowest, else
    that of the result; and ``"tf32"`` if PyTorch rounds float32 ("high"
    `set_float32_matmul_precision`).
    """
    if isinstance(op, Placeholder):
        views = [*op.tensors.values()]
    else:
        views = views_in([(call.arguments, call.keywords) for call in op.single_calls])
        views = views or views_in(op.outputs)
    dtypes = [view.dtype for view in views]
    computing = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    narrowest = min(computing or dtypes, key=lambda dtype: dtype.itemsize, default="")
    is_product = class_of_type(op.op_type) in (OpClass.MATRIX_PRODUCT, OpClass.ATTENTION)
    if narrowest == torch.float32 and is_product and getattr(MATMUL, PRECISION) in ("tf32", True):
        return TF32
    return str(narrowest).removeprefix("torch.")


def computed_part_of(op: Op) -> float:
    """Return the part of an op's FLOPs that its kernel computes.

    Causal attention leaves out later keys. Where the kernel for CPUs has dropout, there is the part
    of the blocks that ``flex_attention`` leaves out (`patch_flex_attention`).
    """
    named = _arguments_of("scaled_dot_product", op)
    computed = 1.0 - named.get("dropout_p", 0.0) if "for_cpu" in op.op_type else 1.0
    if named.get("is_causal"):
        num_queries, num_keys = named["query"].size[-2], named["key"].size[-2]
        triangle = min(num_queries, num_keys)
        pairs = triangle * (triangle + 1) // 2 + (num_queries - triangle) * num_keys
        computed *= pairs / (num_queries * num_keys)
    return computed


def groups_of(op: Op) -> tuple[int, int]:
    """Return the groups of a convolution and the input channels of each; 1 and 0 of all else."""
    named = _arguments_of("convolution", op)
    if not named:
        return 1, 0
    images: Any = named.get("input", named.get("self"))
    groups = int(named["groups"])
    return groups, images.size[1] // groups


def _arguments_of(kind: str, op: Op) -> dict[str, Any]:
    """Return the arguments of a call of a kind of function by their names; none of all else."""
    if isinstance(op, Placeholder) or op.merged_calls or kind not in op.op_type:
        return {}
    return function_of(op.function).named(op.arguments, op.keywords)
