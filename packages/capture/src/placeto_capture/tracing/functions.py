"""What is known of each ATen function: what it writes, and how much work it does.

FLOPs of matrix products, convolutions and attention are those of formulas: torch's own
(`torch.utils.flop_counter`), and `FORMULAS` for what it has none for or a wrong one. A
multiplication and an addition count as two, those of complex numbers as the eight that they are. Of
the others, functions that move data (copies, gathers, constants) have none, and all that compute
(elementwise functions, reductions, normalisations, pooling, losses) have one per element of the
largest tensor that they read or write.

Bytes are those of the tensors that a call reads and writes, each once, and what it changes in place
twice, because it is read and written; what is merely overwritten is not read. Elements of an
expanded tensor count once. Of a table from which rows are picked, as many bytes are read as are
picked, and of one into which rows are put, as many are written. What a function knows by its shape
alone is not read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from placeto_capture.tracing import cpu_kernels  # noqa: F401 (they are registered)
from placeto_capture.tracing.trace import Call, Placeholder, View, views_in


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# Functions that change an argument although their schema does not say so: in training mode, the
# running mean and variance.
UNDECLARED_WRITES = {
    "aten.native_batch_norm": (3, 4),
    "aten.cudnn_batch_norm": (3, 4),
    "aten.miopen_batch_norm": (3, 4),
}
TRAINING_ARGUMENT = 5  # of these functions

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

# Functions that move or make data and compute nothing.
MOVES = _aten("""
    _index_put_impl_ _pin_memory _to_copy _unsafe_index _unsafe_index_put arange cat clone col2im
    constant_pad_nd copy copy_ diagonal_backward embedding eye fill fill_ flip full full_like gather
    im2col index index_copy index_copy_ index_fill_ index_put index_put_ index_select lift_fresh
    linspace masked_fill masked_fill_ masked_scatter masked_scatter_ new_full new_ones new_zeros
    ones ones_like put put_ reflection_pad1d reflection_pad2d repeat replication_pad1d
    replication_pad2d roll scalar_tensor scatter scatter_ select_backward select_scatter
    slice_backward slice_scatter split_with_sizes_copy stack take tril triu unfold_backward
    upsample_nearest2d where zero_ zeros zeros_like
""")

# Functions that read of a table only what they pick, and the position of the table.
PICKS = {
    **dict.fromkeys(
        _aten("""
            _ctc_loss _embedding_bag _embedding_bag_forward_only _unsafe_index embedding gather
            index index_select nll_loss2d_forward nll_loss_forward take
        """),
        0,
    ),
    "aten._embedding_bag_per_sample_weights_backward": 1,
}

# Functions that look at the shape of a tensor, and not at its values, and its position.
SHAPED = {
    **dict.fromkeys(SHAPED_ALIKE, 0),
    **dict.fromkeys(
        _aten("""
            _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
            adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward
            fractional_max_pool2d_backward fractional_max_pool3d_backward
            max_pool2d_with_indices_backward max_pool3d_with_indices_backward nll_loss2d_backward
            nll_loss_backward reflection_pad1d_backward reflection_pad2d_backward
            reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
            replication_pad3d_backward
        """),
        1,
    ),
}

# Functions that have a kernel on a GPU, and are made of others on a CPU; below autograd only steps
# for a GPU call them.
FUSED = _aten("_fused_rms_norm")

# In-place functions that change the places that they are told, and leave the others alone.
PUTS = _aten("""
    _index_put_impl_ embedding_renorm_ index_add_ index_copy_ index_fill_ index_put_ index_reduce_
    masked_scatter_ put_ scatter_ scatter_add_ scatter_reduce_
