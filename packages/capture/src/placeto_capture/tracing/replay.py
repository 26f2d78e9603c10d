"""Runs the ops of a trace on real tensors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from placeto_capture.tracing.prepared_calls import Slots, StorageMemory, fill_of, prepared
from placeto_capture.tracing.trace import Call, Placeholder, Trace, View

ValueOf = Callable[[Placeholder, str, View], torch.Tensor]


class Memory(StorageMemory):
    """The storages of a trace on one device: made when first needed, freed after the last use.

    Those that are to be kept are not freed. ``value_of`` returns the values that a tensor of a
    placeholder, with a name and a view, has before the step.
    """

    def __init__(
        self, trace: Trace, device: torch.device, value_of: ValueOf, kept: Iterable[int] = ()
    ) -> None:
        super().__init__(device, trace.storage_bytes, Slots())
        self._value_of = value_of
        self._uses_left = dict.fromkeys(kept, len(trace.ops))
        for call in trace.calls:
            for storage in _touched(call):
                self._uses_left[storage] = self._uses_left.get(storage, 0) + 1
        self._placeholder_of_storage = {
            storage: placeholder
            for placeholder in trace.placeholders
            for storage in placeholder.storages
        }

    def owner(self, storage: int) -> torch.Tensor:
        """Return a tensor that keeps a storage alive; one that is new has the values of before."""
        is_new = storage not in self._owner
        owner, placeholder = super().owner(storage), self._placeholder_of_storage.get(storage)
        if is_new and placeholder is not None:
            for name, view in {**placeholder.tensors, **placeholder.state}.items():
                if view.storage == storage:
                    self.tensor(view).copy_(self._value_of(placeholder, name, view))
        return owner

    def real(self, value: Any) -> Any:
        """Return an argument, with tensors in place of views."""
        fill = fill_of(value, self.slots)
        return value if fill is None else fill(self)

    def run(self, call: Call, seed: int) -> None:
        """Run an op; what it draws follows from a seed and from which draw it is."""
        for part in call.single_calls:
            ready = prepared(part, self.slots)
            args, keywords = ready.arguments(self)
            if part.rng_index is not None:
                torch.manual_seed(seed + part.rng_index)
            self.keep(ready, part.function(*args, **keywords))
        self.finish(call)

    def finish(self, call: Call) -> None:
        """Free what no other op uses, and what was there only between the parts of an op."""
        for part in call.parts:
            for storage in part.creates:
                if storage not in call.creates:
                    self.drop(storage)
        for storage in _touched(call):
            self._uses_left[storage] -= 1
            if not self._uses_left[storage]:
                self.drop(storage)


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
