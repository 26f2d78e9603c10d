"""A copy of a model with fake tensors: shapes and dtypes without memory."""

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.fake_memory import FakeMemory, NamedTensors


class FakeModel:
    """A copy of a model whose parameters and buffers are fake tensors.

    Everything else is copied as it is, so that running the copy leaves the model as it was.

    Parameters
    ----------
    model
        The model.
    inputs
        The tensors that it is called with, by name: they may overlap with its own.
    fake_mode
        The mode of the fake tensors.

    Attributes
    ----------
    module : `torch.nn.Module`
        The copy.
    memory : `FakeMemory`
        Of parameters, buffers and inputs.
    """

    def __init__(self, model: nn.Module, inputs: NamedTensors, fake_mode: FakeTensorMode) -> None:
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise CaptureError("model: expected a plain torch.nn.Module, got one with TorchScript")
        self._model = model
        named = list(_named_tensors(model))
        for name, tensor in named:
            if is_lazy(tensor):
                raise CaptureError(
                    f"{name}: expected a parameter with a shape, got one that gets it from the "
                    "first input; call the model once before"
                )
        self.memory = FakeMemory(named, inputs, fake_mode)
        # What the model keeps besides is shared with the copy: it may be of any size, and tensors
        # that autograd has made cannot be copied.
        kept = {id(value): value.detach() for value in _kept_tensors(model)}
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                self.module = copy.deepcopy(model, {**kept, **self.memory.fake_of})
        except Exception as error:
            raise CaptureError(
                f"model: expected one that copy.deepcopy can copy, got {type(error).__name__}: "
                f"{error}"
            ) from error

    @contextmanager
    def in_place_of_the_model(self) -> Iterator[None]:
        """Let the model itself hold the fake tensors, for functions that look at it."""
        fake_of = self.memory.fake_of
        holders: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (tensors, dict(tensors))
            for module in self._model.modules()
            for tensors in (module._parameters, module._buffers)
        ]
        try:
            for tensors, real in holders:
                tensors.update({key: fake_of.get(id(t), t) for key, t in real.items()})
            yield
        finally:
            for tensors, real in holders:
                tensors.clear()
                tensors.update(real)


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _kept_tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                yield value