""")

# Functions with which autograd puts gradients into new zeros; it works in place, but for a dispatch
# mode it copies them.
COPIES = _aten("index_add index_put masked_scatter put scatter scatter_add")
ZEROS = _aten("new_zeros zeros zeros_like")

# Those of `PUTS` that read what was there before; `index_put_` does if it is told to accumulate.
ADDS = _aten("embedding_renorm_ index_add_ index_reduce_ scatter_add_ scatter_reduce_")


@dataclass(frozen=True)
class Function:
    """An ATen function.

    Attributes
    ----------
    name : str
        Such as ``"aten.add_"``.
    written_positions, written_keywords : frozensets
        The arguments that it changes in place.
    is_composite : bool
        Whether it is made of other functions of ATen.
    """

    name: str
    written_positions: frozenset[int]
    written_keywords: frozenset[str]
    is_composite: bool

    @property
    def allocates(self) -> bool:
        """Whether it makes a tensor without values."""
        return self.name in ALLOCATIONS

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return those arguments of a call that it changes in place."""
        positions = self.written_positions
        if self.name in UNDECLARED_WRITES and args[TRAINING_ARGUMENT]:
            positions = frozenset(UNDECLARED_WRITES[self.name])
        return [
            *(args[position] for position in positions if position < len(args)),
            *(kwargs[name] for name in self.written_keywords if name in kwargs),
        ]


@cache
def function_of(overload: Any) -> Function:
    """Return what is known of an overload of an ATen function."""
    positions, keywords = set(), set()
    # A function that changes no more than how a tensor looks at its storage writes nothing.
    if torch.Tag.inplace_view not in overload.tags:
        for position, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                # A positional argument may be given by its name, too.
                keywords.add(argument.name)
                if not argument.kwarg_only:
                    positions.add(position)
    return Function(
        name=str(overload.overloadpacket),
        written_positions=frozenset(positions),
        written_keywords=frozenset(keywords),
        is_composite=str(overload.overloadpacket) not in FUSED
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            overload.name(), "CompositeImplicitAutograd"
        ),
    )


