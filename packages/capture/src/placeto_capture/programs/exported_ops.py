"""Which ops an exported program may name: those of ATen, on tensors and numbers."""

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from placeto_capture.errors import CaptureError

ATEN_OP = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
OF_NUMBERS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg")
}
# What ops mean by a text; one that means a file or a name of code is no op to run.
TEXTS = {
    "UPLO",
    "approximate",
    "driver",
    "equation",
    "indexing",
    "interpolation",
    "mode",
    "norm",
    "ord",
    "pad_mode",
    "padding",
    "padding_mode",
    "padding_side",
    "reduce",
    "rounding_mode",
    "side",
}
# They check what is known already.
CHECKS = ("_assert", "sym_constrain_range")


def _dropout(values: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Drop in the kernel of the device that is captured for, which the function of modules has."""
    return functional.dropout(values, p, train)


def op_named(owner: str, target: str) -> Callable[..., Any] | None:
    """Return an op; None for one that only checks values.

    Parameters
    ----------
    owner
        What names it, for error messages.
    target
        Its name.

    Raises
    ------
    CaptureError
        When it is no op of ATen, or one that touches more than tensors.

    Examples
    --------
    >>> op_named("program", "torch.ops.aten.relu.default")
    <OpOverload(op='aten.relu', overload='default')>
    >>> op_named("program", "torch.ops.aten.from_file.default")
    Traceback (most recent call last):
    ...
    placeto_capture.errors.CaptureError: program: expected an op on tensors, got \
'torch.ops.aten.from_file.default', which takes a filename
    """
    if target == "torch.ops.aten.dropout.default":
        return _dropout
    number = OF_NUMBERS.get(target.removeprefix("_operator.")) if "." in target else None
    if number is not None:
        return number
    found = ATEN_OP.fullmatch(target)
    if not found:
        raise CaptureError(f"{owner}: expected an op of ATen, got {target!r}")
    if found[1].startswith(CHECKS):
        return None
    op = getattr(getattr(torch.ops.aten, found[1], None), found[2], None)
    if not isinstance(op, torch._ops.OpOverload):
        raise CaptureError(f"{owner}: expected an op of this version of PyTorch, got {target!r}")
    for argument in op._schema.arguments:
        if "str" in str(argument.type) and argument.name not in TEXTS:
            raise CaptureError(
                f"{owner}: expected an op on tensors, got {target!r}, which takes a {argument.name}"
            )
    return op
