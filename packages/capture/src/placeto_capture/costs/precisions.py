"""In which precision a device multiplies: that of the numbers, or TensorFloat-32 for float32."""

from typing import Literal, get_args

from placeto_capture.costs.op_classes import OpClass
from placeto_capture.tracing.functions import DEFAULT_DTYPE, split_type

Tf32 = Literal["never", "convolutions", "always"]
TF32_CHOICES: tuple[Tf32, ...] = get_args(Tf32)
TF32 = "tf32"  # beside the names of dtypes

CONVOLUTIONS = frozenset({OpClass.CONVOLUTION, OpClass.DEPTHWISE_CONVOLUTION})
PRODUCTS = CONVOLUTIONS | {OpClass.MATRIX_PRODUCT}


def precision_of(op_type: str, op_class: OpClass, tf32: Tf32) -> str:
    """Return the precision of an op: the name of a dtype, or ``"tf32"``.

    Parameters
    ----------
    op_type
        Such as ``"aten.mm[bfloat16]"``.
    op_class
        Its class.
    tf32
        Which products of float32 may be computed in TensorFloat-32.

    Examples
    --------
    >>> precision_of("aten.convolution", OpClass.CONVOLUTION, "convolutions")
    'tf32'
    >>> precision_of("aten.mm", OpClass.MATRIX_PRODUCT, "convolutions")
    'float32'
    >>> precision_of("aten.mm[float16]", OpClass.MATRIX_PRODUCT, "always")
    'float16'
    """
    _, dtype = split_type(op_type)
    rounded = {"never": frozenset(), "convolutions": CONVOLUTIONS, "always": PRODUCTS}[tf32]
    return TF32 if dtype == DEFAULT_DTYPE and op_class in rounded else dtype
