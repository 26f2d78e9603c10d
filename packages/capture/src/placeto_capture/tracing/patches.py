"""All that a capture changes in PyTorch while a step runs, in one context manager."""

import inspect
import logging
import os
import random
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.backends import mha
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel

from placeto_capture.errors import CaptureError, CaptureWarning, StepError
from placeto_capture.tracing.devices import (
    FAKE,
    GPU,
    OF_FAKES,
    SWITCHED_OFF,
    OneDevice,
    Target,
    warn_of_offload,
)
from placeto_capture.tracing.gpu_dispatch import dispatch_as_on_gpu
from placeto_capture.tracing.origins import model_line

# What is patched is of the process: of two captures that overlap one would leave its patches.
# A fork waits for the whole capture: the child would keep the patches, and locks of Python's own,
# such as that of `functools.cached_property`, for good.
CAPTURE_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CAPTURE_LOCK.acquire,
        after_in_parent=CAPTURE_LOCK.release,
        after_in_child=CAPTURE_LOCK.release,
    )


@contextmanager
def patched_torch(target: Target) -> Iterator[None]:
    """Let PyTorch run a step as on a device, apart from the caller's modes and random numbers."""
    log = logging.getLogger(FakeTensorMode.__module__)  # it prints errors before it raises them
    with CAPTURE_LOCK, ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (a caller's)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # A context would keep casts of weights until its end, behind those that the step begins.
        stack.callback(torch.set_autocast_enabled, FAKE, torch.is_autocast_enabled(FAKE))
        torch.set_autocast_enabled(FAKE, False)

        stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        distribution: Any = torch.distributions.Distribution
        stack.callback(distribution.set_default_validate_args, distribution._validate_args)
        distribution.set_default_validate_args(False)  # values that are not known pass

        patches = [OneDevice(target), patch_format(), patch_module_apply(), patch_flex_attention()]
        patches += [mock.patch.object(torch, "cond", cond_by_value), patch_nested()]
        if target == "gpu":
            patches += [dispatch_as_on_gpu(), patch_autocast(), patch_offload(), patch_foreach()]
        for patch in patches:
            stack.enter_context(patch)
        yield


@contextmanager
def patch_autocast() -> Iterator[None]:
    """Let ``torch.autocast("cuda")`` apply to fake tensors, which are tensors of a CPU to PyTorch.

    It is that of CPUs, in the dtype of GPUs; `gpu_dispatch` has the dtype of each function.
    """
    make, enter, leave = (
        getattr(torch.autocast, name) for name in ("__init__", "__enter__", "__exit__")
    )
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype
    entered: defaultdict[int, list[torch.autocast]] = defaultdict(list)

    def make_fake(
        self: torch.autocast, device_type: str, dtype: Any = None, *args: Any, **keywords: Any
    ) -> None:
        if device_type == GPU:
            device_type, dtype = FAKE, dtype or dtype_of(GPU)
        make(self, device_type, dtype, *args, **keywords)

    def enter_fake(self: torch.autocast) -> Any:
        if self.device != GPU:
            return enter(self)
        # It was made before the step began, as the one of a decorator.
        fake = torch.autocast(FAKE, self.fast_dtype, self._enabled)
        if not self._enabled and not torch.cuda.is_available():
            fake = torch.autocast(FAKE, dtype_of(FAKE), is_enabled(FAKE))
            if not is_enabled(FAKE):
                warnings.warn(SWITCHED_OFF, CaptureWarning, stacklevel=3)
        entered[id(self)].append(fake)
        return enter(fake)

    def leave_fake(self: torch.autocast, *error: Any) -> Any:
        return leave(self if self.device != GPU else entered[id(self)].pop(), *error)

    def is_fake_enabled(device_type: str = GPU) -> bool:
        return is_enabled(FAKE if device_type == GPU else device_type)

    def fake_dtype(device_type: str) -> torch.dtype:
        is_of_fake = device_type == GPU and is_enabled(FAKE)
        return dtype_of(FAKE if is_of_fake else device_type)

    methods: Any = {"__init__": make_fake, "__enter__": enter_fake, "__exit__": leave_fake}
    functions: Any = {"is_autocast_enabled": is_fake_enabled, "get_autocast_dtype": fake_dtype}
    with mock.patch.multiple(torch.autocast, **methods), mock.patch.multiple(torch, **functions):
        yield


@contextmanager
def patch_offload() -> Iterator[None]:
    """Say that activations stay on a GPU, which ``save_on_cpu`` or a move to a CPU would move."""
    make = torch.autograd.graph.save_on_cpu.__init__
    device: Any = FakeTensor.device.fget  # type: ignore[attr-defined]

    def warn_and_make(*args: Any, **keywords: Any) -> None:
        warn_of_offload("save_on_cpu")
        make(*args, **keywords)

    def device_of(self: FakeTensor) -> torch.device:
        fake_device = device(self)
        return OF_FAKES if fake_device == OF_FAKES else fake_device

    with (
        mock.patch.object(torch.autograd.graph.save_on_cpu, "__init__", warn_and_make),
        mock.patch.object(FakeTensor, "device", property(device_of)),
    ):
        yield


def patch_foreach() -> Any:
    """Let optimizers take ``foreach`` for fake tensors where they take it for those of a GPU."""
    module: Any = sys.modules[torch.optim.Optimizer.__module__]
    kinds = [*module._foreach_supported_types, FakeTensor]
    switches: Any = {
        "_foreach_supported_types": kinds,
        "_get_foreach_kernels_supported_devices": lambda: [FAKE],
    }
    return mock.patch.multiple(module, **switches)


def cond_by_value(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Do what `torch.cond` does by an ``if``, so that its condition is known or refused."""
    return true_fn(*operands) if pred else false_fn(*operands)


def patch_format() -> Any:
    """Let a number in an f-string be known, such as ``experts[f"expert_{index}"]``."""

    def text(tensor: FakeTensor, specification: str) -> str:
        if tensor.dim() == 0:
            with suppress(CaptureError):
                return format(tensor.detach().item(), specification)
        return object.__format__(tensor, specification)

    return mock.patch.object(FakeTensor, "__format__", text)


def patch_module_apply() -> Any:
    """Let ``layer.to(dtype)`` pass if no weight changes; PyTorch would swap equal ones."""

    def apply(
        module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        for submodule in module.modules() if recurse else (module,):
            for name, weight in submodule._parameters.items():
                with torch.no_grad():
                    converted = None if weight is None else convert(weight)
                if converted is not weight:
                    raise CaptureError(
                        f"{type(submodule).__name__}.{name}: expected a weight that stays as it is "
                        "during a step, got one that is converted; convert the model before"
                    )
            for name, buffer in submodule._buffers.items():
                submodule._buffers[name] = None if buffer is None else convert(buffer)
        return module

    return mock.patch.object(nn.Module, "_apply", apply)


def patch_flex_attention() -> Any:
    """Let ``flex_attention`` be one op, as its kernel for GPUs is, without its ``score_mod``.

    The part of the blocks that its mask leaves out is where the kernel has dropout, for its time.
    """
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def attention(
        query: Any, key: Any, value: Any, score_mod: Any, mask: Any, scale: float, *_options: Any
    ) -> tuple[torch.Tensor, ...]:
        variables = inspect.getclosurevars(score_mod)
        for variable in (*variables.nonlocals.values(), *variables.globals.values()):
            if isinstance(variable, torch.Tensor) and variable.requires_grad:
                raise StepError("flex_attention: expected a score_mod without weights, got one")
        _, _, partial, indices, full, *_ = mask  # of each row of blocks how many are computed
        try:
            computed = sum(
                int(np.sum(num_blocks.tolist()))
                for num_blocks in (partial, full)
                if num_blocks is not None
            )
            left_out = 1 - computed / indices.numel()
        except CaptureError:
            left_out = 0.0
            warnings.warn(
                "flex_attention: captured as if it computed all pairs, as its mask is not "
                f"known{model_line()}",
                CaptureWarning,
                stacklevel=2,
            )
        # Queries of heads that share their keys are queries of one head.
        heads = query.reshape(len(query), key.shape[1], -1, query.shape[3])
        out, lse = kernel(heads, key, value, left_out, scale=scale)
        return out.reshape(query.shape), lse.reshape(query.shape[:3]), lse.new_empty(0)

    switches: Any = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": mock.Mock()}
    return mock.patch.multiple(
        flex_attention, create=True, flex_attention_hop=attention, **switches
    )


def patch_nested() -> Any:
    """Refuse nested tensors, whose shapes depend on values."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise StepError("expected dense tensors, got nested ones; use padded ones and a mask")

    names = "nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow"
    return mock.patch.multiple(torch.nested, **dict.fromkeys(names, refuse))  # type: ignore[call-overload]
