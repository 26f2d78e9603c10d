"""What is known of each ATen function: what it writes, and which kind of work it does."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# Functions that change an argument although their schema does not say so: in training mode, the
# running mean and variance.
UNDECLARED_WRITES = {
    "aten.native_batch_norm": (3, 4),
    "aten.cudnn_batch_norm": (3, 4),
    "aten.miopen_batch_norm": (3, 4),
}
TRAINING_ARGUMENT = 5  # of these functions

# Functions that allocate memory and leave it as it is.
ALLOCATIONS = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)

# In-place functions that do not look at what was there before.
OVERWRITES = frozenset(
    f"aten.{name}_"
    for name in (
        "bernoulli",
        "cauchy",
        "copy",
        "exponential",
        "fill",
        "geometric",
        "log_normal",
        "normal",
        "random",
        "uniform",
        "zero",
    )
)

# Functions that look at the shape of a tensor, and not at its values.
SHAPED_ALIKE = frozenset(
    f"aten.{name}"
    for name in (
        "full_like",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "rand_like",
        "randint_like",
        "randn_like",
        "zeros_like",
    )
)

# Functions that move or make data and compute nothing.
MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy",
        "_pin_memory",
        "_unsafe_index",
        "arange",
        "cat",
        "clone",
        "col2im",
        "constant_pad_nd",
        "copy",
        "copy_",
        "embedding",
        "eye",
        "fill",
        "fill_",
        "flip",
        "full",
        "full_like",
        "gather",
        "im2col",
        "index",
        "index_copy",
        "index_copy_",
        "index_fill_",
        "index_put",
        "index_put_",
        "index_select",
        "lift_fresh",
        "linspace",
        "masked_fill",
        "masked_fill_",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "reflection_pad1d",
        "reflection_pad2d",
        "repeat",
        "replication_pad1d",
        "replication_pad2d",
        "roll",
        "scalar_tensor",
        "scatter",
        "scatter_",
        "select_backward",
        "select_scatter",
        "slice_backward",
        "slice_scatter",
        "split_with_sizes_copy",
        "stack",
        "tril",
        "triu",
        "unfold_backward",
        "upsample_nearest2d",
        "where",
        "zero_",
        "zeros",
        "zeros_like",
    )
)

# Functions that read of a table only the rows that they pick.
PICKS = frozenset(
    f"aten.{name}"
    for name in ("_unsafe_index", "embedding", "gather", "index", "index_select", "take")
)

# Products of a matrix or vector with a vector, for which torch has no formula: a multiplication and
# an addition per element of the larger one.
VECTOR_PRODUCTS = frozenset(f"aten.{name}" for name in ("addmv", "dot", "mv", "vdot"))


# Products of groups of rows, each with a matrix of its own, for which torch has no formula.
GROUPED_PRODUCTS = frozenset({"aten._grouped_mm"})


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
