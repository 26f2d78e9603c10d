"""Conversions within a step: of modules, as ``layer.to(torch.float32)``, and of numbers to text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from placeto_capture.errors import CaptureError


@contextmanager
def weights_stay() -> Iterator[None]:
    """Let conversions that change nothing pass, and refuse those that would change a weight.

    PyTorch swaps the tensors of a module for the converted ones, even for themselves, and cannot do
    so with fake tensors in the middle of a step.
    """

    def apply(
        module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        for part in module.modules() if recurse else (module,):
            _convert(part, convert)
        return module

    before = nn.Module._apply
    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]


@contextmanager
def numbers_become_text() -> Iterator[None]:
    """Let a number in an f-string be the number where it is known, as of other tensors.

    Such as ``experts[f"expert_{index}"]``; PyTorch shows fake tensors as what they are.
    """

    def text(tensor: FakeTensor, specification: str) -> str:
        if tensor.dim() == 0:
            with suppress(CaptureError):
                return format(tensor.detach().item(), specification)
        return object.__format__(tensor, specification)

    FakeTensor.__format__ = text  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del FakeTensor.__format__


def _convert(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name, weight in module._parameters.items():
        if weight is None:
            continue
        with torch.no_grad():
            converted = convert(weight)
        if converted is not weight:
            raise CaptureError(
                f"{type(module).__name__}.{name}: expected a weight that stays as it is during a "
                f"step, got a conversion from {_kind(weight)} to {_kind(converted)}; convert the "
                "model before"
            )
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = convert(buffer)


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} on {tensor.device}"
