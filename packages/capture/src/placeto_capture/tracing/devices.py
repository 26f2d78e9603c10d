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

Target = Literal["gpu", "cpu"]
TARGETS: tuple[Target, ...] = get_args(Target)
GPU, FAKE = "cuda", "cpu"
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
AUTOCAST_DTYPES = torch.float16, torch.bfloat16, torch.float32  # the last one is none
SWITCHED_OFF = (
    "autocast: captured without the one that was made before the step and is off, as PyTorch lets "
    "torch.autocast('cuda') be where there is no GPU; autocast=torch.bfloat16 captures with it"
)


class OneDevice(TorchFunctionMode):
    """Lets a step that says where its tensors are run on the one device that it is captured on.

    Other devices than the meta device are that of the fake tensors, and nothing is moved. Numpy
    gets the values of tensors where these are known. A weight whose ``data`` becomes another tensor
    is written: its memory stays the same one.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and isinstance(args[0], FakeTensor):
            return _numpy(args[0])
        if func == SET_DATA and isinstance(args[0], nn.Parameter):
            return _set_data(*args)
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
        warnings.warn(SWITCHED_OFF, CaptureWarning, stacklevel=4)
    return nullcontext()


@contextmanager
def _like_the_outermost(autocast: AbstractContextManager[object]) -> Iterator[None]:
    """Forget weights in another dtype at the end, as an autocast in no other one does."""
    with autocast:
        yield
    torch.clear_autocast_cache()
