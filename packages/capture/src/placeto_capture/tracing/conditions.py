"""`torch.cond` on a tensor: of two branches the one that costs more runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def dearer_branches(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Let `torch.cond` run the branch with more FLOPs, the first one of two equal ones.

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

    before = torch.cond
    torch.cond = cond
    try:
        yield
    finally:
        torch.cond = before
