"""All that a capture changes in PyTorch while a step runs, in one context manager."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Literal, get_args
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.backends import mha
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from placeto_capture.errors import CaptureError

Target = Literal["gpu", "cpu"]
TARGETS: tuple[Target, ...] = get_args(Target)
GPU, FAKE = "cuda", "cpu"
# What is patched is of the process: of two captures that overlap one would leave its patches.
_PATCHING = threading.RLock()


@contextmanager
def patched_torch(target: Target, fake_mode: FakeTensorMode) -> Iterator[None]:
    """Let PyTorch run a step as on a device, apart from the caller's modes and random numbers.

    Attention is one op forward and one backward (flash attention, of which PyTorch's kernel for
    CPUs has the shape of that for GPUs), but with dropout of its weights, or a mask that is
    learned. Dropout is one op on a GPU, and ``torch.autocast("cuda")`` applies there. An LSTM or
    GRU is in its single ops, as any device can run them.

    Parameters
    ----------
    target
        Device whose kernels run.
    fake_mode
        Mode of the fake tensors of the step.
    """
    log = logging.getLogger(FakeTensorMode.__module__)  # it prints errors before it raises them
    with _PATCHING, ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.autocast("cpu", enabled=False))

        stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)

        patches = [patch_format(), patch_module_apply(), patch_cond(fake_mode)]
        if target == "gpu":
            patches += [patch_autocast(), patch_dropout()]
        for patch in patches:
            stack.enter_context(patch)
        yield


def patch_autocast() -> Any:
    """Let ``torch.autocast("cuda")`` apply to fake tensors, which are tensors of a CPU to PyTorch.

    PyTorch looks at the device of a tensor to tell which autocast applies, and switches that of
    GPUs off where there is no GPU. Here one that begins inside is that of CPUs, with the dtype that
    it would have on GPUs. Products and convolutions have their inputs cast by both. What only that
    of GPUs computes in float32, such as softmax, layer normalisation and losses, has the dtype of
    its input.
    """
    begin = torch.autocast.__init__

    def begin_on_fake(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: Any,
        **keywords: Any,
    ) -> None:
        if device_type == GPU:
            device_type, dtype = FAKE, dtype or torch.get_autocast_dtype(GPU)
        begin(self, device_type, dtype, *args, **keywords)

    return mock.patch.object(torch.autocast, "__init__", begin_on_fake)


def patch_dropout() -> Any:
    """Let dropout be the one op that PyTorch has for GPUs."""

    def dropout(
        input: torch.Tensor,  # noqa: A002 (as `torch.nn.functional.dropout` has it)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if training and 0 < p < 1 and not inplace:
            return torch.native_dropout(input, p, True)[0]
        arguments: Any = (input, p, training)
        return (torch.dropout_ if inplace else torch.dropout)(*arguments)

    return mock.patch.object(functional, "dropout", dropout)


def patch_backward(run_pass: Callable[..., Any]) -> Any:
    """Let a function run each backward pass, those inside of another one, too.

    It is called with the function that PyTorch calls, and with the arguments of that.
    """
    run = partial(run_pass, torch.autograd.graph._engine_run_backward)
    return mock.patch.object(torch.autograd, "_engine_run_backward", run)


def patch_cond(fake_mode: FakeTensorMode) -> Any:
    """Let `torch.cond` on a tensor run the branch with more FLOPs, the first one of two equal ones.

    A graph has one way through the step. Which one a step takes depends on values that are not
    known; the dearer one is an upper bound for all of them. FLOPs are those of the forward pass, of
    what torch has formulas for (`torch.utils.flop_counter`).
    """

    def flops(branch: Callable[..., Any], operands: Any) -> int:
        without_modes = _disable_current_modes()
        with without_modes, fake_mode, FlopCounterMode(display=False) as counter:
            branch(*operands)
        return int(counter.get_total_flops())

    def cond(
        pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
    ) -> Any:
        if isinstance(pred, torch.Tensor):
            pred = flops(true_fn, operands) >= flops(false_fn, operands)
        return true_fn(*operands) if pred else false_fn(*operands)

    return mock.patch.object(torch, "cond", cond)


def patch_format() -> Any:
    """Let a number in an f-string be the number where it is known, as of other tensors.

    Such as ``experts[f"expert_{index}"]``; PyTorch shows fake tensors as what they are.
    """

    def text(tensor: FakeTensor, specification: str) -> str:
        if tensor.dim() == 0:
            with suppress(CaptureError):
                return format(tensor.detach().item(), specification)
        return object.__format__(tensor, specification)

    return mock.patch.object(FakeTensor, "__format__", text)


def patch_module_apply() -> Any:
    """Let conversions such as ``layer.to(torch.float32)`` pass if they change no weight.

    PyTorch swaps the tensors of a module for the converted ones, even for themselves, and cannot do
    so with fake tensors in the middle of a step.
    """

    def apply(
        module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        for part in module.modules() if recurse else (module,):
            _convert(part, convert)
        return module

    return mock.patch.object(nn.Module, "_apply", apply)


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
