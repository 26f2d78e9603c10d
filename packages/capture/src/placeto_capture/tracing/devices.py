"""Devices and autocast of a step, whose fake tensors are of a CPU to PyTorch."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.errors import CaptureError, CaptureWarning, StepError
from placeto_capture.tracing.origins import model_line

Target = Literal["gpu", "cpu"]
TARGETS: tuple[Target, ...] = get_args(Target)
GPU, FAKE = "cuda", "cpu"
OF_FAKES = torch.device(FAKE)  # what fake tensors say of their device, and nobody else has
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
AUTOCAST_DTYPES = torch.float16, torch.bfloat16, torch.float32  # the last one is none
SWITCHED_OFF = (
    "autocast: captured without the one that was made before the step and is off, as PyTorch lets "
    "torch.autocast('cuda') be where there is no GPU; autocast=torch.bfloat16 captures with it"
)


def warn_of_offload(operation: str) -> None:
    """Say that what a step moves to the CPU stays where it is."""
    warnings.warn(
        f"{operation}: captured as if its tensors stayed on the device, in its memory and without "
        f"copies{model_line()}",
        CaptureWarning,
        stacklevel=3,
    )


class OneDevice(TorchFunctionMode):
    """Lets a step that says where its tensors are run on the one device of the fake tensors.

    Nothing is moved. Numpy gets values that are known, and new ``data`` of a weight is written to
    it.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._is_gpu = target == "gpu"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and isinstance(args[0], FakeTensor):
            return _numpy(args[0])
        if func == SET_DATA and isinstance(args[0], nn.Parameter):
            return _set_data(*args)
        destinations = (*args[1:2], kwargs.get("device")) if func is torch.Tensor.to else ()
        devices = (device for device in destinations if isinstance(device, str | torch.device))
        is_to_cpu = any(
            device is not OF_FAKES and str(device).startswith("cpu") for device in devices
        )
        is_offload = self._is_gpu and (is_to_cpu or func is torch.Tensor.cpu)
        if is_offload and args[0].is_floating_point() and args[0].dim():
            warn_of_offload(".to('cpu')")
        if func is torch.Tensor.to:
            args = (args[0], *map(_fake_device, args[1:]))
        if kwargs.get("device") is not None:
            kwargs["device"] = _fake_device(kwargs["device"])
        elif func in _device_constructors():
            kwargs["device"] = torch.device(FAKE)
        return func(*args, **kwargs)


def _fake_device(value: Any) -> Any:
    """Return the device of fake tensors for another one, and other values as they are."""
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return value.dtype
    if isinstance(value, (str, torch.device)) or type(value) is int:
        is_meta = not isinstance(value, int) and torch.device(value).type == "meta"
        return torch.device("meta" if is_meta else FAKE)
    return value


def _numpy(tensor: torch.Tensor) -> Any:
    try:
        values = tensor.tolist()
    except CaptureError as error:
        raise StepError(
            ".numpy() asks for the values of a tensor, and capture has none; compute with torch's "
            "functions, or before the step, and give the result as an input"
        ) from error
    with _disable_current_modes():
        return torch.tensor(values, dtype=tensor.dtype).view(tuple(tensor.shape)).numpy()


def _set_data(weight: torch.Tensor, values: torch.Tensor) -> None:
    if weight.shape != values.shape or weight.dtype != values.dtype:
        raise StepError(
            f"expected a weight that keeps its shape and dtype, got {tuple(values.shape)} of "
            f"{values.dtype} for {tuple(weight.shape)} of {weight.dtype}"
        )
    with torch.no_grad():
        weight.copy_(values)


def autocast_around(target: Target, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return the autocast of fake tensors for a dtype, or, if that is None, for the caller's."""
    if dtype is not None:
        around = nullcontext() if dtype == torch.float32 else torch.autocast(FAKE, dtype)
        return _like_the_outermost(around)
    for device in (GPU, FAKE) if target == "gpu" else (FAKE,):
        if torch.is_autocast_enabled(device):
            return _like_the_outermost(torch.autocast(FAKE, torch.get_autocast_dtype(device)))
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting() and target == "gpu" and not torch.cuda.is_available():
        warnings.warn(SWITCHED_OFF, CaptureWarning, stacklevel=6)
    return nullcontext()


@contextmanager
def _like_the_outermost(autocast: AbstractContextManager[object]) -> Iterator[None]:
    """Forget weights in another dtype at the end, as an autocast in no other one does."""
    with autocast:
        yield
    torch.clear_autocast_cache()
