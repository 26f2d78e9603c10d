"""Devices and autocast of a step, whose fake tensors are of a CPU to PyTorch."""

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args
from unittest import mock

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
_SWITCHED_OFF = (
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
        warnings.warn(_SWITCHED_OFF, CaptureWarning, stacklevel=4)
    return nullcontext()


@contextmanager
def _like_the_outermost(autocast: AbstractContextManager[object]) -> Iterator[None]:
    """Forget weights in another dtype at the end, as an autocast in no other one does."""
    with autocast:
        yield
    torch.clear_autocast_cache()


@contextmanager
def patch_autocast() -> Iterator[None]:
    """Let ``torch.autocast("cuda")`` apply to fake tensors, which are tensors of a CPU to PyTorch.

    PyTorch looks at the device of a tensor to tell which autocast applies, and switches that of
    GPUs off where there is no GPU. Here one that begins inside is that of CPUs, with the dtype that
    it would have on GPUs. Products and convolutions have their inputs cast by both. Functions that
    only that of GPUs computes in float32, such as softmax, keep the dtype of their input.
    """
    make, enter, leave = (
        getattr(torch.autocast, name) for name in ("__init__", "__enter__", "__exit__")
    )
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype
    entered: defaultdict[int, list[torch.autocast]] = defaultdict(list)

    def make_fake(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: Any,
        **keywords: Any,
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
                warnings.warn(_SWITCHED_OFF, CaptureWarning, stacklevel=3)
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
