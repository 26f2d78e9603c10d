"""What is known of each ATen function: what it writes, and how much work it does.

FLOPs are those of torch's own formulas (`torch.utils.flop_counter`) where it has one: matrix
products, convolutions, attention; a multiplication and an addition count as two. Of the others,
functions that move data (copies, gathers, constants) have none, and all that compute (elementwise
functions, reductions, normalisations, pooling, losses) have one per element of the largest tensor
that they read or write.

Bytes are those of the tensors that a call reads and writes, each once, and what it changes in place
twice, because it is read and written; what is merely overwritten is not read. Elements of an
expanded tensor count once. Of a table from which rows are picked, as many bytes are read as are
picked.

The type of an op says in which precision it multiplies, as devices multiply numbers of 16 bits many
times as fast as those of 32: ``"aten.mm[bfloat16]"``. A product of float32 has no dtype in its
type, nor has an op that is no product: its time follows from its bytes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

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
    _to_copy _pin_memory _unsafe_index arange cat clone col2im constant_pad_nd copy copy_
    embedding eye fill fill_ flip full full_like gather im2col index index_copy index_copy_
    index_fill_ index_put index_put_ index_select lift_fresh linspace masked_fill masked_fill_
    new_full new_ones new_zeros ones ones_like reflection_pad1d reflection_pad2d repeat
    replication_pad1d replication_pad2d roll scalar_tensor scatter scatter_ select_backward
    select_scatter slice_backward slice_scatter split_with_sizes_copy stack tril triu
    unfold_backward upsample_nearest2d where zero_ zeros zeros_like
""")

# Functions that read of a table only the rows that they pick.
PICKS = _aten("_unsafe_index embedding gather index index_select take")

# Products of a matrix or vector with a vector, for which torch has no formula: a multiplication and
# an addition per element of the larger one.
VECTOR_PRODUCTS = _aten("addmv dot mv vdot")


# Products of groups of rows, each with a matrix of its own, for which torch has no formula.
GROUPED_PRODUCTS = _aten("_grouped_mm")


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
        is_composite=torch._C._dispatch_has_kernel_for_dispatch_key(
            overload.name(), "CompositeImplicitAutograd"
        ),
    )


aten = torch.ops.aten
# The kernel for CPUs has the shapes of that for GPUs.
FORMULA_OF = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        aten._scaled_dot_product_flash_attention_backward
    ),
}


def count_flops(
    overload: Any,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    tensors: Iterable[View],
) -> int:
    """Return the floating-point operations of a call; ``tensors`` are all that it touches."""
    packet = FORMULA_OF.get(overload.overloadpacket, overload.overloadpacket)
    formula = flop_registry.get(packet)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    if function.name in MOVES or function.allocates:
        return 0
    if function.name in GROUPED_PRODUCTS:
        return _grouped_flops(args[0], args[1])
    largest = max((tensor.num_elements for tensor in tensors), default=0)
    return 2 * largest if function.name in VECTOR_PRODUCTS else largest


def _grouped_flops(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return what products of groups perform: each row, or each term, is in one group."""
    products = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2 * products * left.shape[-2] * left.shape[-1] * right.shape[-1]


def count_bytes(
    function: Function,
    inputs: Sequence[View],
    written: Sequence[View],
    outputs: Sequence[View],
) -> int:
    """Return the bytes that a call reads and writes.

    Parameters
    ----------
    function
        Function that is called.
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
    read = set(inputs)
    if function.name in OVERWRITES:
        read -= set(written)
    read_bytes = [tensor.num_bytes for tensor in read]
    if function.name in PICKS:
        read_bytes = [min(count, write_bytes) for count in read_bytes]
    return write_bytes + sum(read_bytes)


DEFAULT_DTYPE = "float32"
TYPE_WITH_DTYPE = re.compile(r"(?P<function>.+)\[(?P<dtype>\w+)\]")


def op_type_of(op: Placeholder | Call) -> str:
    """Return the type of an op in a graph.

    The dtype of a product is the narrowest one among its floating-point arguments: that of its
    operands also where what is added to the product, or what else it is told, is float32.

    Parameters
    ----------
    op
        As it was recorded.
    """
    if isinstance(op, Placeholder) or not _is_product(op):
        return op.op_type
    dtypes = [view.dtype for view in views_in((op.arguments, op.keywords))]
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    narrowest = min(floating, key=lambda dtype: dtype.itemsize, default=torch.float32)
    name = str(narrowest).removeprefix("torch.")
    return op.op_type if name == DEFAULT_DTYPE else f"{op.op_type}[{name}]"


def split_type(op_type: str) -> tuple[str, str]:
    """Return what an op calls, and the dtype that it multiplies.

    Examples
    --------
    >>> split_type("aten.mm[bfloat16]"), split_type("aten.mm")
    (('aten.mm', 'bfloat16'), ('aten.mm', 'float32'))
    """
    match = TYPE_WITH_DTYPE.fullmatch(op_type)
    return (match["function"], match["dtype"]) if match else (op_type, DEFAULT_DTYPE)


def _is_product(call: Call) -> bool:
    if call.parts or call.is_barrier:
        return False
    packet = call.function.overloadpacket
    named = call.op_type in VECTOR_PRODUCTS or call.op_type in GROUPED_PRODUCTS
    return named or FORMULA_OF.get(packet, packet) in flop_registry
