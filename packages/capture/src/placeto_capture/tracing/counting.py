"""FLOPs and bytes of one call.

FLOPs are those of torch's own formulas (`torch.utils.flop_counter`) where it has one: matrix
products, convolutions, attention; a multiplication and an addition count as two. Of the others,
functions that move data (copies, gathers, constants) have none, and all that compute (elementwise
functions, reductions, normalisations, pooling, losses) have one per element of the largest tensor
that they read or write.

Bytes are those of the tensors that a call reads and writes, each once, and what it changes in place
twice, because it is read and written; what is merely overwritten is not read. Elements of an
expanded tensor count once. Of a table from which rows are picked, as many bytes are read as are
picked.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from placeto_capture.tracing.functions import (
    GROUPED_PRODUCTS,
    MOVES,
    OVERWRITES,
    PICKS,
    VECTOR_PRODUCTS,
    Function,
)
from placeto_capture.tracing.trace import TensorRef

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
    tensors: Iterable[TensorRef],
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
    inputs: Sequence[TensorRef],
    written: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
) -> int:
    """Return the bytes that a call reads and writes.

    Parameters
    ----------
    function
        What is called.
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
