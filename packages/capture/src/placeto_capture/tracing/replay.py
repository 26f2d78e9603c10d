"""Runs the ops of a trace on real tensors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from placeto_capture.tracing.trace import (
    Call,
    Placeholder,
    Trace,
    View,
    mapped,
    tensor_leaves,
    whole_storage,
)

ValueOf = Callable[[Placeholder, str, View], torch.Tensor]


def view_of(storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """Return a look at a storage, wherever it is."""
    tensor = torch.empty(0, dtype=view.dtype, device=storage.device)
    tensor.set_(storage, view.offset, view.size, view.stride)
    if view.is_conjugated:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if view.is_negated else tensor


class Memory:
    """The storages of a trace on one device: made when first needed, freed after the last use.

    Those that are to be kept are not freed. ``value_of`` returns the values that a tensor of a
    placeholder, with a name and a view, has before the step.
    """

    def __init__(
        self, trace: Trace, device: torch.device, value_of: ValueOf, kept: Iterable[int] = ()
    ) -> None:
        self._trace = trace
        self._device = device
        self._value_of = value_of
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._uses_left = dict.fromkeys(kept, len(trace.ops))
        for call in trace.calls:
            for storage in _touched(call):
                self._uses_left[storage] = self._uses_left.get(storage, 0) + 1
        self._placeholder_of_storage = {
            storage: placeholder
            for placeholder in trace.placeholders
            for storage in placeholder.storages
        }

    def tensor(self, view: View) -> torch.Tensor:
        """Return a tensor; one that nothing has made yet has the values from before the step."""
        if view.storage not in self._storages:
            self._make(view.storage)
        return view_of(self._storages[view.storage], view)

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what an op is called with."""
        return mapped(self.real, call.arguments), mapped(self.real, call.keywords)

    def run(self, call: Call, seed: int) -> None:
        """Run an op; what it draws follows from a seed and from which draw it is."""
        for part in call.single_calls:
            args, kwargs = self.arguments(part)
            if part.rng_index is not None:
                torch.manual_seed(seed + part.rng_index)
            self.keep(part, part.function(*args, **kwargs))
        self.finish(call)

    def written(self, call: Call) -> list[torch.Tensor]:
        """Return what an op changes, as the bytes of whole storages."""
        sizes = self._trace.storage_bytes
        return [self.tensor(whole_storage(storage, sizes[storage])) for storage in call.writes]

    def keep(self, call: Call, result: Any) -> None:
        """Take over what an op returned."""
        for view, tensor in zip(call.outputs, tensor_leaves(result), strict=True):
            if view is not None and tensor is not None and view.storage not in self._storages:
                self._take_over(view, tensor)

    def finish(self, call: Call) -> None:
        """Free what no other op uses, and what was there only between the parts of an op."""
        for part in call.parts:
            for storage in part.creates:
                if storage not in call.creates:
                    self._storages.pop(storage, None)
        for storage in _touched(call):
            self._uses_left[storage] -= 1
            if not self._uses_left[storage]:
                self._storages.pop(storage, None)

    def _take_over(self, view: View, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        layout = tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), storage.nbytes()
        if layout == (view.size, view.stride, view.offset, self._trace.storage_bytes[view.storage]):
            self._storages[view.storage] = storage
        else:  # a kernel may lay out its result in another way than fake tensors say
            self._allocate(view.storage)
            self.tensor(view).copy_(tensor)

    def _make(self, storage: int) -> None:
        self._allocate(storage)
        placeholder = self._placeholder_of_storage.get(storage)
        if placeholder is not None:
            for name, view in {**placeholder.tensors, **placeholder.state}.items():
                if view.storage == storage:
                    self.tensor(view).copy_(self._value_of(placeholder, name, view))

    def _allocate(self, storage: int) -> None:
        self._storages[storage] = torch.empty(
            self._trace.storage_bytes[storage], dtype=torch.uint8, device=self._device
        ).untyped_storage()

    def real(self, value: Any) -> Any:
        """Return an argument, with a tensor in place of a reference."""
        if isinstance(value, View):
            return self.tensor(value)
        if isinstance(value, torch.Tensor):  # a constant, whose values the op itself holds
            return value.detach().to(self._device, copy=True)
        if isinstance(value, torch.device):
            return self._device
        return value


def _touched(call: Call) -> Iterable[int]:
    return dict.fromkeys((*call.reads, *call.writes, *call.creates))


WEIGHT_SCALE = 0.02  # of weights that have no values


def example_values(generator: torch.Generator) -> ValueOf:
    """Return what gives a placeholder the values that `capture` was given, or random ones.

    The state of the optimizer, and whole numbers that are not known, are zero.
    """

    def value_of(placeholder: Placeholder, name: str, view: View) -> torch.Tensor:
        value = placeholder.values.get(name)
        if value is not None and not value.is_meta:
            return value.detach()
        if name in placeholder.state or not view.dtype.is_floating_point:
            return torch.zeros(view.size, dtype=view.dtype)
        values = torch.randn(view.size, generator=generator)
        if placeholder.op_type == "parameter":
            values *= WEIGHT_SCALE
        if placeholder.op_type == "buffer":
            values = values.abs()  # it may be a variance
        return values.to(view.dtype)

    return value_of