def named_arguments(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names, but those that are left out."""
    names = [argument.name for argument in overload._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def changed_elements(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many elements a call of one of `PUTS` changes, at most."""
    named = named_arguments(overload, args, kwargs)
    target = named["self"]
    indices: Any = named.get("indices", named.get("index"))
    if "source" in named:
        return int(named["source"].numel())
    if isinstance(indices, torch.Tensor):
        name = overload.overloadpacket.__name__
        if name == "embedding_renorm_":
            return int(indices.numel() * target.shape[1])
        per_index = target.numel() // target.shape[named["dim"]] if name == "index_fill_" else 1
        return int(indices.numel() * per_index)
    left, shapes = list(target.shape), []
    for index in indices:
        if index is None:
            left.append(left.pop(0))
        else:  # a mask picks all of its dimensions at most
            is_mask = index.dtype in {torch.bool, torch.uint8}
            shapes.append((index.numel(),) if is_mask else index.shape)
            del left[: index.dim() if is_mask else 1]
    picked: Sequence[int] = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return prod((*picked, *left))


aten = torch.ops.aten
Formula = Callable[..., int]  # of the arguments of a call, and what it returned as `out_val`


def _of_products(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count products of matrices, or of groups of rows, each with a matrix of its own."""
    products = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2 * products * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _of_summed_products(_added: Any, left: torch.Tensor, right: torch.Tensor, **_: Any) -> int:
    return _of_products(left, right)


def _of_vector_product(*factors: Any, **_: Any) -> int:
    return 2 * max(each.numel() for each in factors if isinstance(each, torch.Tensor))


def _of_trilinear(
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """Count the product of the first two, summed up over what the third one has not, and its."""
    sizes: dict[int, int] = {}
    axes = []
    for tensor, expanded in ((first, expand1), (second, expand2), (third, expand3)):
        own = [axis for axis in range(tensor.dim() + len(expanded)) if axis not in expanded]
        sizes.update(zip(own, tensor.shape, strict=True))
        axes.append(set(own))
    pair = axes[0] | axes[1]
    left = (pair - (set(sumdim) - axes[2])) | axes[2]
    return 2 * sum(prod(sizes[axis] for axis in each) for each in (pair, left))


def _of_convolution_backward(
    grad_output: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    _bias_sizes: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    output_mask: Sequence[bool],
    **_: Any,
) -> int:
    """Count each of the gradients of images and weights as the convolution itself.

    Torch's formula leaves groups out of account in that of the weights.
    """
    small = images if transposed else grad_output
    return 2 * small.shape[0] * prod(small.shape[2:]) * weight.numel() * sum(output_mask[:2])


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
    # The kernel for CPUs has the shapes of that for GPUs.
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
    "aten.addbmm": _of_summed_products,
    **dict.fromkeys(sorted(_aten("addmv addr dot mv vdot")), _of_vector_product),
    "aten._trilinear": _of_trilinear,
    "aten._cdist_forward": _of_distances,
    "aten._cdist_backward": lambda _, *others, **__: _of_distances(*others),
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
}


def formula_of(overload: Any) -> Formula | None:
    """Return what counts the FLOPs of a function, None if they follow from its elements."""
    packet = overload.overloadpacket
    return FORMULAS.get(str(packet)) or flop_registry.get(packet)


def count_flops(
    overload: Any,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    tensors: Iterable[View],
) -> int:
    """Return the floating-point operations of a call; ``tensors`` are all that it touches."""
    formula = formula_of(overload)
    if formula is not None:
        is_complex = any(isinstance(each, torch.Tensor) and each.is_complex() for each in args)
        return int(formula(*args, **kwargs, out_val=result)) * (4 if is_complex else 1)
    if function.name in MOVES or function.allocates:
        return 0
    if function.name in PUTS or f"{function.name}_" in PUTS:
        return changed_elements(overload, args, kwargs)
    return max((tensor.num_elements for tensor in tensors), default=0)


def count_bytes(
    overload: Any,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[View],
    written: Sequence[View],
    outputs: Sequence[View],
) -> int:
    """Return the bytes that a call reads and writes.

    Parameters
    ----------
    overload, function, args, kwargs
        Function that is called, and its arguments.
    inputs
        Its tensor arguments.
    written
        Those of them that it changes in place.
    outputs
        The tensors that it makes.
    """
    if function.allocates:
        return 0
    write_bytes = sum(tensor.num_bytes for tensor in {*written, *outputs})
    read, read_bytes = set(inputs), 0
    if function.name in SHAPED:
        read.discard(inputs[SHAPED[function.name]])
    if function.name in PICKS:
        table = inputs[PICKS[function.name]]
        read.discard(table)
        read_bytes = min(table.num_bytes, _picked_bytes(overload, args, kwargs, write_bytes))
    if function.name in PUTS:
        read -= set(written)
        (target,) = written
        put = changed_elements(overload, args, kwargs) * target.dtype.itemsize
        adds = function.name in ADDS or named_arguments(overload, args, kwargs).get("accumulate")
        write_bytes = 2 * put if adds else put
    if function.name in OVERWRITES:
        read -= set(written)
    return write_bytes + read_bytes + sum(tensor.num_bytes for tensor in read)


def _picked_bytes(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], write_bytes: int
) -> int:
    """Return how many bytes a call of one of `PICKS` reads of its table: as many as it writes.

    But sums of rows read each row, and losses one number for each target, however many they write.
    """
    named = named_arguments(overload, args, kwargs)
    if "bag" in overload.overloadpacket.__name__:
        weight = named["weight"]
        return int(named["indices"].numel() * weight.shape[1] * weight.itemsize)
    if "nll_loss" in overload.overloadpacket.__name__:
        return int(named["target"].numel() * named["self"].itemsize)
    return write_bytes


def dtype_of(op: Placeholder | Call) -> str:
    """Return the name of the dtype that an op computes with, or that a placeholder holds.

    It is the narrowest floating-point one among the arguments of a call: that of the factors of a
    product also where what is added to it, or what else it is told, is float32. Where no argument
    is of floating-point numbers it is the narrowest one, and without tensors that of the result.

    Parameters
    ----------
    op
        As it was recorded.
    """
    if isinstance(op, Placeholder):
        views = list(op.tensors.values())
    else:
        views = [
            view for call in op.single_calls for view in views_in((call.arguments, call.keywords))
        ] or [view for view in op.outputs if view is not None]
    dtypes = [view.dtype for view in views]
    computing = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    narrowest = min(computing or dtypes, key=lambda dtype: dtype.itemsize, default="")
    return str(narrowest).removeprefix("torch.")


def groups_of(op: Placeholder | Call) -> tuple[int, int]:
    """Return the groups of a convolution and the input channels of each; 1 and 0 of all else."""
    if isinstance(op, Placeholder) or op.parts or "convolution" not in op.op_type:
        return 1, 0
    named = named_arguments(op.function, op.arguments, op.keywords)
    images: Any = named.get("input", named.get("self"))
    groups = int(named["groups"])
    return groups, images.size[1] // groups
