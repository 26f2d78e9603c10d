"""How the type of an op is written: what is called, and in which precision it multiplies.

Devices multiply numbers of 16 bits many times as fast as those of 32, so a graph has to say of a
product which ones it takes. A type such as ``"aten.mm[bfloat16]"`` does, in graphs and in files. A
product of float32 has no dtype in its type, nor has an op that is no product: its time follows from
its bytes.
"""

import re

import torch
from torch.utils.flop_counter import flop_registry

from placeto_capture.tracing.counting import FORMULA_OF
from placeto_capture.tracing.functions import GROUPED_PRODUCTS, VECTOR_PRODUCTS
from placeto_capture.tracing.trace import Call, Source, references

DEFAULT_DTYPE = "float32"
TYPE_WITH_DTYPE = re.compile(r"(?P<function>.+)\[(?P<dtype>\w+)\]")


def op_type_of(op: Source | Call) -> str:
    """Return the type of an op in a graph.

    The dtype of a product is the narrowest one among its floating-point arguments: that of its
    operands also where what is added to the product, or what else it is told, is float32.

    Parameters
    ----------
    op
        As it was recorded.
    """
    if isinstance(op, Source) or not _is_product(op):
        return op.op_type
    dtypes = [ref.dtype for ref in references((op.arguments, op.keywords))]
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
    if call.parts:
        return False
    packet = call.function.overloadpacket
    named = call.op_type in VECTOR_PRODUCTS or call.op_type in GROUPED_PRODUCTS
    return named or FORMULA_OF.get(packet, packet) in flop_registry
