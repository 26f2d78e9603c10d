"""Fake tensors in place of a model's and of its inputs: shapes and dtypes without memory."""

import copy
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from placeto_workloads.errors import WorkloadError


def fake_like(name: str, tensor: torch.Tensor, fake_mode: FakeTensorMode) -> Any:
    """Return a fake tensor of the same shape, strides and dtype, in memory of its own."""
    if tensor.layout is not torch.strided:
        raise WorkloadError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    with fake_mode:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
        ).requires_grad_(tensor.requires_grad)


class FakeModel:
    """A copy of a model whose parameters and buffers are fake tensors.

    Everything else is copied as it is, so that running the copy leaves the model as it was.

    Attributes
    ----------
    module : `torch.nn.Module`
        The copy.
    storages : dict of tuple to dict of str to (fake tensor, real tensor)
        Parameters and buffers by name, grouped by the memory that they share.
    """

    def __init__(self, model: nn.Module, fake_mode: FakeTensorMode) -> None:
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise WorkloadError("model: expected a plain torch.nn.Module, got one with TorchScript")
        self.storages: dict[Any, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._model = model
        self._fake_of: dict[int, Any] = {}
        for name, tensor in _named_tensors(model):
            if is_lazy(tensor):
                raise WorkloadError(
                    f"{name}: expected a parameter with a shape, got one that gets it from the "
                    "first input; call the model once before"
                )
            self._add(name, tensor, fake_mode)
        # What the model keeps besides is shared with the copy: it may be of any size, and tensors
        # that autograd has made cannot be copied.
        kept = {id(value): value.detach() for value in _kept_tensors(model)}
        try:
            self.module = copy.deepcopy(model, {**kept, **self._fake_of})
        except Exception as error:
            raise WorkloadError(
                f"model: expected one that copy.deepcopy can copy, got {type(error).__name__}: "
                f"{error}"
            ) from error

    @contextmanager
    def in_place_of_the_model(self) -> Iterator[None]:
        """Let the model itself hold the fake tensors, for functions that look at it."""
        holders: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (tensors, dict(tensors))
            for module in self._model.modules()
            for tensors in (module._parameters, module._buffers)
        ]
        try:
            for tensors, real in holders:
                tensors.update({key: self._fake_of.get(id(t), t) for key, t in real.items()})
            yield
        finally:
            for tensors, real in holders:
                tensors.clear()
                tensors.update(real)

    def _add(self, name: str, tensor: torch.Tensor, fake_mode: FakeTensorMode) -> None:
        memory = tensor.untyped_storage()._cdata if tensor.numel() else name
        key = memory, tensor.storage_offset(), tensor.numel()
        sharing = self.storages.setdefault(key, {})
        fake = self._fake_of.get(id(tensor))
        if fake is None:
            fake = fake_like(name, tensor.detach(), fake_mode)
            if sharing:
                first = next(iter(sharing.values()))[0].detach()
                with fake_mode:
                    fake = first.as_strided(tensor.size(), tensor.stride())
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            self._fake_of[id(tensor)] = fake
        sharing[name] = fake, tensor


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _kept_tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                yield value
