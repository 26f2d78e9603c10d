"""Which kernels a step runs: one op where the device has one for several of ATen's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
from torch.backends import mha
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from placeto_capture.tracing.autocast import autocast_for_gpus

Target = Literal["gpu", "cpu"]
TARGETS: tuple[Target, ...] = get_args(Target)


@contextmanager
def kernels_of(target: Target) -> Iterator[None]:
    """Let PyTorch choose kernels as it does on a device.

    Attention is one op forward and one backward (flash attention, of which PyTorch's kernel for
    CPUs has the shape of that for GPUs), but with dropout of its weights, or a mask that is
    learned. Dropout is one op on a GPU, and ``torch.autocast("cuda")`` applies there. An LSTM or
    GRU is in its single ops, as any device can run them.

    Parameters
    ----------
    target
        The device.
    """
    mkldnn, fast_path = torch._C._get_mkldnn_enabled(), mha.get_fastpath_enabled()
    dropout = functional.dropout
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        stack.callback(mha.set_fastpath_enabled, fast_path)
        mha.set_fastpath_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, mkldnn)
        torch._C._set_mkldnn_enabled(False)
        if target == "gpu":
            stack.enter_context(autocast_for_gpus())
            stack.callback(setattr, functional, "dropout", dropout)
            functional.dropout = _dropout_at_once
        yield


def _dropout_at_once(
    input: torch.Tensor,  # noqa: A002 (as `torch.nn.functional.dropout` has it)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Drop as `torch.nn.functional.dropout` does, in the op that PyTorch has for GPUs."""
    if training and 0 < p < 1 and not inplace:
        result: torch.Tensor = torch.native_dropout(input, p, True)[0]
        return result
    arguments: Any = (input, p, training)
    dropped: torch.Tensor = (torch.dropout_ if inplace else torch.dropout)(*arguments)
    return dropped
